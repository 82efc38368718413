"""Plans of the cases' calls, on a device on which they are the same on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vkrnn
from cases import CELLS, OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from resident import position

__all__ = ["PORTABLE", "dispatches", "full", "plan", "portable_device", "zeros"]

Array = NDArray[Any]

# Strategies that every Vulkan device can run, so that plans do not depend on where the tests run.
PORTABLE: dict[str, Any] = {"gemm": "tiled", "lanes": 1, "rows": 2, "workgroup": 32}


def portable_device(**changes: Any) -> vkrnn.Device:
    """Open another Vulkan device, with portable strategies."""
    return vkrnn.Device(position(native=False), **{**PORTABLE, **changes})


def full(cell: str, sizes: tuple[int, int, int, int], options: Mapping[str, Any]) -> Case:
    """Return a case with every argument."""
    return Case(cell, *sizes, options, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])))


def zeros(case: Case, *, gradients: bool) -> dict[str, Array]:
    """Return arrays of the right shapes. Their contents do not matter for a plan."""
    arrays = inputs(case)
    if not gradients:
        return arrays
    states = np.zeros((case.T, case.N, case.D * case.H), np.float32)
    gates = np.zeros((case.T, case.N, case.D * case.G * case.H), np.float32)
    cells = [f"{name}_output" for name in CELLS[case.cell]]
    forward = vkrnn.Results(case.cell, ["output", *cells, "z_state"], [states, *(states for _ in cells), gates])
    return arrays | gradient_inputs(case, forward)


def plan(case: Case, device: vkrnn.Device | None, *, gradients: bool = False, **changes: Any) -> vkrnn.Plan:
    """Return the plan of a case's forward or gradient call."""
    function = getattr(vkrnn, case.cell + ("_gradients" if gradients else ""))
    arrays = zeros(case, gradients=gradients)
    return vkrnn.plan(function, **arrays, descriptor=case.descriptor(**changes), device=device)


def dispatches(planned: vkrnn.Plan) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the dispatches before, in and after the only loop."""
    (at,) = (i for i, step in enumerate(planned.steps) if step["kind"] == "loop")
    before, after = ([s for s in part if s["kind"] == "dispatch"] for part in (planned.steps[:at], planned.steps[at:]))
    loop: Any = planned.steps[at]
    return before, loop["body"], after
