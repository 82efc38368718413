"""Warnings that point to the caller's code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

__all__ = ["warn_caller", "warn_of_unused_bias"]


def warn_caller(message: str, category: type[Warning] = UserWarning, through: Sequence[str] = ()) -> None:
    """Issue a warning that names the line outside of this package, and of modules `through` it went, that called it."""
    warnings.warn(message, category, stacklevel=1 + len(_frames_of_package(through)))


def warn_of_unused_bias(where: str, secondary_bias: Any, descriptor: Any) -> None:
    """Warn of a GRU's `secondary_bias` without `reset_after`, except through MPSGraph's names, which do not warn."""
    if secondary_bias is None or getattr(descriptor, "reset_after", False):
        return
    if any(frame.f_globals["__name__"] == "vkrnn.mpsgraph" for frame in _frames_of_package()):
        return
    warn_caller(
        f"{where} secondary_bias: it has no effect without reset_after=True; PyTorch's GRU is "
        "GRUDescriptor(reset_gate_first=True, reset_after=True)"
    )


def _frames_of_package(through: Sequence[str] = ()) -> list[FrameType]:
    """Return the frames of this package, and of modules whose names `through` begins, from the caller's outwards."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("vkrnn.", *through)):
        frames.append(frame)
        frame = frame.f_back
    return frames
