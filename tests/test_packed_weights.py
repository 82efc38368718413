"""Weights on the device: what a call packs of them stays with them, until somebody may have changed them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import GATES, Case, inputs
from resident import above, assert_same, numbers, opened, put

WEIGHTS = ("recurrent_weight", "input_weight")
# Of sizes whose weights llvmpipe's kernels read packed: in products outside the time loop, and in it by the kernels of
# the products (many rows) and by those of the cells.
SIZES = ((3, 40, 64, 256), (17, 2, 64, 128))

# Ways for the host to look at an array, all of which can write it.
LOOKS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array.numpy(),
    "asarray": np.asarray,
    "memoryview": lambda array: np.asarray(memoryview(array)),
    "dlpack": np.from_dlpack,
    "part": lambda array: array[1:].numpy(),
}


def case_of(cell: str, sizes: tuple[int, int, int, int], *, bidirectional: bool = False) -> Case:
    """Return a case of a variant that has kernels of llvmpipe's flavours."""
    options = {"bidirectional": bidirectional} | ({"reset_after": True} if cell == "gru" else {})
    return Case(cell, *sizes, options, frozenset({"input_weight", "bias"}))


def both(case: Case, given: dict[str, Any], device: vkrnn.Device) -> tuple[Any, Any]:
    """Return the results of a training call and of its gradients."""
    forward = getattr(vkrnn, case.cell)(**given, descriptor=case.descriptor(training=True), device=device)
    taken = above(case, forward, np.dtype(np.float32), device)
    gradients = getattr(vkrnn, f"{case.cell}_gradients")
    return forward, gradients(**given, **taken, descriptor=case.descriptor(), device=device)


def dispatches(device: vkrnn.Device, work: Callable[[], object]) -> int:
    """Return how many dispatches the work takes."""
    before = device.statistics()["dispatches"]
    work()
    return int(device.statistics()["dispatches"] - before)


def packs(device: vkrnn.Device) -> bool:
    """Return whether the device's kernels read packed weights."""
    return device.flavour.gemm in ("broadcast", "loops")


def by_view(array: vkrnn.Array, new: Any) -> None:
    """Write an array as the host does that sees it."""
    array.device.synchronize()
    if array.host_visible:
        array.numpy()[...] = new
    else:
        array.copy_from(new)


def by_result(array: vkrnn.Array, new: Any) -> None:
    """Write an array on its device, as the result of a call: a step of a cell that hands its source through."""
    columns = array.shape[-1]
    rows = array.size // columns
    linear = vkrnn.SingleGateRNNDescriptor(activation="none")
    source = vkrnn.asarray(new.reshape(1, rows, columns), device=array.device)
    out = vkrnn.Array(array, 0, [1, rows, columns])
    vkrnn.single_gate_rnn(source, vkrnn.zeros((columns, columns), device=array.device), descriptor=linear, out=out)


CHANGES: dict[str, Callable[[vkrnn.Array, Any], None]] = {
    "copy_from": vkrnn.Array.copy_from,
    "view": by_view,
    "result": by_result,
}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_answers_are_those_of_the_weights(
    either: vkrnn.Device, cell: str, sizes: tuple[int, int, int, int], *, bidirectional: bool
) -> None:
    """To the bit what NumPy arrays give, however often, and after every kind of change."""
    case = case_of(cell, sizes, bidirectional=bidirectional)
    given: dict[str, Any] = {**inputs(case)}
    resident = put(given, either)
    for change in (None, *CHANGES.values()):
        if change is not None:
            for name in WEIGHTS:
                flat = given[name].reshape(-1, given[name].shape[-1])
                given[name] = np.ascontiguousarray(flat[::-1]).reshape(given[name].shape)
                change(resident[name], given[name])
        forward, gradients = both(case, given, either)
        for _ in range(4):
            again, back = both(case, resident, either)
            assert_same(again, forward)
            assert_same(back, gradients)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("cell", GATES)
def test_they_are_packed_once(either: vkrnn.Device, cell: str, sizes: tuple[int, int, int, int]) -> None:
    """By the first call, and by the first one after a change; not again by calls of other lengths."""
    case = case_of(cell, sizes)
    given = {**inputs(case)}
    resident = put(given, either)

    def call(arguments: dict[str, Any]) -> int:
        function = getattr(vkrnn, cell)
        return dispatches(either, lambda: function(**arguments, descriptor=case.descriptor(), device=either))

    packing = call(given)
    assert [call(given), call(resident)] == [packing, packing]
    reading = call(resident)
    assert (reading < packing) == packs(either)
    assert [call(resident) for _ in range(3)] == [reading] * 3
    longer = {"source": numbers((case.T + 2, case.N, case.I))}
    assert (call(resident | put(longer, either)) < call(given | longer)) == packs(either)
    for name in WEIGHTS:
        resident[name].copy_from(given[name])
        assert (call(resident) > reading) == packs(either)
        assert call(resident) == reading


@pytest.mark.parametrize("look", LOOKS)
def test_not_while_the_host_may_write(look: str) -> None:
    """Through whatever it looks at them with, and for as long as it holds that."""
    case = case_of("lstm", SIZES[1])
    given = {**inputs(case)}
    with opened("mapped") as device:
        resident = put(given, device)
        if not resident["source"].host_visible:
            pytest.skip("the device's memory is not the host's")

        def output() -> tuple[Any, int]:
            results = []
            count = dispatches(device, lambda: results.append(vkrnn.lstm(**resident, device=device).output.numpy()))
            return results[0], count

        output()
        reading = output()[1]
        view = LOOKS[look](resident["recurrent_weight"])
        for scale in (1, 2, -1):
            view *= np.float32(scale)
            given["recurrent_weight"] = resident["recurrent_weight"].numpy().copy()
            wanted = vkrnn.lstm(**given, device=device).output
            got, count = output()
            np.testing.assert_array_equal(got, wanted)
            assert (count > reading) == packs(device)
        part = view[:1]  # of the same memory
        del view
        part += np.float32(1)
        given["recurrent_weight"] = resident["recurrent_weight"].numpy().copy()
        del part
        gc.collect()
        wanted = vkrnn.lstm(**given, device=device).output
        for once in (True, False):
            got, count = output()
            np.testing.assert_array_equal(got, wanted)
            assert (count > reading) == (once and packs(device))


def test_packed_copies_go_with_the_weights() -> None:
    """Memory is as before once they are gone, but for what is kept to be used again."""
    case = case_of("lstm", SIZES[0])
    with opened("staged") as device:
        held = []
        for _ in range(6):
            resident = put(inputs(case), device)
            both(case, resident, device)
            del resident
            gc.collect()
            held.append(device.statistics()["bytes_allocated"])
        assert held[2:] == [held[2]] * 4
