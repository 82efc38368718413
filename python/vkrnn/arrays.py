"""Arrays in a device's memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._base.generics import Self
from vkrnn._interop.dlpack import CUDA
from vkrnn._interop.foreign import Foreign, as_numpy, bfloat16
from vkrnn.devices import Device, DeviceLike, require_device, resolve

__all__ = ["Array", "asarray", "empty", "zeros"]

_DTYPES = ("float32", "float64", "float16", "bfloat16")


class Array(_core.Array):
    """A C-contiguous array in a device's memory. `asarray`, `empty`, `zeros` and calls on arrays create it.

    On the CPU, calls on arrays are synchronous. On GPUs and llvmpipe they return before they are done. Calls run in
    order, so an array can go from call to call without a wait, and can be dropped at any time. Reading an array waits
    for the calls that write it: `numpy`, `wait`, ``numpy.asarray(array)``, the buffer protocol and `__dlpack__`. If
    a call fails on the device, the next wait raises an error that names the call.

    If the host sees the device's memory (`host_visible`), `numpy` and the protocols return views. A view shows what
    later calls write, once `wait` has returned, and outlives the array and its device. Before you write to a view, wait
    for the calls that read the array: `Device.synchronize`.

    A weight that is an array keeps a prepacked copy for later calls until it is written. While a view of it exists,
    each call packs it again.

    Arrays have no arithmetic: operators and NumPy's elementwise functions raise TypeError. ``array == other`` tells
    whether both are the same object. Use `numpy` to compute with the numbers.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        float32, float64, float16 or bfloat16 (of the package ml_dtypes).
    device : Device
    nbytes : int
    host_visible : bool
        Whether NumPy can view the array's memory.

    Raises
    ------
    DeviceError
        From anything that waits or copies, if the device was closed or lost.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> array = vkrnn.asarray(np.arange(6, dtype=np.float32).reshape(3, 2))
    >>> array[1:].numpy()
    array([[2., 3.],
           [4., 5.]], dtype=float32)
    >>> (output,) = vkrnn.single_gate_rnn(vkrnn.zeros((5, 3, 4)), vkrnn.zeros((4, 4)))
    >>> output.shape, output.dtype
    ((5, 3, 4), dtype('float32'))
    """

    # Without this, NumPy would compute ``array - np.float32(1)`` from a silent copy.
    __array_ufunc__ = None

    if TYPE_CHECKING:  # excludes Array from the protocol `Foreign`, so that an Array decides what a call returns
        __sizeof__: None  # type: ignore[assignment]

        @property
        def device(self) -> Device:  # the core does not know the class
            """The device that the array is on."""

    def __new__(cls, *args: Any) -> Self:
        """Raise a TypeError if called without arguments, as copying does: the array would have no memory."""
        if not args:
            raise TypeError("[Array] arrays are made by vkrnn.asarray, empty and zeros, and copied by numpy()")
        return super().__new__(cls)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.nbytes // self.dtype.itemsize

    def numpy(self) -> npt.NDArray[Any]:
        """Wait for the calls that write the array. Return a view if the host sees the memory, else a copy."""
        return _core.view(self) if self.host_visible else _core.fetch(self)

    def copy_from(self, source: Foreign) -> None:
        """Overwrite the array with one of the same shape and dtype.

        `source` is a NumPy array or another library's tensor, and may change as soon as this returns. Earlier calls
        still see the old contents. If the host sees the memory, this waits for the calls that use it.

        Raises
        ------
        TypeError
            If `source` is no such array or has another dtype.
        ValueError
            If it has another shape.
        """
        source = _taken("[Array.copy_from] source:", source)
        if _in_host_order(source.dtype) != self.dtype:
            raise TypeError(f"[Array.copy_from] source: expected dtype {self.dtype}, got {source.dtype}")
        if source.shape != self.shape:
            raise ValueError(f"[Array.copy_from] source: expected shape {list(self.shape)}, got {list(source.shape)}")
        _core.write(self, np.require(source, self.dtype, ["C", "A"]))

    def __getitem__(self, index: SupportsIndex | slice) -> Self:
        """Return a part along the first axis, without a copy: ``array[3]``, ``array[2:5]``."""
        if not self.shape:
            raise IndexError("[Array] index: expected an array with at least one axis, got shape []")
        length, *rest = self.shape
        stride = self.nbytes // length if length else 0
        if isinstance(index, slice):
            first, end, step = index.indices(length)
            if step != 1:
                raise IndexError(
                    f"[Array] index: expected a slice with step 1, got step {step}; others are not contiguous"
                )
            return type(self)(self, first * stride, [max(end - first, 0), *rest])
        try:
            at = operator.index(index)
        except TypeError:
            raise TypeError(
                f"[Array] index: expected an int or a slice along the first axis, got {type(index).__name__}"
            ) from None
        if not -length <= at < length:
            raise IndexError(f"[Array] index: expected {-length} to {length - 1}, got {at}")
        return type(self)(self, at % length * stride, rest)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        if not self.shape:
            raise TypeError("[Array] len: expected an array with at least one axis, got shape []")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the parts along the first axis."""
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:  # noqa: FBT001
        """Return what `numpy` returns, converted to `dtype` if one is given."""
        if copy is False and not self.host_visible:
            raise ValueError("[Array] copy=False: memory that the host cannot map must be copied")
        array = self.numpy()
        if dtype is None or np.dtype(dtype) == self.dtype:
            return array.copy() if copy and self.host_visible else array
        if copy is False:
            raise ValueError(f"[Array] copy=False: conversion to {np.dtype(dtype)} needs a copy")
        return array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the memory to another library. See `numpy.ndarray.__dlpack__` for the options.

        On a CUDA device, the option ``stream`` names the other library's stream, which waits for the calls on the array
        that were made before. It is the legacy default stream if not given. With ``copy=True``, the library gets a copy
        on that device, made through the host.

        Raises
        ------
        BufferError
            If neither the host nor CUDA sees the memory, if the host sees it and the dtype is bfloat16, or if an array
            on a CUDA device is asked for on another device.
        """
        if self.device.backend == "cuda":
            if options.get("dl_device") not in (None, self.__dlpack_device__()):
                raise BufferError(
                    f"[Array] dl_device: expected {self.__dlpack_device__()}, got {options['dl_device']!r}; "
                    "copy it with numpy()"
                )
            shared: Array = asarray(self.numpy(), device=self.device) if options.get("copy") else self
            stream = options.get("stream")
            if stream == -1:  # the other library takes care of the order
                stream = None
            return _core.to_dlpack(shared, 1 if stream is None else stream)
        if not self.host_visible:
            raise BufferError(f"[Array] the host cannot map the memory of {self.device.name}; copy it with numpy()")
        if self.dtype.name == "bfloat16":
            raise BufferError("[Array] NumPy does not support bfloat16 in DLPack; use numpy.asarray")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's identifier of the memory: (2, number) of a CUDA device, else (1, 0), the CPU."""
        return (CUDA, self._cuda_ordinal) if self.device.backend == "cuda" else (1, 0)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Description of the memory for other libraries, if it is on a CUDA device.

        The legacy default stream waits for the calls on the array that were made before.
        """
        if self.device.backend != "cuda" or self.dtype.name == "bfloat16":
            raise AttributeError("__cuda_array_interface__")
        address = _core.lend(self, 1)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (address, False), "version": 3, "stream": 1}

    @property
    def _cuda_ordinal(self) -> int:
        return _core.cuda_ordinal(self.device._open("[Array]"))

    def __repr__(self) -> str:
        """Return shape, dtype and device, never the numbers, which would have to be waited for."""
        return f"<vkrnn.Array {list(self.shape)} {self.dtype} on {self.device.index}: {self.device.name}>"


def asarray(array: Foreign | Array, *, device: DeviceLike | None = None) -> Array:
    """Copy an array into a device's memory.

    Parameters
    ----------
    array : numpy.ndarray or Array, or anything with ``__dlpack__`` on the CPU or ``__array__``
        float32, float64, float16 or bfloat16. An `Array` is returned unchanged.
    device : Device or int or str, optional
        `default_device()` if not given.

    Raises
    ------
    TypeError
        If it is no array or has another dtype.
    ValueError
        If an `Array` is on another device than `device`.
    MemoryError, DeviceError
        As in a call.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> vkrnn.asarray(np.ones((2, 3), np.float32)).nbytes
    24
    """
    if isinstance(array, Array):
        require_device(device, array.device, "[asarray]", "where the array is")
        return array
    taken = _taken("[asarray] array:", array)
    made = _make("asarray", taken.shape, taken.dtype, device, host_writes=True)
    made.copy_from(taken)
    return made


def empty(shape: Sequence[int] | int, dtype: npt.DTypeLike = np.float32, *, device: DeviceLike | None = None) -> Array:
    """Create an array on a device with undefined contents.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : data type, default float32
        float32, float64, float16 or bfloat16.
    device : Device or int or str, optional
        `default_device()` if not given.

    Raises
    ------
    TypeError
        If the dtype is none of these.
    ValueError
        If an axis is negative.
    MemoryError, DeviceError
        As in a call.
    ImportError
        If the dtype is ``"bfloat16"`` and the package ml_dtypes is not installed.

    Examples
    --------
    >>> import vkrnn
    >>> vkrnn.empty((5, 3), "float16").shape
    (5, 3)
    """
    return _make("empty", shape, dtype, device, host_writes=False)


def zeros(shape: Sequence[int] | int, dtype: npt.DTypeLike = np.float32, *, device: DeviceLike | None = None) -> Array:
    """Create an array of zeros on a device. Parameters and errors are those of `empty`.

    Examples
    --------
    >>> import vkrnn
    >>> vkrnn.zeros(3).numpy()
    array([0., 0., 0.], dtype=float32)
    """
    made = _make("zeros", shape, dtype, device, host_writes=True)
    _core.clear(made)
    return made


def _make(
    user: str, shape: Sequence[int] | int, dtype: npt.DTypeLike, device: DeviceLike | None, *, host_writes: bool
) -> Array:
    try:
        axes = [operator.index(axis) for axis in np.atleast_1d(np.asarray(shape, object))]
    except TypeError:
        raise TypeError(f"[{user}] shape: expected an int or a sequence of ints, got {shape!r}") from None
    if any(axis < 0 for axis in axes):
        raise ValueError(f"[{user}] shape: expected axes of at least 0, got {axes}")
    if any(axis >= 2**63 for axis in axes):
        raise ValueError(f"[{user}] shape: expected axes below 2**63, got {axes}")
    if isinstance(dtype, str) and dtype == "bfloat16":
        dtype = bfloat16(f"[{user}] dtype:")
    try:
        element_type = _in_host_order(np.dtype(dtype))
    except TypeError:
        element_type = None
    if element_type is None or element_type.name not in _DTYPES:
        got = repr(dtype) if element_type is None else element_type
        raise TypeError(f"[{user}] dtype: expected {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, got {got}")
    owner = resolve(device, f"[{user}]")
    return Array(owner, owner._open("[Array]"), element_type, axes, host_writes)


def _in_host_order(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


def _taken(where: str, value: object) -> npt.NDArray[Any]:
    array = as_numpy(value, where)
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{where} expected a numpy.ndarray, got {type(value).__name__}")
    return array
