"""Packed sequences agree with calls that have `lengths`; their cost is the sum of the lengths."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from cases import CASES, Case, gradient_inputs, inputs, lengths_of
from resident import position
from vkrnn import _core

Array = NDArray[Any]
Arrays = dict[str, Array]

SEQUENCES = (
    *("source", "source_gradient", "z_state", "output_fwd", "output"),
    *(f"{name}_output{kind}" for name in ("cell", "normalizer", "stabilizer") for kind in ("", "_fwd")),
)
PLAIN = [case for case in CASES if not case.tags and case.N > 2 and case.T > 2 and "mask" not in case.present]


def some_of(cases: list[Case]) -> list[Case]:
    """Return one case for each cell, number of directions, kind of reset, with and without an input weight."""
    found: dict[Any, Case] = {}
    for case in cases:
        after = case.options.get("reset_after"), case.options.get("reverse")
        found.setdefault((case.cell, case.D, after, "input_weight" in case.present), case)
    return list(found.values())


def packed(arrays: Mapping[str, Array], lengths: Array) -> Arrays:
    """Return the arrays with every sequence packed."""
    live = np.arange(lengths[0])[:, None] < lengths
    return {
        name: array[: len(live)][live] if name in SEQUENCES and array.ndim == 3 else array
        for name, array in arrays.items()
    }


def on(*, native: bool) -> vkrnn.Device:
    """Open the native CPU device or a Vulkan device."""
    return vkrnn.Device(position(native=native))


def both_ways(case: Case, dtype: Any) -> tuple[Arrays, Arrays]:
    """Return outputs and gradients of packed sequences, and the same of a call with `lengths`."""
    lengths = np.sort(np.maximum(lengths_of(case), 1))[::-1].copy()  # a packed sequence has at least one step
    kind, how = np.dtype(dtype), case.descriptor(training=True)
    forward, backward = getattr(vkrnn, case.cell), getattr(vkrnn, f"{case.cell}_gradients")
    given: Arrays = {name: array.astype(kind) for name, array in inputs(case).items()} | {"lengths": lengths}
    dense = forward(**given, descriptor=how)
    upstream = {name: array.astype(kind) for name, array in gradient_inputs(case, dense).items()}
    dense_gradients = backward(**given, **upstream, descriptor=how)
    wanted = {**dense._asdict(), **{f"d {name}": array for name, array in dense_gradients._asdict().items()}}
    wanted["d source"] = packed({"source": wanted["d source"]}, lengths)["source"]

    def call(given: Arrays, *, gradients: bool) -> Arrays:
        arrays, device = packed(given, lengths), vkrnn.default_device()
        checked = _core.check(case.cell, gradients=gradients, descriptor=how, arguments=arrays, packed=True)
        names = checked.result_names
        return dict(
            zip(names, _core.run(device._open(), checked, [None] * len(names), device, resident=False), strict=True)
        )

    results, gradients = call(given, gradients=False), call({**given, **upstream}, gradients=True)
    got = {**results, **{f"d {name}": array for name, array in gradients.items()}}
    return got, packed(wanted, lengths)


@pytest.mark.parametrize("case", some_of(PLAIN), ids=lambda case: case.id)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_packed_sequences_have_the_same_bits(case: Case, dtype: str) -> None:
    """On the CPU, which computes packed rows directly, packing changes only where the rows are."""
    with on(native=True):
        got, wanted = both_ways(case, dtype)
    assert got.keys() == wanted.keys()
    for name, array in got.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


def draw(lengths: list[int], I: int, H: int) -> Arrays:
    """Return random packed arguments of an LSTM."""
    rng = np.random.default_rng(1)
    shapes = {"source": (sum(lengths), I), "recurrent_weight": (4 * H, H), "input_weight": (4 * H, I)}
    drawn = {name: rng.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    return drawn | {"lengths": np.array(lengths)}


def checked(descriptor: Any, given: Arrays) -> _core.CheckedCall:
    """Return the checked packed call of an LSTM."""
    return _core.check("lstm", gradients=False, descriptor=descriptor, arguments=given, packed=True)


def test_work_follows_the_sum_of_the_lengths() -> None:
    """The FLOP of a packed call's plan and its memory without weights are proportional to that sum."""
    H = 16

    def plan_of(lengths: list[int]) -> Any:
        call = checked(vkrnn.LSTMDescriptor(training=True), draw(lengths, H, H))
        with on(native=True) as device:
            return _core.plan(device._open(), call)

    skewed, even, square = plan_of([1000] + [8] * 125), plan_of([16] * 125), plan_of([1000] * 126)
    assert skewed.flops == even.flops == 2 * 2000 * 4 * H * (H + H)
    assert square.flops == 63 * skewed.flops
    assert 60 < square.bytes / skewed.bytes < 63


WRONG = [
    ([3, 2], 4, "[lstm] source: expected 5 rows, the sum of lengths, got 4"),
    ([2, 3], 5, "[lstm] lengths: expected 1 to 5, longest first, got 3 at [1]"),
    ([5, 0], 5, "[lstm] lengths: expected 1 to 5, longest first, got 0 at [1]"),
]


@pytest.mark.parametrize(("lengths", "rows", "message"), WRONG)
def test_errors_about_packed_rows(lengths: list[int], rows: int, message: str) -> None:
    """Wrong packed rows are reported before anything is computed."""
    given = draw([rows], 3, 4) | {"lengths": np.array(lengths)}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checked(None, given)


# Prints by how many MiB a gradient call with `lengths` and then a packed one make the process grow. The padded steps
# would take 160 MiB.
MEASURE = """
import resource
import numpy as np
import vkrnn
from vkrnn import _core

T, N, I, H = 2000, 64, 8, 64
lengths = np.array([T] + [4] * (N - 1))
live = np.arange(T)[:, None] < lengths
how = vkrnn.LSTMDescriptor(training=True)

def sequence(width):
    found = np.zeros((T, N, width), np.float32)
    found[live] = 0.01
    return found

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

given = {
    "source": sequence(I), "recurrent_weight": np.full((4 * H, H), 0.01, np.float32), "lengths": lengths,
    "input_weight": np.full((4 * H, I), 0.01, np.float32), "source_gradient": sequence(H), "z_state": sequence(4 * H),
    "cell_output_fwd": sequence(H),
}
packed = {name: array[live] if array.ndim == 3 else array for name, array in given.items()}
with vkrnn.Device("cpu ("):
    small = {name: array[:1, :1] if array.ndim == 3 else array for name, array in given.items()}
    vkrnn.lstm_gradients(**small | {"lengths": np.array([1])}, descriptor=how)
    before = peak()
    vkrnn.lstm_gradients(**given, descriptor=how)
    between = peak()
    device = vkrnn.default_device()
    call = _core.check("lstm", gradients=True, descriptor=how, arguments=packed, packed=True)
    _core.run(device._open(), call, [None] * len(call.result_names), device, resident=False)
    print(between - before, peak() - between)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit on other systems")
def test_memory_follows_the_sum_of_the_lengths() -> None:
    """A process does not grow by the memory that padded steps would take."""
    program = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    dense, packed_alone = map(float, program.stdout.split())
    assert dense < 40, f"{dense} MiB with lengths"
    assert packed_alone < 20, f"{packed_alone} MiB packed"
