"""Checks of calls by the shapes and dtypes of their arrays, and the kinds of their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from vkrnn._ops.calls import BoundCall
from vkrnn.jax._host import CallSpec, Kinds
from vkrnn.jax._sizes import StandIns

__all__ = ["checked", "kinds_of_results"]


def checked(cell: str, given: Mapping[str, Any], descriptor: Any, device: Any) -> BoundCall:
    """Check a call by its shapes and dtypes, and by the numbers of `lengths` where they are known already."""
    sizes = StandIns(given)
    like: dict[str, Any] = {name: _like(name, value, sizes) for name, value in given.items()}
    with sizes.in_messages():
        return BoundCall.of(cell, like | {"descriptor": descriptor, "device": device})


def kinds_of_results(call: CallSpec, given: Mapping[str, Any]) -> Kinds:
    """Return the names and kinds of the results of a forward call."""
    found = checked(call.cell, given, call.descriptor, call.device).call
    shapes = zip(found.result_names, map(StandIns(given).symbols, found.result_shapes), strict=True)
    return tuple((name, jax.core.ShapedArray(shape, given["source"].dtype)) for name, shape in shapes)


def _like(name: str, value: Any, sizes: StandIns) -> npt.NDArray[Any]:
    if name == "lengths" and not sizes and not isinstance(value, (jax.core.Tracer, jax.ShapeDtypeStruct)):
        return np.asarray(value)
    return np.broadcast_to(np.ones((), value.dtype), sizes.numbers(value.shape))
