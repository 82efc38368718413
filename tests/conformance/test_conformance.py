"""Every case on every target of this machine against the float64 reference: forward and gradients."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, CELLS, GATES, Case, by_id, gradient_inputs, gradient_names, inputs
from comparison import assert_close, limits, within_contract
from covering import covering_array, covering_cases
from float32 import Program
from targets import Target, fits, targets
from tolerances import FLOAT32, SAME_IN_FLOAT64
from vkrnn.results import Results

Array = NDArray[Any]

WIDE_OR_LARGE = [case for case in CASES if case.tags & {"wide", "large"}]


def cases_of(target: Target) -> list[Case]:
    """Return the cases for a target: all cases, or a covering array if a CPU runs GPU kernels.

    Such a driver compiles a kernel far more slowly than it runs it, so few of the wide and large cases are included.
    Except in a full run, each case meets one of llvmpipe's five targets.
    """
    if not target.is_costly:
        return list(CASES)
    return list(target.share(covering_cases() + WIDE_OR_LARGE[::5], 5))


def on_every_target() -> pytest.MarkDecorator:
    """Parametrize a test by target and case.

    All cases of a target share an xdist group, so that each kernel is compiled in one process only.
    """
    drawn = [
        pytest.param(target, case, id=f"{target.id}-{case.id}", marks=pytest.mark.xdist_group(target.id))
        for target in targets()
        for case in cases_of(target)
    ]
    return pytest.mark.parametrize(("target", "case"), drawn)


@pytest.fixture(name="devices", scope="module")
def _devices() -> Iterator[dict[Target, vkrnn.Device]]:
    """Keep the targets' devices open between cases. A parametrized fixture would close them after each test."""
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


def forward_names(case: Case, *, training: bool = False) -> list[str]:
    """Return the names of a forward call's results, in order."""
    on = {name for name, value in case.options.items() if value is True} | ({"training"} if training else set())
    names = ["output"]
    if on & {"produce_cell", "training"}:
        names += [f"{name}_output" for name in CELLS[case.cell]]
    if "training" in on:
        names.append("z_state")
    return names


def check_arrays(results: Results, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check names, order, shapes and dtype, and that the caller may write to the arrays."""
    assert [(name, array.shape) for name, array in results._asdict().items()] == list(shapes.items())
    for name, array in results._asdict().items():
        assert getattr(results, name) is array
        assert array.dtype == np.dtype("float32")
        assert array.dtype.isnative
        assert array.flags.c_contiguous
        assert array.flags.writeable


def tolerance(
    case: Case, wanted: Mapping[str, Array], in_float32: Callable[[int], Mapping[str, Array]]
) -> float | Callable[[int], Mapping[str, float]]:
    """Return the fixed tolerance, or the error of float32 programs (one per order of sums) if that is larger."""
    return FLOAT32 if within_contract(case) else lambda order: limits(case, wanted, in_float32(order))


@on_every_target()
def test_forward_and_gradients(case: Case, target: Target, device: vkrnn.Device) -> None:
    """A training call, its gradients and a call without training agree with the reference.

    If the target's strategies do not fit the training call, the device chooses others to compute the gradients' inputs.
    """
    arrays, training = inputs(case), case.descriptor(training=True)
    forward, backward = (getattr(vkrnn, case.cell + ending) for ending in ("", "_gradients"))
    fits_forward = fits(device, target, forward, **arrays, descriptor=training)
    before = {name: array.copy() for name, array in arrays.items()}
    trained = forward(**arrays, descriptor=training, device=device if fits_forward else target.index)
    states = (case.T, case.N, case.D * case.H)
    shapes = dict.fromkeys(("output", *(f"{name}_output" for name in CELLS[case.cell])), states)
    shapes["z_state"] = (case.T, case.N, case.D * case.G * case.H)
    check_arrays(trained, {name: shapes[name] for name in forward_names(case, training=True)})
    wanted = getattr(vkrnn.reference, case.cell)(**arrays, descriptor=training)._asdict()
    allowed = tolerance(case, wanted, lambda order: Program(case, arrays, order=order).forward())
    assert_close(trained._asdict(), wanted, allowed)

    # Without training, other kernels run, which contain the same cell.
    plain = case.descriptor()
    if not (target.is_costly and zlib.crc32(case.id.encode()) % 3) and fits(
        device, target, forward, **arrays, descriptor=plain
    ):
        got = forward(**arrays, descriptor=plain, device=device)
        check_arrays(got, {name: shapes[name] for name in forward_names(case)})
        if fits_forward:
            for name, array in got._asdict().items():
                np.testing.assert_array_equal(array, getattr(trained, name), err_msg=name)
        else:
            assert_close(got._asdict(), {name: wanted[name] for name in got._fields}, allowed)

    # The reference gets the device's training state, so that only the backward pass is compared.
    upstream = gradient_inputs(case, trained)
    if fits(device, target, backward, **arrays, **upstream, descriptor=plain):
        gradients = backward(**arrays, **upstream, descriptor=plain, device=device)
        check_arrays(gradients, {name: case.shape(name) for name in gradient_names(case)})
        wanted = getattr(vkrnn.reference, f"{case.cell}_gradients")(**arrays, **upstream, descriptor=plain)._asdict()
        allowed = tolerance(case, wanted, lambda order: Program(case, arrays, order=order).gradients(upstream))
        assert_close(gradients._asdict(), wanted, allowed)
    elif not fits_forward:
        pytest.skip(f"strategies of {target.id} do not fit this call")
    for name, array in before.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=f"{name} was written to")


def test_every_strategy_is_a_target_and_fits_most_cells() -> None:
    """Each strategy runs a usual call of at least two cells and its gradients, so that skips cannot hide it."""
    for index in {target.index for target in targets()}:
        listed = vkrnn.Device(index).strategies
        fixed = [target for target in targets() if target.index == index and target.options]
        if fixed and "VKRNN_TEST_DEVICE" not in os.environ:
            assert {part: {dict(target.options)[part] for target in fixed} for part in listed} == {
                part: set(names) for part, names in listed.items()
            }
        for target in fixed:
            device = target.opened()
            assert sum(fits_forward_and_gradients(cell, device, target) for cell in GATES) >= 2, target.id
            device.close()


def fits_forward_and_gradients(cell: str, device: vkrnn.Device, target: Target) -> bool:
    """Return whether the target's strategies fit the cell with the options of other libraries, and its gradients."""
    options: dict[str, dict[str, object]] = {"gru": {"reset_after": True}, "single_gate_rnn": {"activation": "tanh"}}
    case = Case(cell, 5, 3, 7, 4, options.get(cell, {}), frozenset({"input_weight", "bias"}))
    arrays = inputs(case)
    trained = getattr(vkrnn.reference, cell)(**arrays, descriptor=case.descriptor(training=True))
    above = {name: array.astype(np.float32) for name, array in gradient_inputs(case, trained).items()}
    return fits(device, target, getattr(vkrnn, cell), **arrays, descriptor=case.descriptor()) and fits(
        device, target, getattr(vkrnn, f"{cell}_gradients"), **arrays, **above, descriptor=case.descriptor()
    )


def test_covering_array_has_every_pair() -> None:
    """It has every pair of values of two factors, in far fewer rows than there are combinations."""
    factors = {"a": "xyz", "b": (0, 1), "c": range(5), "d": (False, True), "e": (False, True)}
    rows = covering_array(factors)
    for one, other in itertools.combinations(factors, 2):
        found = {(row[one], row[other]) for row in rows}
        assert found == set(itertools.product(factors[one], factors[other]))
    assert len(rows) < 25


@pytest.mark.parametrize("case", [case for case in CASES if not case.tags][::5], ids=by_id)
@pytest.mark.parametrize("order", [0, 1])
def test_float32_program_agrees_with_the_reference(case: Case, order: int) -> None:
    """Run in float64, it agrees in any order of sums. Its float32 results are therefore a measure of rounding."""
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
