"""``python -m vkrnn.demo`` runs and writes its plot, or says which extra to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vkrnn

OPERATIONS = [name + suffix for name in ("single_gate_rnn", "lstm", "gru", "slstm") for suffix in ("", "_gradients")]


def test_runs(tmp_path: Path) -> None:
    """A few steps: results agree on all devices, one device trains, and a PNG is written."""
    for package in ("matplotlib", "statsmodels", "tqdm"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "vkrnn.demo", "--steps", "5", "--output", "plot.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    devices = [line for line in done.stdout.splitlines() if line.startswith("<vkrnn.Device")]
    chosen = [vkrnn.default_device()] if os.environ.get("VKRNN_DEVICE") else vkrnn.devices()
    assert devices == [repr(device) for device in chosen]
    results = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ok")]
    assert results == OPERATIONS * len(devices)
    assert f"forecaster on {vkrnn.default_device().name}:" in done.stdout
    assert "the last value" in done.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("package", ["matplotlib", "statsmodels", "tqdm"])
def test_names_a_missing_extra(package: str, tmp_path: Path) -> None:
    """The message is one sentence without a traceback."""
    program = f"import sys; sys.modules[{package!r}] = None; from vkrnn import demo; demo.main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    needed = "The demo needs the packages matplotlib, statsmodels and tqdm"
    assert re.fullmatch(rf"{needed} \(.*\b{package}\b.*\): pip install matplotlib statsmodels tqdm\n", done.stderr)
    assert not list(tmp_path.iterdir())
