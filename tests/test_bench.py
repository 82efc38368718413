"""The benchmarks run, and their records are complete. No time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tqdm")

from bench.common import Record
from bench.scaling import SMOKE_SERIES, exponents, workloads

ROOT = Path(__file__).parents[1]
FIELDS = (
    "commit implementation device driver op workload measure median p10 p90 n bytes flops checked error"  # in order
)
MEASURES = {
    "host call",
    "submit",
    "device timestamps",
    "import",
    "first call, cold caches",
    "first call, warm caches",
}


def smoke(name: str, folder: Path) -> list[dict[str, Any]]:
    """Run a benchmark with tiny sizes and return its records."""
    output = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", f"bench.{name}", "--smoke", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" in done.stdout or "call" in done.stdout  # the table
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.parametrize("name", ["cells", "gemm", "overhead", "first_call", "scaling"])
def test_smoke(name: str, tmp_path: Path) -> None:
    """Every record has every field, plausible numbers, and vkrnn's answers were checked."""
    records = smoke(name, tmp_path)
    assert {record["implementation"] for record in records} >= {"vkrnn"}
    for record in records:
        assert list(record) == FIELDS.split()
        assert record["measure"] in MEASURES
        assert 0 < record["p10"] <= record["median"] <= record["p90"] < math.inf
        assert record["n"] >= 1
        assert record["bytes"] > 0
        assert record["flops"] > 0
        assert record["checked"] is (record["error"] is not None)
    own = [record for record in records if record["implementation"] == "vkrnn"]
    assert all(record["checked"] and record["error"] < 5e-6 for record in own)


def test_scaling_finds_exponents() -> None:
    """Times that are powers of the sizes give these powers."""
    sizes = [size for letter in SMOKE_SERIES for size in workloads(SMOKE_SERIES, letter)]
    times = {str(size): size.T * size.N**0.5 * size.H**2 for size in sizes}
    records = [
        Record(
            "", "vkrnn", "", "", "lstm", workload, "host call", time, time, time, 1, 1, 1.0, checked=False, error=None
        )
        for workload, time in times.items()
    ]
    found = exponents(records, SMOKE_SERIES)
    assert found == pytest.approx({("T", "vkrnn"): 1.0, ("N", "vkrnn"): 0.5, ("H", "vkrnn"): 2.0})


def test_cells_compares_with_others(tmp_path: Path) -> None:
    """All three cells, forward and with gradients; NumPy is there on a CPU device."""
    records = smoke("cells", tmp_path)
    operations = {record["op"] for record in records}
    cells = ("single_gate_rnn", "lstm", "gru")
    assert operations == {*cells, *(f"{cell} + gradients" for cell in cells)}
    if any(record["implementation"] == "numpy" for record in records):
        assert all(record["checked"] for record in records)
