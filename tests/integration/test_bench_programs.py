"""The benchmarks that print tables and write no records run. No time is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tqdm")

import vkrnn
from benchmarks import NATIVE, TABLE, VULKAN, vulkan
from oracles import require
from scale import distinct

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("bench")  # beside the other benchmarks, one at a time


def test_peephole_loops(torch: Any) -> None:
    """Forward and gradients have a row each, and the three ways agree, or the program would fail."""
    assert torch
    options = ["--device", "cpu", "--sizes", "3,2,8", "--rounds", "1", "--compiler", "eager"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.loops", *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| 3,2,8")]
    assert rows == ["3,2,8 forward", "3,2,8 forward + gradients"]


def test_resets(torch: Any) -> None:
    """Forward and gradients of both cells have a row, and the results agree, or the program would fail."""
    assert torch
    options = ["--sizes", "3,2,8", "--rounds", "1", "--share", "0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.resets", *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if " 3,2,8" in line]
    assert rows == [f"{cell} 3,2,8 forward{more}" for cell in ("LSTM", "GRU") for more in ("", " + gradients")]


def test_fused_kernels(torch: Any) -> None:
    """Every row is measured forward and with gradients, here without the other libraries, which need a GPU."""
    assert torch
    done = subprocess.run(
        [sys.executable, "-m", "bench.fused", "--device", "cpu", "--steps", "2", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    ours = [line[0] for line in lines if len(line) == 6 and line[1] == "vkrnn"]
    slstm = [f"sLSTM {heads}, bfloat16" for heads in ("48 x 16", "12 x 64", "6 x 128", "3 x 256")]
    rows = [*slstm, "GRU 8 x 64, float32", "GRU 256, resets, TF32", "LSTM 256, resets, TF32"]
    assert ours == [row + more for row in rows for more in ("", " + gradients")]


def test_data_parallel_training(torch: Any) -> None:
    """Each implementation has a row for each number of processes, and the first has an efficiency of 1."""
    assert torch
    options = ["--backend", "gloo", "--processes", "1", "--sizes", "4", "2", "8", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.ddp", *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    found = [[word.strip() for word in row] for row in rows if len(row) == 4]
    assert [(name, count, efficiency) for name, count, _, efficiency in found] == [
        ("vkrnn.torch", "1", "1.00"),
        ("torch", "1", "1.00"),
    ]


def test_two_builds(tmp_path: Path) -> None:
    """A build is compared with itself on a device of each kind. A folder without the package is an error."""
    package = str(Path(vkrnn.__file__).parents[1])
    for device in distinct([each for each in (NATIVE, VULKAN) if each], 2):
        options = ["--device", device, "--sizes", "5,3,4,4", "--cells", "gru", "--rounds", "1"]
        done = builds(package, package, *options)
        assert done.returncode == 0, done.stderr
        assert TABLE.search(done.stdout), done.stdout
        assert [line.split("|")[1].strip() for line in done.stdout.splitlines() if "T=5" in line] == [
            "gru",
            "gru + gradients",
        ]
    broken = tmp_path / "vkrnn"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit('this is no build')")
    done = builds(str(tmp_path), package, "--device", "0")
    assert done.returncode != 0
    assert "this is no build" in done.stderr


def builds(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run bench.builds."""
    command = [sys.executable, "-m", "bench.builds", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_host_time_of_modules() -> None:
    """Every call of every module has a row."""
    require("torch")
    command = [sys.executable, "-m", "bench.host", "--device", "cpu", "--calls", "1", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert TABLE.search(done.stdout), done.stdout
    assert sum(line.startswith(("| LSTM", "| GRU", "| RNN")) for line in done.stdout.splitlines()) == 12


@vulkan
@pytest.mark.full
def test_compiling() -> None:
    """Every kind of call is made once on a Vulkan device."""
    command = [sys.executable, "-m", "bench.compile", "--smoke", "--cells", "single_gate_rnn", "--processes", "2"]
    done = subprocess.run([*command, "--devices", str(VULKAN)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "4 of 4 jobs compiled, 2 at once.\n"
