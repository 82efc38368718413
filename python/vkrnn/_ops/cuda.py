"""Arrays in CUDA memory of other libraries, through DLPack and ``__cuda_array_interface__``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vkrnn import _core
from vkrnn._device.selection import why_no_cuda
from vkrnn._interop.dlpack import BFLOAT, CUDA, FLOAT, device_of, tensor_of
from vkrnn._interop.foreign import as_numpy, bfloat16, refuse_differentiated
from vkrnn.arrays import Array
from vkrnn.devices import Device, resolve

__all__ = ["array_at", "as_operand", "cuda_device"]

_LEGACY = 1  # the stream on which calls are ordered unless their caller says otherwise


def as_operand(value: Any, where: str, preferred: object = None) -> Any:
    """Return an object in a CUDA device's memory as an `Array` in the same memory. Convert others like `as_numpy`.

    The array's device is `preferred` if that is the same GPU, else the device that all calls share.

    Raises
    ------
    TypeError, ImportError
        Like `as_numpy`.
    ValueError
        If the object is not C-contiguous.
    DeviceError
        If the CUDA device cannot be used; the message says why.
    """
    if isinstance(value, (np.ndarray, np.generic, _core.Array)):
        return as_numpy(value, where)
    if hasattr(value, "__dlpack_device__"):
        try:
            kind, ordinal = device_of(value)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
            return as_numpy(value, where)  # which raises the error
        return _from_dlpack(value, ordinal, where, preferred) if kind == CUDA else as_numpy(value, where)
    if hasattr(value, "__cuda_array_interface__"):
        return _from_interface(value, where, preferred)
    return as_numpy(value, where)


def cuda_device(ordinal: int, where: str, preferred: object = None) -> Device:
    """Return `preferred` if that is ``cuda:ordinal``, else the device of this name that all calls share.

    Raises
    ------
    DeviceError
        If it cannot be used. The message begins with `where` and says why.
    """
    wanted = f"cuda:{ordinal} "
    if isinstance(preferred, Device) and preferred.name.startswith(wanted):
        return preferred
    try:
        return resolve(wanted, where)  # which lists the devices the first time only
    except (ValueError, _core.DeviceError):
        reason = why_no_cuda(wanted) or "the driver does not list it"
        raise _core.DeviceError(f"{where} cuda:{ordinal} cannot be used: {reason}") from None


def array_at(
    device: Device, address: int, dtype: np.dtype[Any], shape: Sequence[int], keep: object, where: str
) -> Array:
    """Return an array in memory of another library.

    `keep` is kept alive as long as calls use the memory.
    """
    return Array(_core.borrow(device, device._open(where), address, dtype, shape, keep))


def _from_dlpack(value: Any, ordinal: int, where: str, preferred: object) -> Array:
    kind = type(value).__name__
    refuse_differentiated(value, where)
    try:
        capsule = value.__dlpack__(stream=_LEGACY)
        tensor = tensor_of(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{where} expected an array that can be shared, got a {kind}: {error}") from error
    if tensor.lanes != 1 or tensor.code not in (FLOAT, BFLOAT):
        raise TypeError(f"{where} expected floating-point numbers on a CUDA device, got a {kind} of another type")
    if not tensor.is_contiguous:
        raise ValueError(f"{where} expected a C-contiguous array on a CUDA device, got a {kind} with other strides")
    dtype = bfloat16(where) if tensor.code == BFLOAT else np.dtype(f"f{tensor.bits // 8}")
    return array_at(cuda_device(ordinal, where, preferred), tensor.address, dtype, tensor.shape, capsule, where)


def _from_interface(value: Any, where: str, preferred: object) -> Array:
    interface = value.__cuda_array_interface__
    kind, shape, dtype = type(value).__name__, tuple(interface["shape"]), np.dtype(interface["typestr"])
    if dtype.kind != "f":
        raise TypeError(f"{where} expected floating-point numbers on a CUDA device, got a {kind} of {dtype}")
    strides = interface.get("strides")
    contiguous = tuple(math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape)))
    if strides is not None and tuple(strides) != contiguous and 0 not in shape:
        raise ValueError(f"{where} expected a C-contiguous array on a CUDA device, got a {kind} with other strides")
    address = interface["data"][0]
    device = cuda_device(max(_core.cuda_ordinal_at(address), 0), where, preferred)
    if interface.get("stream"):  # of the library that wrote the array
        _core.follow_cuda_stream(device._open(where), interface["stream"])
    return array_at(device, address, dtype, shape, value, where)


def _package_folders() -> list[str]:
    """Return the folders of NVIDIA's packages, some of which bring NVRTC."""
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or []) if spec else []


_core.set_cuda_packages(_package_folders())
