"""Buffers of a plan that share memory: results stay right, and a call takes less memory than its buffers together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from comparison import assert_close, dtype_limits
from float32 import rounded_program
from scale import sample
from targets import Target, devices, require_fit, targets
from vkrnn import reference

# Memory is shared where a call has a mebibyte of scratch buffers or more; the tables of cases are far below that.
SIZES = (16, 96, 64, 64)


def large(cell: str, dtype: str) -> tuple[Case, dict[str, Any]]:
    """Return a case with every argument, and its inputs."""
    case = Case(cell, *SIZES, {}, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])))
    return case, {name: array.astype(dtype) for name, array in inputs(case).items()}


def below(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the gradients, from the reference's forward call."""
    forward = getattr(reference, case.cell)(**arrays, descriptor=case.descriptor(training=True))
    dtype = arrays["source"].dtype
    return {name: array.astype(dtype) for name, array in gradient_inputs(case, forward).items()}


@pytest.mark.parametrize(("cell", "dtype"), sample([("lstm", "float16"), ("gru", "float32")], 2))
@pytest.mark.parametrize("target", sample(targets(), 2), ids=lambda target: target.id)
def test_right_results(target: Target, cell: str, dtype: str) -> None:
    """Forward, training and gradients of calls whose buffers share memory agree with the reference."""
    (case, arrays), kind = large(cell, dtype), np.dtype(dtype)
    device = target.opened()
    for training in (False, True):
        forward = getattr(vkrnn, cell)
        call: dict[str, Any] = {**arrays, "descriptor": case.descriptor(training=training)}
        require_fit(device, target, forward, **call)
        wanted = getattr(reference, cell)(**call)._asdict()
        program = rounded_program(case, arrays, vkrnn.plan(forward, **call, device=device).strategy)
        limits = dtype_limits(kind, device, wanted, program.forward)
        assert_close(forward(**call, device=device)._asdict(), wanted, limits)
    gradients = getattr(vkrnn, f"{cell}_gradients")
    upstream = below(case, arrays)
    call = {**arrays, **upstream, "descriptor": case.descriptor()}
    require_fit(device, target, gradients, **call)
    plan = vkrnn.plan(gradients, **call, device=device)
    if dtype == "float16":
        assert plan.peak_bytes < plan.bytes
        assert f", at most {plan.peak_bytes / 1e6:.1f} MB at a time" in repr(plan)
    program = rounded_program(case, arrays, plan.strategy)
    wanted = getattr(reference, f"{cell}_gradients")(**call)._asdict()
    limits = dtype_limits(kind, device, wanted, lambda: program.gradients(upstream))
    for _ in range(3):  # a call that is repeated replays its commands
        assert_close(gradients(**call, device=device)._asdict(), wanted, limits)


# The product strategies whose buffers share most memory, best first.
SHARING = ("matrices", "tiled", "native")
SLAB = 2**20  # bytes that a Vulkan device allocates at once for small buffers, such as packed weights


@pytest.mark.parametrize("target", devices(), ids=lambda target: target.id)
def test_memory_of_a_call(target: Target) -> None:
    """What a call on arrays allocates is the plan's peak, rounded up by at most an eighth."""
    case, arrays = large("lstm", "float16")
    arrays |= below(case, arrays)
    products = target.opened().strategies["gemm"]
    options: dict[str, Any] = {**dict(target.options), "gemm": next(name for name in SHARING if name in products)}
    device = vkrnn.Device(target.index, **options)
    resident: dict[str, Any] = {name: vkrnn.asarray(array, device=device) for name, array in arrays.items()}
    call = {**resident, "descriptor": case.descriptor()}
    gradients: Any = vkrnn.lstm_gradients
    plan = vkrnn.plan(gradients, **call)
    own = {role: sum(size for _, each, size in plan.buffers if each == role) for role in ("scratch", "packed")}
    needed = sum(own.values()) - (plan.bytes - plan.peak_bytes)
    before = device.statistics()["bytes_allocated"]
    results = gradients(**call)
    device.synchronize()
    taken = device.statistics()["bytes_allocated"] - before - sum(array.nbytes for array in results)
    limit = needed * 9 / 8 + (SLAB if own["packed"] and device.backend == "vulkan" else 0)
    assert taken <= limit < sum(own.values())
