"""Calls of vkrnn, and how they run on the host, with NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn._ops.calls import run
from vkrnn.devices import Device
from vkrnn.jax._examples import compute_examples
from vkrnn.precision import Precision, fp32_precision
from vkrnn.results import Results

__all__ = ["CallSpec", "Kinds", "compute"]

Array = npt.NDArray[Any]
Kinds: TypeAlias = tuple[tuple[str, Any], ...]
"""Names of results, and their shapes with dtypes."""


@dataclass(frozen=True)
class CallSpec:
    """A call without its arrays: JAX compares and hashes it."""

    function: str
    cell: str
    descriptor: Any
    device: Device
    """The one that the caller has named, else the default device."""
    is_device_named: bool
    float32: Precision

    @property
    def gradients(self) -> bool:
        """Whether it is one of the functions of gradients."""
        return self.function != self.cell


def compute(*arrays: Array, call: CallSpec, names: Sequence[str], results: Kinds) -> tuple[Array, ...]:
    """Return the results of a call with `arrays`, which have the `names`."""
    if any(array.size == 0 for array in arrays):  # no batch rows, or a vmap over no examples
        return tuple(np.zeros(kind.shape, kind.dtype) for _, kind in results)

    def one(given: Mapping[str, Array]) -> dict[str, Array]:
        return _compute_one(call, given)

    given = dict(zip(names, map(np.asarray, arrays), strict=True))
    found = compute_examples(one, given, as_rows=not call.gradients, loop=_loop, numpy=np)
    return tuple(found[name] for name, _ in results)


def _loop(function: Callable[[Mapping[str, Array]], dict[str, Array]], arrays: Mapping[str, Array]) -> dict[str, Array]:
    (count,) = {len(array) for array in arrays.values()}
    each = [function({name: array[at] for name, array in arrays.items()}) for at in range(count)]
    return {name: np.stack([found[name] for found in each]) for name in each[0]}


def _compute_one(call: CallSpec, given: Mapping[str, Array]) -> dict[str, Array]:
    arguments = {**given, "descriptor": call.descriptor, "device": call.device}
    with fp32_precision(call.float32):
        return run(Results, call.function, arguments)._asdict()
