"""Reads DLPack's capsules: the C structs with which libraries share arrays."""

from __future__ import annotations

import ctypes
import math
from typing import Any

__all__ = ["BFLOAT", "CUDA", "FLOAT", "HOST", "UNSIGNED", "Tensor", "device_of", "tensor_of"]

HOST = {1, 3, 11}  # numbers of host memory: plain, pinned for CUDA, pinned for ROCm
CUDA = 2
UNSIGNED, FLOAT, BFLOAT = 1, 2, 4  # codes of types


class Tensor(ctypes.Structure):
    """DLPack's DLTensor. The struct in an unversioned capsule begins with it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape_at", ctypes.POINTER(ctypes.c_int64)),
        ("strides_at", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )

    @property
    def address(self) -> int:
        """Address of the first element."""
        return (self.data or 0) + int(self.byte_offset)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.shape_at[axis] for axis in range(self.ndim))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in C order."""
        shape = self.shape
        return not self.strides_at or all(
            length == 1 or self.strides_at[axis] == math.prod(shape[axis + 1 :]) or 0 in shape
            for axis, length in enumerate(shape)
        )


def tensor_of(capsule: Any) -> Tensor:
    """Return the tensor in a capsule that no library has taken yet. It is valid as long as the capsule."""
    return Tensor.from_address(_pointer(capsule, b"dltensor"))


def device_of(value: Any) -> tuple[int, int]:
    """Return DLPack's number for an object's kind of memory, and the number of its device."""
    kind, number = value.__dlpack_device__()
    return int(kind), int(number)


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
