"""Every case of the table on every target of this machine against the float64 reference: forward, then gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, GATES, Case, gradient_inputs, gradient_names, inputs
from comparison import assert_close, limits, within_contract
from covering import covering
from float32 import Program
from targets import Target, fits, require_fit, targets
from tolerances import FLOAT32, SAME_IN_FLOAT64
from vkrnn.results import Results

Array = NDArray[Any]

# A GPU's kernels that a CPU runs are compiled anew for nearly every case, which takes far longer than to run them. So a
# strategy that is fixed there has a third of the wide and large cases, and of the others those that have every pair of
# properties. Of forward calls that do not train it has the first half of these, with nearly all of the pairs: the test
# of the gradients trains in each of its cases.
COSTLY = [case for case in CASES if case.tags & {"wide", "large"}]
UNTAGGED = [case for case in CASES if case not in COSTLY]
TARGETS = [(target, target.id, target.is_costly) for target in targets()]
NOT_LARGE = [case for case in CASES if "large" not in case.tags]
COVERING = covering(UNTAGGED)
SOME, FEW = COVERING + COSTLY[::3], COVERING[: len(COVERING) // 2] + COSTLY[::3]


def on_every_target(cases: Sequence[Case], where_costly: Sequence[Case]) -> pytest.MarkDecorator:
    """Parametrize a test by target and case.

    Those of a target stay in one process under xdist's loadgroup, so that kernels that cases share are compiled once.
    """
    drawn = [
        pytest.param(target, case, id=f"{name}-{case.id}", marks=pytest.mark.xdist_group(name))
        for target, name, is_costly in TARGETS
        for case in (where_costly if is_costly else cases)
    ]
    return pytest.mark.parametrize(("target", "case"), drawn)


@pytest.fixture(name="devices", scope="module")
def _devices() -> Iterator[dict[Target, vkrnn.Device]]:
    """Keep the targets' devices open from case to case: a fixture with a parameter would end with each test."""
    devices: dict[Target, vkrnn.Device] = {}
    yield devices
    for device in devices.values():
        device.close()


@pytest.fixture(name="device")
def _device(target: Target, devices: dict[Target, vkrnn.Device]) -> vkrnn.Device:
    """Return the target's device."""
    if target not in devices:
        devices[target] = target.opened()
    return devices[target]


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


def run(case: Case, descriptor: Any, arrays: Mapping[str, Array], device: vkrnn.Device) -> tuple[Results, Results]:
    """Return what device and reference make of the forward call."""
    ours, reference = (getattr(module, case.cell) for module in (vkrnn, vkrnn.reference))
    return ours(**arrays, descriptor=descriptor, device=device), reference(**arrays, descriptor=descriptor)


def tolerance(
    case: Case, wanted: Mapping[str, Array], in_float32: Callable[[int], Mapping[str, Array]]
) -> float | Callable[[int], Mapping[str, float]]:
    """Return the fixed tolerance, or beyond it that by programs in float32, given by the number of their order."""
    return FLOAT32 if within_contract(case) else lambda order: limits(case, wanted, in_float32(order))


@on_every_target(CASES, where_costly=FEW)
def test_forward(case: Case, target: Target, device: vkrnn.Device) -> None:
    arrays = inputs(case)
    require_fit(device, target, getattr(vkrnn, case.cell), **arrays, descriptor=case.descriptor())
    before = {name: array.copy() for name, array in arrays.items()}
    got, wanted = run(case, case.descriptor(), arrays, device)
    states = (case.T, case.N, case.D * case.H)
    shapes = {"output": states, "cell_output": states, "z_state": (case.T, case.N, case.D * case.G * case.H)}
    check_arrays(got, {name: shapes[name] for name in forward_names(case)})
    for name, array in before.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=f"{name} was written to")
    wanted_by_name = wanted._asdict()
    allowed = tolerance(case, wanted_by_name, lambda order: Program(case, arrays, order=order).forward())
    assert_close(got._asdict(), wanted_by_name, allowed)


@on_every_target(CASES, where_costly=SOME)
def test_gradients(case: Case, target: Target, device: vkrnn.Device) -> None:
    arrays, training = inputs(case), case.descriptor(training=True)
    forward = getattr(vkrnn, case.cell)
    there = fits(device, target, forward, **arrays, descriptor=training)
    trained = forward(**arrays, descriptor=training, device=device if there else target.index)
    trained_by_reference = getattr(vkrnn.reference, case.cell)(**arrays, descriptor=training)._asdict()
    allowed = tolerance(case, trained_by_reference, lambda order: Program(case, arrays, order=order).forward())
    assert_close(trained._asdict(), trained_by_reference, allowed)
    # The reference gets what the device's forward pass left, so that only the backward pass is compared.
    upstream = gradient_inputs(case, trained)
    ours, reference = (getattr(module, f"{case.cell}_gradients") for module in (vkrnn, vkrnn.reference))
    require_fit(device, target, ours, **arrays, **upstream, descriptor=case.descriptor())
    got = ours(**arrays, **upstream, descriptor=case.descriptor(), device=device)
    check_arrays(got, {name: case.shape(name) for name in gradient_names(case)})
    wanted = reference(**arrays, **upstream, descriptor=case.descriptor())._asdict()
    allowed = tolerance(case, wanted, lambda order: Program(case, arrays, order=order).gradients(upstream))
    assert_close(got._asdict(), wanted, allowed)


@on_every_target(NOT_LARGE[::7], where_costly=FEW[::3])
def test_training_changes_nothing_but_what_is_returned(case: Case, target: Target, device: vkrnn.Device) -> None:
    arrays = inputs(case)
    for training in (False, True):
        descriptor = case.descriptor(training=training)
        require_fit(device, target, getattr(vkrnn, case.cell), **arrays, descriptor=descriptor)
    got, wanted = run(case, case.descriptor(training=True), arrays, device)
    state = (case.T, case.N, case.D * case.G * case.H)
    assert got.z_state.shape == state
    wanted_by_name = wanted._asdict()
    allowed = tolerance(case, wanted_by_name, lambda order: Program(case, arrays, order=order).forward())
    assert_close(got._asdict(), wanted_by_name, allowed)
    plain = getattr(vkrnn, case.cell)(**arrays, descriptor=case.descriptor(training=False), device=device)
    np.testing.assert_array_equal(plain.output, got.output)


def test_every_strategy_is_a_target_and_fits_most_cells() -> None:
    """So that skipping what does not fit hides nothing: each runs the usual call of two cells, there and back."""
    for index in {target.index for target in targets()}:
        listed = vkrnn.Device(index).strategies
        fixed = [target for target in targets() if target.index == index and target.options]
        if fixed and "VKRNN_TEST_DEVICE" not in os.environ:
            assert {part: {dict(target.options)[part] for target in fixed} for part in listed} == {
                part: set(names) for part, names in listed.items()
            }
        for target in fixed:
            device = target.opened()
            assert sum(fits_there_and_back(cell, device, target) for cell in GATES) >= 2, target.id
            device.close()


def fits_there_and_back(cell: str, device: vkrnn.Device, target: Target) -> bool:
    """Return whether the target's strategies fit a call of the cell as other libraries have it, and its gradients."""
    options: dict[str, dict[str, object]] = {"gru": {"reset_after": True}, "single_gate_rnn": {"activation": "tanh"}}
    case = Case(cell, 5, 3, 7, 4, options.get(cell, {}), frozenset({"input_weight", "bias"}))
    arrays = inputs(case)
    trained = getattr(vkrnn.reference, cell)(**arrays, descriptor=case.descriptor(training=True))
    above = {name: array.astype(np.float32) for name, array in gradient_inputs(case, trained).items()}
    return fits(device, target, getattr(vkrnn, cell), **arrays, descriptor=case.descriptor()) and fits(
        device, target, getattr(vkrnn, f"{cell}_gradients"), **arrays, **above, descriptor=case.descriptor()
    )


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
