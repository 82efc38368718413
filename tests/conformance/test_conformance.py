"""Every case of the table on the device against the float64 reference: forward, then gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, Case, gradient_inputs, gradient_names, inputs
from comparison import assert_close, limits, within_contract
from float32 import Program
from tolerances import FLOAT32, SAME_IN_FLOAT64
from vkrnn.results import Results

Array = NDArray[Any]

every_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


def forward_names(case: Case) -> list[str]:
    """Return the results a forward call must have, in order."""
    on = {name for name, value in case.options.items() if value is True}
    names = ["output"]
    if case.cell == "lstm" and on & {"produce_cell", "training"}:
        names.append("cell_output")
    if "training" in on:
        names.append("z_state")
    return names


def check_arrays(results: Results, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check names, order, shapes, dtype, and that the arrays are the caller's to write into."""
    assert [(name, array.shape) for name, array in results._asdict().items()] == list(shapes.items())
    for name, array in results._asdict().items():
        assert getattr(results, name) is array
        assert array.dtype == np.dtype("float32")
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable


def run(case: Case, descriptor: Any, arrays: Mapping[str, Array]) -> tuple[Results, Results]:
    """Return what device and reference make of the forward call."""
    device, reference = (getattr(module, case.cell) for module in (vkrnn, vkrnn.reference))
    return device(**arrays, descriptor=descriptor), reference(**arrays, descriptor=descriptor)


def tolerance(
    case: Case, wanted: Mapping[str, Array], in_float32: Callable[[int], Mapping[str, Array]]
) -> float | Callable[[int], Mapping[str, float]]:
    """Return the fixed tolerance, or beyond it that by programs in float32, given by the number of their order."""
    return FLOAT32 if within_contract(case) else lambda order: limits(case, wanted, in_float32(order))


@every_case
def test_forward(case: Case) -> None:
    arrays = inputs(case)
    before = {name: array.copy() for name, array in arrays.items()}
    got, wanted = run(case, case.descriptor(), arrays)
    states = (case.T, case.N, case.D * case.H)
    shapes = {"output": states, "cell_output": states, "z_state": (case.T, case.N, case.D * case.G * case.H)}
    check_arrays(got, {name: shapes[name] for name in forward_names(case)})
    for name, array in before.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=f"{name} was written to")
    wanted_by_name = wanted._asdict()
    allowed = tolerance(case, wanted_by_name, lambda order: Program(case, arrays, order=order).forward())
    assert_close(got._asdict(), wanted_by_name, allowed)


@every_case
def test_gradients(case: Case) -> None:
    arrays = inputs(case)
    trained = getattr(vkrnn, case.cell)(**arrays, descriptor=case.descriptor(training=True))
    # The reference gets what the device's forward pass left, so that only the backward pass is compared.
    upstream = gradient_inputs(case, trained)
    device, reference = (getattr(module, f"{case.cell}_gradients") for module in (vkrnn, vkrnn.reference))
    got = device(**arrays, **upstream, descriptor=case.descriptor())
    check_arrays(got, {name: case.shape(name) for name in gradient_names(case)})
    wanted = reference(**arrays, **upstream, descriptor=case.descriptor())._asdict()
    allowed = tolerance(case, wanted, lambda order: Program(case, arrays, order=order).gradients(upstream))
    assert_close(got._asdict(), wanted, allowed)


@pytest.mark.parametrize("case", [case for case in CASES if "large" not in case.tags][::7], ids=lambda case: case.id)
def test_training_changes_nothing_but_what_is_returned(case: Case) -> None:
    arrays = inputs(case)
    got, wanted = run(case, case.descriptor(training=True), arrays)
    state = (case.T, case.N, case.D * case.G * case.H)
    assert got.z_state.shape == state
    wanted_by_name = wanted._asdict()
    allowed = tolerance(case, wanted_by_name, lambda order: Program(case, arrays, order=order).forward())
    assert_close(got._asdict(), wanted_by_name, allowed)
    plain = getattr(vkrnn, case.cell)(**arrays, descriptor=case.descriptor(training=False))
    np.testing.assert_array_equal(plain.output, got.output)


@pytest.mark.parametrize("case", [case for case in CASES if not case.tags][::5], ids=lambda case: case.id)
@pytest.mark.parametrize("order", [0, 1])
def test_the_float32_program_is_right(case: Case, order: int) -> None:
    """In float64 it agrees with the reference, in any order: what it says about float32 can be relied on."""
    arrays = inputs(case)
    descriptor = case.descriptor(training=True)
    trained = getattr(vkrnn.reference, case.cell)(**arrays, descriptor=descriptor)
    upstream = gradient_inputs(case, trained)
    gradients = getattr(vkrnn.reference, f"{case.cell}_gradients")(**arrays, **upstream, descriptor=descriptor)
    program = Program(case, arrays, np.float64, order)
    forward = program.forward()
    assert_close({name: forward[name] for name in trained._asdict()}, trained._asdict(), SAME_IN_FLOAT64)
    assert_close(program.gradients(upstream), gradients._asdict(), SAME_IN_FLOAT64)
    narrow = Program(case, arrays, order=order)
    assert {array.dtype for array in narrow.forward().values()} == {np.dtype(np.float32)}
    assert {array.dtype for array in narrow.gradients(upstream).values()} == {np.dtype(np.float32)}
