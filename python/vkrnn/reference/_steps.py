"""What happens to the states of one direction between the cell's equations: resets before a step, blends after it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Resets(NamedTuple):
    """What one direction's states are before each step: h' = r h + (1 - r) s, and c likewise. Each is [T, N, H]."""

    r: Array
    s: Array
    s_c: Array

    def state(self, k: int | slice, h: Array) -> Array:
        """Return h after the reset of step k, or of all steps."""
        after: Array = self.r[k] * h + (1 - self.r[k]) * self.s[k]
        return after

    def cell(self, k: int | slice, c: Array) -> Array:
        """Return c after the reset of step k, or of all steps."""
        after: Array = self.r[k] * c + (1 - self.r[k]) * self.s_c[k]
        return after

    def gradients(self, h: Array, dh: Array, c: Array | int = 0, dc: Array | int = 0) -> tuple[Array, Array, Array]:
        """Return the gradients of r, s and s_c from the states before the resets and the gradients after them."""
        return (h - self.s) * dh + (c - self.s_c) * dc, (1 - self.r) * dh, (1 - self.r) * dc


def _part(a: Array, x: Array) -> Array:
    """Return a x, but 0 where a is 0, whatever x is."""
    return np.where(a == 0, 0, a * x)


class Blends(NamedTuple):
    """What part the new states of one direction have after each step, h = k h' + (1 - k) h_old, and c likewise.

    Each is [T, N, H], or None without a blend. `hidden` are the rows of h that gradients need.
    """

    of_h: Array | None
    of_c: Array | None
    hidden: Array | None

    def state(self, k: int, new: Array, old: Array) -> Array:
        """Return h after step k."""
        return new if self.of_h is None else _part(self.of_h[k], new) + _part(1 - self.of_h[k], old)

    def cell(self, k: int, new: Array, old: Array) -> Array:
        """Return c after step k."""
        return new if self.of_c is None else _part(self.of_c[k], new) + _part(1 - self.of_c[k], old)

    def state_parts(self, k: int, dh: Array) -> tuple[Array, Array | int]:
        """Return the parts of the gradient of h after step k that belong to the new h and to the old one."""
        return (dh, 0) if self.of_h is None else (_part(self.of_h[k], dh), _part(1 - self.of_h[k], dh))

    def cell_parts(self, k: int, dc: Array) -> tuple[Array, Array | int]:
        """Return the same of c."""
        return (dc, 0) if self.of_c is None else (_part(self.of_c[k], dc), _part(1 - self.of_c[k], dc))


EVERY_STEP = slice(None)
