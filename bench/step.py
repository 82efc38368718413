"""One step of one row with its state passed on, from Python and C++, compared with other libraries.

From Python: `vkrnn.stream`, ONNX Runtime, handwritten NumPy, PyTorch's module, the same converted, the same frozen, and
a node of a model prepared by `vkrnn.onnx`. From C++, in a separate program: `vkrnn::Stream`, a step of a block, and the
same step written with Eigen as audio plug-ins do. Build that program with ``cmake -DVKRNN_BENCH=ON`` (Eigen: ``apt
install libeigen3-dev``); ``--program`` gives its path.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import vkrnn
from vkrnn import reference

from . import common
from .baseline_numpy import blas
from .baseline_onnxruntime import Modules, find_onnxruntime, model_of, session_of
from .baseline_torch import TorchCell, find_torch
from .common import STEP, Contender, Floats, Problem, Sizes, cpu_name, milliseconds, show, table
from .problems import Arrays, descriptor

STEPS = 100  # length of the sequence that every contender computes step by step
HIDDEN = (64, 128, 256, 512)
NATIVE = (("lstm", 1, 16), ("lstm", 1, 24), *((cell, n, n) for n in (24, 64, 96, 128, 256) for cell in ("lstm", "gru")))
PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "native" / "bench_step"
ABOVE_BLOCK = 0.1e-6
MODULE, FROZEN, NODE = "vkrnn.torch", "vkrnn.torch, frozen", "vkrnn.onnx"
# Contenders with the largest allowed ratio of their time to another contender's.
CEILINGS = {MODULE: ("torch", 1.0), FROZEN: (MODULE, 1.0), NODE: ("onnxruntime", 1.5)}

Step = Callable[[Floats], Floats]


def _contender(name: str, driver: str, arrays: Arrays, start: Callable[[], Step]) -> Contender:
    """Return a contender that computes the sequence step by step; `start` resets the state."""
    rows = list(arrays.given["source"])

    def run() -> dict[str, float]:
        step = start()
        begun = time.perf_counter()
        for x in rows:
            step(x)
        return {STEP: (time.perf_counter() - begun) / len(rows)}

    def answer() -> dict[str, Floats]:
        step = start()
        return {"output": np.stack([step(x).copy() for x in rows])}

    return Contender(name, cpu_name(), driver, run, answer)


def _on_stream(arrays: Arrays) -> Contender:
    weights = {name: array for name, array in arrays.given.items() if name != "source"}
    stream = vkrnn.stream((arrays.cell, weights, descriptor(arrays.cell)))

    def start() -> Step:
        stream.reset()
        return stream.step

    return _contender("vkrnn", stream.device.driver_version, arrays, start)


def _states(arrays: Arrays) -> list[str]:
    return ["h", "c"] if arrays.cell == "lstm" else ["h"]


def _on_model(name: str, driver: str, arrays: Arrays, run: Callable[[Any], Any]) -> Contender:
    """Return a contender that runs a model of one node; `run` takes its inputs by name and returns the last states."""
    states = _states(arrays)

    def start() -> Step:
        given = {state: np.zeros((1, 1, arrays.sizes.H), np.float32) for state in states}

        def step(x: Floats) -> Floats:
            given["X"] = x[None]
            results = run(given)
            given.update(zip(states, results, strict=True))
            output: Floats = results[0][0]
            return output

        return step

    return _contender(name, driver, arrays, start)


def _on_onnxruntime(modules: Modules, arrays: Arrays) -> Contender:
    session, driver = session_of(modules, model_of(modules, arrays, 1, _states(arrays)))
    names = [f"{state}_n" for state in _states(arrays)]
    return _on_model("onnxruntime", driver, arrays, lambda given: session.run(names, given))


def _on_node(modules: Modules, arrays: Arrays) -> Contender:
    """Return the node of a prepared model as a contender, without ONNX's evaluator."""
    states = _states(arrays)
    prepared = importlib.import_module(NODE).Backend.prepare(model_of(modules, arrays, 1, states), runtime="evaluator")
    [node], weights = prepared._runner.rt_nodes_, prepared._runner.rt_inits_  # noqa: SLF001

    def run(given: Any) -> Any:
        with prepared.device:
            inputs = (given["X"], weights["W"], weights["R"], weights["B"], None, *(given[state] for state in states))
            return node.run(*inputs)[1:]

    return _on_model(NODE, prepared.device.driver_version, arrays, run)


def _on_modules(torch: Any, arrays: Arrays) -> Iterator[Contender]:
    """Yield PyTorch's module, the same converted, and the same frozen."""
    for name in ("torch", MODULE, FROZEN):
        module = TorchCell(torch, arrays, "cpu", gradients=False).module
        if name != "torch":
            importlib.import_module(MODULE).convert(module, frozen=name == FROZEN)

        def start(module: Any = module) -> Step:
            states: Any = None

            def step(x: Floats) -> Floats:
                nonlocal states
                with torch.no_grad():
                    output, states = module(torch.from_numpy(x[None]), states)
                found: Floats = output[0].numpy()
                return found

            return step

        yield _contender(name, f"torch {torch.__version__}", arrays, start)


def _numpy_lstm(arrays: Arrays) -> Callable[[], Step]:
    given, H = arrays.given, arrays.sizes.H
    W, R = (np.ascontiguousarray(given[name].T) for name in ("input_weight", "recurrent_weight"))
    bias = given["bias"]
    # All gates are activated at once, since sigmoid(x) = tanh(x / 2) / 2 + 1 / 2.
    scale, shift = np.full(4 * H, 0.5, np.float32), np.full(4 * H, 0.5, np.float32)
    scale[2 * H : 3 * H], shift[2 * H : 3 * H] = 1, 0

    def start() -> Step:
        h, c = (np.zeros((1, H), np.float32) for _ in range(2))

        def step(x: Floats) -> Floats:
            nonlocal h, c
            a = x @ W
            a += h @ R
            a += bias
            a *= scale
            np.tanh(a, out=a)
            a *= scale
            a += shift
            c = a[:, H : 2 * H] * c + a[:, :H] * a[:, 2 * H : 3 * H]
            h = a[:, 3 * H :] * np.tanh(c)
            return h

        return step

    return start


def _numpy_gru(arrays: Arrays) -> Callable[[], Step]:
    given, H = arrays.given, arrays.sizes.H
    W, R = (np.ascontiguousarray(given[name].T) for name in ("input_weight", "recurrent_weight"))
    bias, secondary_bias = given["bias"], given["secondary_bias"]

    def start() -> Step:
        h = np.zeros((1, H), np.float32)

        def step(x: Floats) -> Floats:
            nonlocal h
            outside, inside = x @ W, h @ R
            outside += bias
            gates = outside[:, : 2 * H] + inside[:, : 2 * H]
            gates *= 0.5
            np.tanh(gates, out=gates)
            gates *= 0.5
            gates += 0.5
            r, z = gates[:, :H], gates[:, H:]
            o = np.tanh(outside[:, 2 * H :] + r * (inside[:, 2 * H :] + secondary_bias))
            h = o + z * (h - o)
            return h

        return step

    return start


_NUMPY = {"lstm": _numpy_lstm, "gru": _numpy_gru}


def problems(hidden: Sequence[int]) -> Iterator[Problem]:
    """Yield the steps of each cell at each size."""
    modules, torch = find_onnxruntime(), find_torch()
    for cell in ("lstm", "gru"):
        for H in hidden:
            sizes = Sizes(STEPS, 1, H, H)
            arrays = Arrays.draw(cell, sizes)
            contenders = [
                _on_stream(arrays),
                _contender("numpy", f"NumPy {np.__version__}, {blas()}", arrays, _NUMPY[cell](arrays)),
            ]
            if modules is not None:
                contenders += [_on_onnxruntime(modules, arrays), _on_node(modules, arrays)]
            if torch is not None:
                contenders += _on_modules(torch, arrays)
            flops = 2.0 * len(arrays.given["recurrent_weight"]) * 2 * H
            ideal = {"output": arrays.forward(reference).output}
            yield Problem(f"{cell} step", str(sizes), 2 * 4 * H, flops, ideal, contenders)


def native(program: Path, sizes: Sequence[tuple[str, int, int]], rounds: int, turn: float) -> list[dict[str, Any]]:
    """Run the C++ program, which checks every answer, and return its measurements."""
    words = [str(word) for size in sizes for word in size]
    done = subprocess.run([program, str(rounds), str(turn), *words], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _show_native(measured: list[dict[str, Any]]) -> None:
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for line in measured:
        times.setdefault((line["cell"], line["I"], line["H"]), {})[line["contender"]] = line["median"]
    rows, verdicts = [], []
    for (cell, inputs, hidden), by in times.items():
        what, stream, block = f"{cell} {inputs} x {hidden}", by["vkrnn::Stream"], by["block"]
        eigen = by.get("Eigen")
        rows.append(
            [
                what,
                *map(milliseconds, (stream, block)),
                milliseconds(eigen) if eigen else "-",
                f"{stream / eigen:.2f}" if eigen else "-",
            ]
        )
        above = (stream - block) * 1e6
        verdicts.append(common.verdict(f"{what}, above a block's step", above, ABOVE_BLOCK * 1e6, "us", at_least=False))
        if eigen:
            verdicts.append(common.verdict(f"{what}, of Eigen's time", stream / eigen, 1.0, "", at_least=False))
    show(["From C++, one thread", "", *table(["I x H", "Stream", "block", "Eigen", "Stream / Eigen"], rows), ""])
    show(verdicts)


def main() -> None:
    """Measure, print tables, say whether the floors were reached."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="the C++ program (%(default)s)")
    options = parser.parse_args()
    hidden = (8,) if options.smoke else HIDDEN
    pace = replace(common.pace_of(options), warm_up=0.05, turn=0.05)
    rows, verdicts = [], []
    for records in common.measure_all(problems(hidden), 2 * len(hidden), pace, options.output):
        times = {record.implementation: record.median for record in records}
        stream, op = times.pop("vkrnn"), f"{records[0].op} {records[0].workload}"
        rows.append([op, milliseconds(stream), *(milliseconds(times[name]) for name in sorted(times))])
        verdicts += [
            common.verdict(f"{op}, of {name}'s time", stream / times[name], 1.0, "", at_least=False)
            for name in ("numpy", "onnxruntime")
            if name in times
        ]
        verdicts += [
            common.verdict(f"{op}, {own} of {other}'s time", times[own] / times[other], ceiling, "", at_least=False)
            for own, (other, ceiling) in CEILINGS.items()
            if own in times
        ]
        names = sorted(times)
    show(["From Python, medians", "", *table(["operation", "vkrnn.stream", *names], rows), ""])
    show([*verdicts, ""])
    if options.program.exists():
        sizes = (("lstm", 1, 16),) if options.smoke else NATIVE
        _show_native(native(options.program, sizes, 1 if options.smoke else 3 * options.rounds, 0.02))
    else:
        show([f"{options.program} is not there: build it with cmake -DVKRNN_BENCH=ON"])


if __name__ == "__main__":
    main()
