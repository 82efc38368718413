"""``python -m vkrnn.demo`` runs and writes its plot; without its extras it says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_runs(tmp_path: Path) -> None:
    """A few steps: the device is named, every result agrees with the reference, a PNG comes out."""
    for package in ("matplotlib", "statsmodels", "tqdm"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "vkrnn.demo", "--steps", "5", "--output", "plot.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Device: <vkrnn.Device")
    results = [line.split() for line in done.stdout.splitlines() if line.endswith(" ok")]
    assert {line[0].removesuffix("_gradients") for line in results} == {"single_gate_rnn", "lstm", "gru"}
    assert "the last value" in done.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("package", ["matplotlib", "statsmodels", "tqdm"])
def test_names_a_missing_extra(package: str, tmp_path: Path) -> None:
    """One sentence, no traceback."""
    program = f"import sys; sys.modules[{package!r}] = None; from vkrnn import demo; demo.main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'vkrnn[demo]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
