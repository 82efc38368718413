"""The argument ``out``: the caller's arrays for the results of a call."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkrnn import _core
from vkrnn.arrays import Array
from vkrnn.devices import Device, distinct_repr

__all__ = ["checked_out"]


def checked_out(call: _core.CheckedCall, out: Any, prefix: str) -> tuple[list[Any], Device | None]:
    """Check `out`: an array or None for each result. Also return the device that any array of the call is on.

    Raises
    ------
    TypeError
        If there are more or fewer, or one is of another kind or dtype.
    ValueError
        If one has the wrong shape, is on another device, is not contiguous or not writeable, or shares memory with an
        argument or another result.
    """
    device: Device | None = call.device
    if out is None:
        return [None] * len(call.result_names), device
    given = _one_for_each_result(call, out, prefix)
    arguments = call.arrays
    owners, taken = list(arguments), list(arguments.values())
    on_devices = any(isinstance(array, Array) for array in (*taken, *given))
    dtype = arguments["source"].dtype.newbyteorder("=")
    for name, shape, result in zip(call.result_names, call.result_shapes, given, strict=True):
        if result is None:
            continue
        where = f"{prefix} out: {name}:"
        array = _checked_kind(result, where, on_devices=on_devices)
        if array.dtype != dtype:
            raise TypeError(f"{where} expected dtype {dtype}, got {array.dtype}")
        if array.shape != shape:
            raise ValueError(f"{where} expected shape {list(shape)}, got {list(array.shape)}")
        if isinstance(array, Array):
            device = device or array.device
            if array.device is not device:
                raise ValueError(
                    f"{where} expected an array on {device!r}, where others are, got one on "
                    f"{distinct_repr(array.device, device)}"
                )
        shared = _core.first_overlap(array, taken)
        if shared is not None:
            raise ValueError(f"{where} expected memory of its own, got memory shared with {owners[shared]}")
        owners.append(f"the result {name}")
        taken.append(array)
    return given, device


def _one_for_each_result(call: _core.CheckedCall, out: Any, prefix: str) -> list[Any]:
    given = [out] if isinstance(out, (Array, np.ndarray)) else out
    if not isinstance(given, (tuple, list)) or len(given) != len(call.result_names):
        got = f"{len(given)} of them" if isinstance(given, (tuple, list)) else type(out).__name__
        names = ", ".join(call.result_names)
        raise TypeError(f"{prefix} out: expected an array or None for each of {names}, got {got}")
    return list(given)


def _checked_kind(array: Any, where: str, *, on_devices: bool) -> Any:
    """Return the array as the core sees it, without the overrides of a NumPy subclass."""
    kind, text = (Array, "a vkrnn.Array, as others are") if on_devices else (np.ndarray, "a numpy.ndarray")
    if not isinstance(array, kind) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{where} expected {text}, got {type(array).__name__}")
    if isinstance(array, Array):
        return array
    plain = np.asarray(array)
    if not plain.flags.carray:
        raise ValueError(f"{where} expected a C-contiguous, aligned array that can be written to")
    return plain
