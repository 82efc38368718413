"""Weights in device arrays: the CPU caches them in its kernels' order until they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from cases import GATES, OPTIONAL, UPSTREAM, Case, inputs
from resident import above, assert_same, dtype_of, opened, put
from vkrnn import SingleGateRNNDescriptor

Array = NDArray[Any]

LINEAR = SingleGateRNNDescriptor(activation="none")


@pytest.fixture(name="cpu", scope="module")
def _cpu() -> Iterator[vkrnn.Device]:
    with opened("native") as device:
        yield device


def write_result(weight: vkrnn.Array, whole: vkrnn.Array, value: Array) -> None:
    """Write the value with a call that returns its source, with `weight` as its result."""
    zeros = np.zeros((value.shape[-1],) * 2, value.dtype)
    # One step per direction.
    out, source = (whole, value[None]) if value.ndim == 2 else (weight, value)
    vkrnn.single_gate_rnn(source, zeros, descriptor=LINEAR, out=out)


def write_view(weight: vkrnn.Array, whole: vkrnn.Array, value: Array) -> None:
    """Write through a NumPy view and drop it."""
    del whole
    weight.numpy()[...] = value


def write_rows(weight: vkrnn.Array, whole: vkrnn.Array, value: Array) -> None:
    """Copy each row into a part of the array."""
    del whole
    for part, row in zip(weight, value, strict=True):
        part.copy_from(row)


WRITES: dict[str, Callable[[vkrnn.Array, vkrnn.Array, Array], None]] = {
    "copy_from": lambda weight, whole, value: weight.copy_from(value),  # noqa: ARG005
    "copy_from of the whole": lambda weight, whole, value: whole.copy_from(value[None]),  # noqa: ARG005
    "out": write_result,
    "view": write_view,
    "rows": write_rows,
}


class Layer:
    """A case whose weights are device arrays. The recurrent weight is a part of another array."""

    def __init__(self, case: Case, dtype: str, device: vkrnn.Device) -> None:
        """Put everything on the device."""
        self.case, self.kind, self.device = case, dtype_of(dtype), device
        self.arrays: dict[str, Any] = {name: array.astype(self.kind) for name, array in inputs(case).items()}
        self.resident = put(self.arrays, device)
        self.whole = vkrnn.asarray(self.arrays["recurrent_weight"][None], device=device)
        self.resident["recurrent_weight"] = self.whole[0]

    def check(self) -> None:
        """Compare bits with calls on NumPy arrays, which cache nothing; twice, so that the cache is used."""
        forward, gradients = (getattr(vkrnn, self.case.cell + ending) for ending in ("", "_gradients"))
        descriptor = self.case.descriptor(training=True)
        wanted = forward(**self.arrays, descriptor=descriptor, device=self.device)
        upstream = above(self.case, wanted, self.kind)
        changed = gradients(**self.arrays, **upstream, descriptor=descriptor, device=self.device)
        for _ in range(2):
            assert_same(forward(**self.resident, descriptor=descriptor), wanted)
            assert_same(gradients(**self.resident, **upstream, descriptor=descriptor), changed)

    def change(self, write: Callable[[vkrnn.Array, vkrnn.Array, Array], None], factor: float) -> None:
        """Write a new recurrent weight on the device and in NumPy."""
        weight = self.arrays["recurrent_weight"] * self.kind.type(factor)
        self.arrays["recurrent_weight"] = weight
        write(self.resident["recurrent_weight"], self.whole, weight)


def full(cell: str, *, bidirectional: bool = False) -> Case:
    """Return a case with every argument, where H is not a multiple of a vector."""
    options: dict[str, Any] = {"bidirectional": True} if bidirectional else {}
    if cell == "single_gate_rnn":
        options["activation"] = "tanh"
    return Case(cell, 5, 3, 7, 21, options, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])))


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
@pytest.mark.parametrize("how", WRITES)
def test_written_weights_are_used(cpu: vkrnn.Device, cell: str, dtype: str, how: str, *, bidirectional: bool) -> None:
    """Forward and gradients use the current weights, however they were written."""
    layer = Layer(full(cell, bidirectional=bidirectional), dtype, cpu)
    layer.check()
    for factor in (0.5, -1.25):
        layer.change(WRITES[how], factor)
        layer.check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_writes_through_a_live_view_are_used(cpu: vkrnn.Device, dtype: str) -> None:
    """The device cannot see such writes, so it caches nothing as long as a view exists."""
    layer = Layer(full("lstm"), dtype, cpu)
    layer.check()
    view = layer.resident["recurrent_weight"].numpy()
    for factor in (0.5, -1.25, 3.0):
        view *= layer.kind.type(factor)
        layer.arrays["recurrent_weight"] = view.copy()
        layer.check()
    view *= layer.kind.type(0.25)
    layer.arrays["recurrent_weight"] = view.copy()
    del view
    layer.check()


def test_parts_of_one_array_are_cached_separately(cpu: vkrnn.Device) -> None:
    """Two layers whose weights are parts of one array use their own weights."""
    case = full("gru")
    arrays: dict[str, Any] = {**inputs(case)}
    weights = np.stack([arrays["recurrent_weight"], arrays["recurrent_weight"] * np.float32(-0.5)])
    both = vkrnn.asarray(weights, device=cpu)
    for factor in (1.0, 2.0, 0.25):
        weights[1] *= np.float32(factor)
        both[1].copy_from(weights[1])
        for layer in (0, 1, 0, 1):
            got = vkrnn.gru(**arrays | {"recurrent_weight": both[layer]}, descriptor=case.descriptor())
            wanted = vkrnn.gru(
                **arrays | {"recurrent_weight": weights[layer]}, descriptor=case.descriptor(), device=cpu
            )
            assert_same(got, wanted)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("sizes", [(1, 7, 21), (1, 300, 150), (3, 5, 400), (8, 40, 33), (9, 7, 21)], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "bidirectional"])
def test_a_single_step_does_not_pack_weights(
    cpu: vkrnn.Device, cell: str, dtype: str, sizes: tuple[int, int, int], *, bidirectional: bool
) -> None:
    """For few rows, NumPy weights are not packed, and the bits are the same."""
    N, inputs_, units = sizes
    case = replace(full(cell, bidirectional=bidirectional), T=1, N=N, I=inputs_, H=units)
    layer = Layer(case, dtype, cpu)
    layer.check()
    before = cpu.statistics()["dispatches"]
    getattr(vkrnn, cell)(**layer.arrays, descriptor=case.descriptor(), device=cpu)
    dispatches = cpu.statistics()["dispatches"] - before
    copies = 3 if cell == "slstm" else 0  # of the initial c, n and m to one tensor
    if dtype != "float16":  # whose weights are widened in each call
        assert dispatches - copies == (1 if N <= 8 else 3), "one time loop, and packing of two weights for many rows"
