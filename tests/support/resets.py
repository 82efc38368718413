"""Arguments of resets for a case."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cases import CELLS, Case

Array = NDArray[Any]

KINDS = ("bool", "rows", "rows with an axis", "units")
"""The type and shape of a reset: bool or float factors for each row, or float factors for each unit."""

STARTS = ("zeros", "states", "states of steps")
"""What it starts from."""


def draw_resets(case: Case, kind: str, starts: str, seed: int = 0) -> dict[str, Array]:
    """Return the arguments of resets, of float32 or bool. About a third of the rows start anew, in full or in part."""
    rng = np.random.default_rng([seed, 7])
    rows, width = (case.T, case.N), case.D * case.H
    starts_anew = rng.random(rows) < 1 / 3
    if kind == "bool":
        found: dict[str, Array] = {"reset": starts_anew}
    else:
        shape = {"rows": rows, "rows with an axis": (*rows, 1), "units": (*rows, width)}[kind]
        factors = rng.uniform(0, 1, shape) * rng.integers(0, 2, shape)
        found = {"reset": np.where(starts_anew.reshape(*rows, *[1] * (len(shape) - 2)), factors, 1)}
    if starts != "zeros":
        names = ["reset_state"] + ["reset_cell"] * bool(CELLS[case.cell])
        shape = (case.N, width) if starts == "states" else (*rows, width)
        found |= {name: rng.uniform(-1, 1, shape) for name in names}
    return {name: array if array.dtype == bool else array.astype(np.float32) for name, array in found.items()}
