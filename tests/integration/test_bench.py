"""The benchmarks run, and their records are complete. No time is asserted."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tqdm")

import vkrnn
from bench import alone, cells, graphs
from bench.common import SMOKE, Record, Sizes, groups_of, write
from bench.floors import AVX2_ALONE, cpu_verdicts
from bench.gpu import SIZES as GPU_SIZES
from bench.gpu import SMOKE_SIZES as GPU_SMOKE_SIZES
from bench.gpu import Errors, allowed_errors, parse_contender, parse_sizes
from bench.gpu import main as gpu_main
from bench.gpu_report import BIDIRECTIONAL, OPTIONS, PLAIN, TORCH, GpuRecord, report
from benchmarks import ON_NATIVE, TABLE, VULKAN, native, vulkan
from cases import GATES
from oracles import require
from scale import distinct

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("bench")  # several tests share a run
# In order
FIELDS = "commit implementation device driver op workload measure median p10 p90 n bytes flops checked error alone"
GPU_FIELDS = f"{FIELDS} dtype seconds_a_step calls strategy errors allowed correct float32"
MEASURES = {
    "host call",
    "device timestamps",
    "call in a batch",
    "time a call, all processes",
    "step",
    "graph replay",
}


@functools.cache
def run(command: tuple[str, ...], environment: frozenset[tuple[str, str]]) -> str:
    """Run a benchmark with tiny sizes and return its records. All tests share one run of each."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "records.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", *command, "--smoke", "--output", str(output)],
            cwd=ROOT,
            env=os.environ | dict(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert TABLE.search(done.stdout), done.stdout
        return output.read_text()


def smoke(name: str, *options: str, **environment: str) -> list[dict[str, Any]]:
    """Return the records of a benchmark with tiny sizes."""
    return [json.loads(line) for line in run((f"bench.{name}", *options), frozenset(environment.items())).splitlines()]


@native
@pytest.mark.parametrize("name", distinct(["cells", "contention", "step", "beside"], 3))
def test_smoke(name: str) -> None:
    """Every record has every field and plausible numbers, and vkrnn's results were checked."""
    complete(smoke(name, *ON_NATIVE))


def test_floors_for_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's mean has another floor if both libraries were limited to AVX2."""
    ratios = {"torch": {("lstm", "a"): 1.5, ("gru", "a"): 1.5}}
    for name in AVX2_ALONE:
        monkeypatch.delenv(name, raising=False)
    assert next(cpu_verdicts(ratios)).startswith("FALLS SHORT")
    monkeypatch.setenv("VKRNN_CPU_TARGET", "avx2")
    assert list(cpu_verdicts(ratios))[-1].startswith("Only VKRNN_CPU_TARGET is set")
    for name in AVX2_ALONE:
        monkeypatch.setenv(name, "AVX2")
    assert all(line.startswith("reached") for line in cpu_verdicts(ratios))
    *_, last = cpu_verdicts({"onnxruntime": {("lstm", "a"): 1.5}})
    assert last.startswith("ONNX Runtime has no such setting")


@native
def test_modules_beside_arrays(torch: Any) -> None:
    """Calls on arrays, vkrnn's modules and PyTorch's modules are measured and checked in all six operations."""
    records = [record for record in smoke("modules", *ON_NATIVE) if record["measure"] == "host call"]
    complete(records)
    assert all(record["checked"] for record in records), torch.__version__
    for implementation in ("vkrnn", "vkrnn.torch", "torch"):
        assert len({record["op"] for record in records if record["implementation"] == implementation}) == 6


@native
def test_cells_of_torch(torch: Any) -> None:
    """Both libraries' cells are measured and checked in all six operations."""
    records = smoke("torch_cells")
    assert {(record["op"], record["implementation"]) for record in records} == {
        (f"{cell}{back}", name)
        for cell in ("single_gate_rnn", "lstm", "gru")
        for back in ("", " + gradients")
        for name in ("vkrnn.torch", "torch")
    }, torch.__version__
    assert all(list(record) == FIELDS.split() and record["error"] < 5e-6 for record in records)


@native
def test_onnxruntime_is_measured() -> None:
    """If installed, it is measured for forward LSTM and GRU."""
    require("onnx")
    require("onnxruntime")
    records = smoke("cells", *ON_NATIVE)
    own = [record for record in records if record["implementation"] == "onnxruntime"]
    assert {record["op"] for record in own} == {"lstm", "gru"}
    assert all(record["error"] < 5e-6 for record in own)


def complete(records: list[dict[str, Any]], fields: str = FIELDS) -> None:
    """Check that records are complete and plausible and that vkrnn's results were checked."""
    for record in records:
        assert list(record) == fields.split()
        assert record["measure"] in MEASURES
        assert 0 < record["p10"] <= record["median"] <= record["p90"] < math.inf
        assert record["n"] >= 1
        assert record["bytes"] > 0
        assert record["flops"] > 0
        assert record["checked"] is (record["error"] is not None)
    own = [record for record in records if record["implementation"] == "vkrnn"]
    assert own
    assert all(record["checked"] and record["error"] < 5e-6 for record in own)


@native
def test_cells_compares_with_others() -> None:
    """All cells are measured beside NumPy, forward and with gradients, and checked."""
    records = smoke("cells", *ON_NATIVE)
    cells = ("single_gate_rnn", "lstm", "gru")
    operations = {*cells, *(f"{cell} + gradients" for cell in cells)}
    for implementation in ("vkrnn", "numpy"):
        assert {record["op"] for record in records if record["implementation"] == implementation} == operations
    assert all(record["checked"] for record in records)


@native
def test_stacks_alone() -> None:
    """With --alone, the same contenders compute two layers in processes of their own. NumPy's program has one layer."""
    records = smoke("cells", *ON_NATIVE, "--alone", "--layers", "2")
    complete(records)
    assert all(record["alone"] and record["checked"] for record in records)
    assert {record["workload"] for record in records} == {"T=5 N=3 I=7 H=4 L=2"}
    together = smoke("cells", *ON_NATIVE)
    assert not any(record["alone"] for record in together)
    contenders = {(record["implementation"], record["op"], record["measure"]) for record in together}
    assert {(record["implementation"], record["op"], record["measure"]) for record in records} == {
        contender for contender in contenders if contender[0] != "numpy"
    }


def test_a_process_ends_early() -> None:
    """The benchmark ends, too."""
    with pytest.raises(SystemExit, match="ended early"):
        list(alone.measure_all([functools.partial(int, "no number")], 1, SMOKE, None))


def test_records_of_both_kinds(tmp_path: Path) -> None:
    """Contenders that were alone are a group of their own. Older records have no such field and were not."""
    path = tmp_path / "records.jsonl"
    plain = {name: 1 for name in FIELDS.split() if name != "alone"}
    path.write_text(json.dumps(plain) + "\n")
    write([Record(**plain, alone=True)], path)
    assert [[record.alone for record in group] for group in groups_of(path)] == [[False], [True]]


def test_workloads() -> None:
    """Sizes are numbers or the name of several; --layers applies to all of them."""
    parser = argparse.ArgumentParser()
    cells.add_sizes(parser)
    parser.set_defaults(smoke=False)

    def chosen(*arguments: str) -> list[Sizes]:
        return list(cells.sizes_of(parser.parse_args(arguments), vkrnn.devices()[0]))

    assert chosen("--sizes", "3,2,4,5") == [Sizes(3, 2, 4, 5)]
    assert [size.layers for size in chosen("--sizes", "wavefront", "3,2,4,5")] == [4, 4, 4, 4, 4, 8, 8, 1]
    assert [size.layers for size in chosen("--sizes", "wavefront", "--layers", "1", "2")] == [1] * 5 + [2] * 5
    with pytest.raises(argparse.ArgumentTypeError, match="expected T,N,I,H"):
        cells.parse_workloads("wave")


@native
def test_graphs_of_modules(torch: Any) -> None:
    """Stacks of modules agree in both dtypes and have a record each, with plain calls where there is no CUDA device."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = ("--graphs", "--device", device, "--layers", "1", "2", "--dtypes", "float32", "bfloat16")
    records = smoke("modules", *options)
    assert all(list(record) == FIELDS.split() and record["checked"] for record in records)
    rows = {(record["op"], record["workload"]) for record in records}
    assert len(rows) == 2 * 2 * 2 * 2  # cells, passes, layers, dtypes
    assert {(record["implementation"], record["op"], record["workload"]) for record in records} == {
        (name, *row) for name in ("torch", "vkrnn.torch") for row in rows
    }
    assert {record["measure"] for record in records} == {"graph replay" if device == "cuda" else "host call"}


@native
def test_a_row_of_graphs_fails(torch: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are measured, and the program says at its end which one failed."""
    measure = graphs.measure

    def failing(torch: Any, where: str, row: graphs.Row, *rest: Any) -> list[Record]:
        if row.cell == "gru":
            raise RuntimeError("no memory")
        return measure(torch, where, row, *rest)

    monkeypatch.setattr(graphs, "measure", failing)
    rows = [graphs.Row(Sizes(3, 2, 4, 4), "float32", cell, gradients=False) for cell in ("gru", "lstm")]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            graphs.run(torch, "cpu", rows, SMOKE, None)
    finally:
        signal.signal(signal.SIGTERM, handler)
    printed = capsys.readouterr().out
    assert TABLE.search(printed)
    assert "| lstm " in printed
    assert printed.rstrip().endswith("FAILED       gru T=3 N=2 I=4 H=4 float32: RuntimeError: no memory")


def test_summary_of_graphs() -> None:
    """Means and worst rows are of each depth and type, and of all."""
    one, four = Sizes(3, 2, 4, 4), Sizes(3, 2, 4, 4, 4)
    ratios = {
        graphs.Row(size, "tf32", "lstm", gradients): ratio
        for (size, gradients), ratio in {(one, False): 4.0, (four, False): 1.0, (four, True): 3.0}.items()
    }
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in graphs.summary(ratios)][2:]
    assert lines == [
        ["1 layer, tf32", "forward", "1", "4.00", "4.00", "lstm, 3,2,4,4, 1, tf32"],
        ["4 layers, tf32", "forward", "1", "1.00", "1.00", "lstm, 3,2,4,4, 4, tf32"],
        ["4 layers, tf32", "with gradients", "1", "3.00", "3.00", "lstm + gradients, 3,2,4,4, 4, tf32"],
        ["all", "forward", "2", "2.00", "1.00", "lstm, 3,2,4,4, 4, tf32"],
        ["all", "with gradients", "1", "3.00", "3.00", "lstm + gradients, 3,2,4,4, 4, tf32"],
    ]


def gpu_record(op: str, size: Sizes, implementation: str, seconds: float, **changed: Any) -> GpuRecord:
    """Return a record in the form of `bench.gpu`."""
    given: dict[str, Any] = {
        **dict.fromkeys(("commit", "device", "driver"), ""),
        **dict.fromkeys(("median", "p10", "p90"), seconds),
        **dict.fromkeys(("n", "bytes", "flops", "calls"), 1),
        **dict.fromkeys(("checked", "correct"), True),
        "measure": "call in a batch",
        "dtype": "float32",
        "seconds_a_step": seconds / size.T,
        "strategy": [{"schedule": "steps", "gemm": "register"}] if implementation.startswith(PLAIN) else [],
        "error": 1e-7,
        "errors": {"output": 1e-7},
        "allowed": {"output": 2e-7},
    }
    return GpuRecord(op=op, workload=str(size), implementation=implementation, **given | changed)


@pytest.mark.parametrize(
    "options", distinct([(), ("--options",), ("--transfers",)], 2), ids=lambda options: "".join(options)[2:] or "arrays"
)
def test_gpu_runs_anywhere(options: tuple[str, ...]) -> None:
    """Libraries that are not installed are skipped. The record lists the call's options."""
    records = smoke("gpu", *options)
    complete(records, GPU_FIELDS)
    assert {record["op"].split(" + ")[0] for record in records} == {"single_gate_rnn", "lstm", "gru"}
    for record in records:
        assert record["seconds_a_step"] == pytest.approx(record["median"] / 5)
        if record["implementation"].startswith(PLAIN):
            assert record["correct"]
            assert len(record["strategy"]) == 1 + ("gradients" in record["op"])
    if options == ("--options",):
        assert {record["implementation"] for record in records} == {PLAIN, OPTIONS, BIDIRECTIONAL}


@vulkan
def test_memory() -> None:
    """Every training step takes its arguments and results at least. Without CUDA, PyTorch has no peak."""
    size = GPU_SMOKE_SIZES[0]
    rows = smoke("memory", "--device", str(VULKAN))
    assert {row["op"] for row in rows} == {"single_gate_rnn", "lstm", "gru"}
    for row in rows:
        gates = GATES[row["op"]]
        least = 4 * (size.T * size.N * (3 * size.I + (1 + gates) * size.H) + 2 * gates * size.H * (size.I + size.H))
        assert row["vkrnn"] >= least
        assert row["torch"] is None or row["torch"] >= least


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_beside_torch(torch: Any, dtype: str) -> None:
    """With PyTorch on the CPU in place of cuDNN, the results agree, gradients of the states included."""
    own = ("--device", str(VULKAN), "--vkrnn", "again: schedule=steps lanes=1") if VULKAN is not None else ()
    records = smoke("gpu", "--torch", "cpu", "--dtype", dtype, "--vkrnn", "not there: schedule=no", *own)
    assert all(record["correct"] and record["errors"]["whole"] > 0 for record in records), torch.__version__
    names = {PLAIN, TORCH} | ({f"{PLAIN}, again"} if own else set())
    assert {record["implementation"] for record in records} == names
    rounding = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    assert all(max(record["errors"].values()) < rounding for record in records)


def test_gpu_is_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured before is printed."""

    def rows(_: object) -> Iterator[list[GpuRecord]]:
        yield [gpu_record("lstm", GPU_SMOKE_SIZES[0], PLAIN, 1e-3)]
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("bench.gpu.Bench.rows", rows)
    monkeypatch.setattr("sys.argv", ["bench.gpu", "--smoke", "--torch", "cpu"])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        gpu_main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    printed = capsys.readouterr().out
    assert "Interrupted" in printed
    assert "| lstm " in printed


def test_gpu_arguments() -> None:
    """The table has eleven sizes; strategies can be fixed and labelled."""
    assert len(set(GPU_SIZES)) == 11
    assert parse_sizes("128,1,64") == Sizes(128, 1, 64, 64)
    assert parse_contender("plain FMAs: schedule=tiles lanes=8") == ("plain FMAs", {"schedule": "tiles", "lanes": 8})
    for text in ("schedule=tiles", "label:", ": schedule=tiles", "label: schedule"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            parse_contender(text)
    with pytest.raises(argparse.ArgumentTypeError, match="expected T,N,H"):
        parse_sizes("1,2,3,4")


def test_gpu_error_limits() -> None:
    """The limit is three times the error of strict float32, at least a rounding, and fixed without cuDNN."""
    assert allowed_errors("float32", Errors(1e-7, 1e-6, 1e-9)) == pytest.approx((3e-7, 3e-6, 2**-24))
    assert allowed_errors("float16", Errors(1e-3, 1e-2, 0)) == pytest.approx((1.25e-3, 1.25e-2, 2**-11))
    assert allowed_errors("tf32", Errors(1e-3, 2e-3, 0)) == pytest.approx((1.5e-3, 3e-3, 2**-10))
    assert allowed_errors("float32", None) == (1e-5, 1e-5, 1e-5)


def test_gpu_report() -> None:
    """The report has ratios, geometric means, worst rows, bars, and marks wrong answers."""
    narrow, wide = Sizes(128, 1, 128, 128), Sizes(100, 64, 1024, 1024)
    forced = f"{PLAIN}, plain FMAs"
    times = {(narrow, PLAIN): 1e-3, (narrow, forced): 8e-3, (narrow, TORCH): 4e-3}
    times |= {(wide, PLAIN): 4e-3, (wide, forced): 8e-3, (wide, TORCH): 4e-3}
    lines = list(report([gpu_record("lstm", size, name, seconds) for (size, name), seconds in times.items()]))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert ["lstm", "128,1,128", "7.81", "62.50", "31.25", "4.00", "0.50"] in [row[:7] for row in cells]
    assert ["all", PLAIN, "2", "2.00", "1.00", "lstm, 100,64,1024"] in cells
    assert any(line.startswith("reached") and "geometric mean: 2 times" in line for line in lines)
    assert any(
        line.startswith("FALLS SHORT") and "plain FMAs, N >= 32" in line and ": 0.5 times" in line for line in lines
    )
    assert not any(line.startswith("WRONG") for line in lines)

    name = f"{PLAIN}, tf32"
    pair = [gpu_record("lstm", wide, name, 2e-3, float32="tf32", error=4e-4), gpu_record("lstm", wide, TORCH, 5e-3)]
    lines = list(report(pair))
    assert f"error of {name}" in "".join(lines)
    assert "4.0e-04" in "".join(lines)
    assert [line for line in lines if line.startswith("reached")] == [
        f"reached      torch : {name}, geometric mean: 2.5 times, wanted at least 2.3 times",
        f"reached      torch : {name}, lstm, 100,64,1024: 2.5 times, wanted at least 1 times",
    ]

    costs = {PLAIN: 1e-3, OPTIONS: 1.1e-3, BIDIRECTIONAL: 1.4e-3}
    lines = list(report([gpu_record("gru", wide, name, seconds) for name, seconds in costs.items()]))
    assert any(line.startswith("reached") and OPTIONS in line for line in lines)
    assert any(line.startswith("FALLS SHORT") and BIDIRECTIONAL in line for line in lines)

    wrong = gpu_record("gru", wide, PLAIN, 1e-3, errors={"output": 1e-3}, correct=False)
    assert [line for line in report([wrong]) if line.startswith("WRONG")] == [
        f"WRONG        vkrnn, gru {wide} float32: output 1.0e-03 (at most 2.0e-07)"
    ]
