"""Recurrent layers one time step at a time, with the state kept from step to step."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._interop.foreign import as_numpy
from vkrnn._ops.layer import Layer
from vkrnn.convert._given_layers import STATES, as_tuples, flat_layers, with_arrays
from vkrnn.devices import Device, DeviceLike, resolve

__all__ = ["Stream", "stream"]

Array: TypeAlias = npt.NDArray[Any]
State: TypeAlias = tuple[tuple[Array, ...], ...]

_MOST_THREADS = 2**31 - 1
_logger = logging.getLogger("vkrnn")


class Stream(_core.Stream):
    """Recurrent layers, each fed by the one before, that run step by step; `stream` makes one.

    Attributes
    ----------
    batch, inputs, outputs : int
        N; I of the first layer; H of the last one.
    dtype : numpy.dtype
        Of what `step` takes and returns.

    Notes
    -----
    One thread at a time may use a stream. If another one is in it, every method raises RuntimeError.
    """

    _device: Device
    _sizes: list[tuple[str, int]]
    _options = ""  # as `__repr__` shows them

    def __init__(self) -> None:
        raise TypeError("[stream] a Stream has no constructor; call vkrnn.stream")

    @classmethod
    def _of(cls, layers: Sequence[Layer], batch: int, device: Device, threads: int) -> Stream:
        """Return a stream of checked layers. With 0 threads, as many are used as the work is worth."""
        self = cls.__new__(cls)
        _core.Stream.__init__(self, device._open("[stream]"), as_tuples(layers), batch, threads)
        self._device = device
        self._sizes = [(layer.function.__name__, layer.hidden_size) for layer in layers]
        if any(name in layer.arguments for layer in layers for name in STATES):
            self.state = [
                [self._start(layer.arguments.get(name, zero), zero) for name, zero in zip(STATES, arrays, strict=False)]
                for layer, arrays in zip(layers, self.read_state(), strict=True)
            ]
            self.set_start()
        return self

    def _start(self, array: Array, zero: Array) -> Array:
        # 16-bit arguments are converted to float32, in which the state is carried.
        return array.astype(zero.dtype) if array.dtype == self.dtype else array

    @property
    def device(self) -> Device:
        """The device that the steps run on."""
        return self._device

    @property
    def state(self) -> State:
        """The state of each layer, each [N, H]: ``(hidden, cell)`` for an LSTM, ``(hidden,)`` for a GRU.

        It is ``(hidden, cell, normalizer, stabilizer)`` for an sLSTM.

        Reading it copies it. It is float64 for a float64 stream, else float32: layers of 16-bit types carry their state
        in float32. Setting it checks all arrays before any of the state changes.

        Raises
        ------
        TypeError
            If what is set is no tuple or list of that form, or has another dtype.
        ValueError
            If a shape or the number of layers is wrong.
        """
        return self.read_state()

    @state.setter
    def state(self, value: Sequence[Sequence[Array]]) -> None:
        self.write_state(value)

    def reset(self, rows: Any = None) -> None:
        """Go back to the state that the stream began with: zeros, unless layers brought initial states.

        Parameters
        ----------
        rows : int, slice, or array of int or bool, optional
            The batch rows to reset, as an index of an array of N elements; all if not given.

        Raises
        ------
        ValueError
            If there is no such row.
        """
        if rows is None:
            self.clear()
            return
        try:
            chosen = np.arange(self.batch)[rows]
        except IndexError as error:
            raise ValueError(f"[stream] rows: expected an index of {self.batch} batch rows: {error}") from None
        self.clear(chosen.ravel().tolist())

    def __repr__(self) -> str:
        """Show the layers, the batch, and how the device runs a step."""
        layers = " -> ".join(f"{name} {size}" for name, size in self._sizes)
        how = "" if self._device.backend == "native" else " by ordinary calls; the CPU runs steps faster"
        return (
            f"<vkrnn.Stream: {self.inputs} -> {layers}, batch {self.batch}{self._options}, {self.dtype}, on "
            f"{self._device.name}{how}>"
        )


class _BatchFirstStream(Stream):
    """A stream whose first layer has ``batch_first``."""

    _options = ", batch_first"

    def step(self, x: Any, out: Any = None, reset: Any = None) -> Array:
        """Run one step, x [N, I] -> [N, H], or a block of them, [N, T, I] -> [N, T, H]."""
        x = as_numpy(x, "[stream] x:")
        if getattr(x, "ndim", 0) != 3:
            return super().step(x, out, reset)
        if x.shape[0] != self.batch or x.shape[2] != self.inputs or x.size == 0:
            shape = f"[{self.batch}, T, {self.inputs}]"
            raise ValueError(
                f"[stream] x: expected shape [N, T, I] = {shape}, as the first layer has batch_first, "
                f"got {list(x.shape)}"
            )
        if out is not None:
            raise NotImplementedError("[stream] out: expected None for a block, as the first layer has batch_first")
        if reset is not None:
            reset = as_numpy(reset, "[stream] reset:")
            if getattr(reset, "shape", None) != x.shape[:2]:
                got = list(getattr(reset, "shape", ()))
                raise ValueError(f"[stream] reset: expected shape [N, T] = {list(x.shape[:2])}, got {got}")
            reset = reset.swapaxes(0, 1)
        return super().step(x.swapaxes(0, 1), None, reset).swapaxes(0, 1)


def stream(
    layers: Any,
    *,
    batch: int = 1,
    dtype: npt.DTypeLike | None = None,
    device: DeviceLike | None = None,
    threads: int | None = None,
) -> Stream:
    """Return a `Stream` that runs recurrent layers one time step at a time.

    Parameters
    ----------
    layers : Layer, or a sequence of layers
        First to last; what `vkrnn.convert.from_torch`, `from_keras` and `from_onnx` return. A layer may also be a
        tuple of the arguments of a call: ``("lstm", weights)`` or ``("lstm", weights, descriptor)``, where `weights`
        maps names such as ``recurrent_weight`` to arrays. Weights are copied.
    batch : int, default 1
        N, the number of sequences that run side by side.
    dtype : data type, optional
        Weights are converted to it. That of the weights if not given.
    device : Device or int or str, optional
        The CPU if not given. Other devices run each step as an ordinary call, which takes them far longer.
    threads : int, optional
        The most threads that a step may use; as many as its work is worth if not given. With 1, a step never waits for
        another thread.

    Raises
    ------
    TypeError, ValueError
        If the layers do not fit a call or each other.
    NotImplementedError
        If a layer is bidirectional or reverse, or if a device other than the CPU is to run a 16-bit type.
    MemoryError, DeviceError
        As a call.

    Notes
    -----
    ``step(x, out=None, reset=None)`` runs one step, x [N, I] -> [N, H], or a block of them, [T, N, I] -> [T, N, H]. If
    the first layer has ``batch_first``, blocks are [N, T, I] -> [N, T, H], and without `out`. Every step has
    the same bits as in one call per layer over the whole sequence. The result is a new NumPy array, or `out`. An error
    leaves the state as it was.

    ``reset`` [N], or [T, N] for a block ([N, T] with ``batch_first``), sets rows back before a step: those where it is
    True go back to where `Stream.reset` takes them. It may also have factors of the stream's type. Then a state h
    becomes ``reset * h + (1 - reset) * s``, where s is that start. An sLSTM's stabilizer then stays as it is.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> weights = {"input_weight": np.ones((8, 3), np.float32), "recurrent_weight": np.zeros((8, 2), np.float32)}
    >>> lstm = vkrnn.stream(("lstm", weights))
    >>> lstm.step(np.ones((1, 3), np.float32)).shape
    (1, 2)
    >>> lstm.reset()
    """
    made = list(flat_layers(layers, "stream"))
    if not made:
        raise ValueError("[stream] layers: expected at least one, got none")
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)):
        raise TypeError(f"[stream] batch: expected an int, got {type(batch).__name__}")
    if not 1 <= batch <= sys.maxsize:
        raise ValueError(f"[stream] batch: expected 1 to {sys.maxsize}, got {batch}")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, (int, np.integer))):
        raise TypeError(f"[stream] threads: expected an int, got {type(threads).__name__}")
    if threads is not None and threads < 1:
        raise ValueError(f"[stream] threads: expected at least 1, got {threads}")
    kind = _BatchFirstStream if made[0].batch_first else Stream
    made = [with_arrays(layer, number, dtype, "stream") for number, layer in enumerate(made)]
    chosen = _cpu() if device is None else resolve(device, "[stream]")
    if chosen.backend != "native":
        _logger.info("a stream on %s runs each step as an ordinary call; the CPU runs steps faster", chosen.name)
    return kind._of(made, int(batch), chosen, min(int(threads or 0), _MOST_THREADS))  # noqa: SLF001


def _cpu() -> Device:
    """Return the native CPU, the one that calls use too."""
    profiles = _core.list_devices(complete=False)
    index = next(index for index, profile in enumerate(profiles) if profile.backend == "native")
    return resolve(index, "[stream]")
