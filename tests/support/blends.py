"""Arguments of blends, which are zoneout and leaks, for a case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cases import CELLS as CELL_STATES
from cases import Case

Array = NDArray[Any]

KINDS = ("mask", "mask of units", "leak", "leak of units")
"""The argument, and its shape: of all steps, of each unit, or a number."""


def draw_blends(case: Case, kind: str, seed: int = 0) -> dict[str, Array]:
    """Return the arguments of blends, of float32. A third of the parts of masks are 0, and a third are 1."""
    rng = np.random.default_rng([seed, 11])
    width = case.D * case.H
    if kind == "leak":
        return {"leak": np.asarray(rng.uniform(0.2, 0.9), np.float32)}
    if kind == "leak of units":
        return {"leak": rng.uniform(0.2, 0.9, width).astype(np.float32)}
    names = ["zoneout_mask"] + ["zoneout_cell_mask"] * (len(CELL_STATES[case.cell]) == 1)
    shape = (width,) if kind == "mask of units" else (case.T, case.N, width)
    return {name: np.clip(rng.uniform(-1, 2, shape), 0, 1).astype(np.float32) for name in names}


def with_output(upstream: dict[str, Array], results: Any) -> dict[str, Array]:
    """Return what gradients take besides the inputs, with h of all steps, which those of blends need."""
    return upstream | {"output_fwd": results.output}
