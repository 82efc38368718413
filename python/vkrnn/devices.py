"""Devices: the list of them, and the choice of the one that a call runs on."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, NoReturn
from weakref import WeakSet

from vkrnn import _core
from vkrnn._base.generics import Self
from vkrnn._base.warnings import warn_caller
from vkrnn._device import tuning
from vkrnn._device.selection import log_reports, select
from vkrnn.precision import Precision, block_precision, checked_precision

__all__ = ["Device", "DeviceLike", "default_device", "devices", "is_default", "resolve"]

_current: ContextVar[tuple[Device, ...]] = ContextVar("vkrnn_current_devices", default=())
_lock = threading.RLock()  # reentrant, like a device's lock, for signal handlers that make calls
_by_selector: dict[str | None, Device] = {}  # None selects the best device
_by_index: dict[int, Device] = {}
_all: WeakSet[Device] = WeakSet()
compiler_checks: list[Callable[[Device, str, str], None]] = []
"""What is called with a CUDA device that is being opened, its compiler and the beginning of messages. The package adds
its check, which makes calls, so that this module need not import them."""
_inherited: list[Device] = []
_logger = logging.getLogger("vkrnn")
_warned = False  # whether the user has been warned of a GPU that cannot be used


class Device:
    """A GPU or the CPU. It is opened at its first call.

    Parameters
    ----------
    selector : int or str, optional
        Position in `devices()`, or part of the device's name in any case, of which the first match is used. The best
        device if not given.
    schedule, gemm : str, optional
        Strategies for the time loop and for the matrix products, from `strategies`. If not given, each call uses the
        ones with the lowest estimated time; its plan shows them.
    float32 : {"ieee", "tf32"}, optional
        Precision of float32 products, by PyTorch's names. ``ieee`` has the accuracy of float32. ``tf32`` is faster and
        may round the operands of products to ten bits of mantissa. tanh and sigmoid then have relative errors of up to
        2^-15, and everything else stays float32. Only matrix units round, so it makes no difference on the CPU and
        other devices without them. If not given, the environment variable ``VKRNN_FLOAT32``, else ``ieee``.
        `fp32_precision` overrides it for a block.
    wavefront : int, optional
        How the layers of a network run: with 0 one after the other, otherwise as a wavefront, in which each layer works
        on pieces of this many time steps, and the layer above on the piece before. Neighbouring layers that run forward
        in one direction can be a wavefront, if the device's strategies can. If not given, what is faster by the
        estimates. On the CPU, the results have the same bits either way; on other devices, they may differ by rounding.
    **parameters : int, optional
        Tuning parameters of strategies, such as ``lanes``, ``rows`` and ``workgroup`` of the schedule ``steps``.
        `docs/devices.md` lists them.

    Raises
    ------
    ValueError
        If no device is at that position or has such a name, if it cannot run a strategy, or if there is no such
        precision.
    DeviceError
        If the name begins with ``cuda`` and there is no such device; the message says why.
    TypeError
        If the selector is neither an int nor a str, or an option has the wrong type or belongs to no strategy.

    Notes
    -----
    ``with device:`` makes it the default device of the block. It does not close it.

    A call on the CPU uses as many threads as its work is worth, and never more than the calling thread's affinity and
    the control group's quota allow at that moment, or than the environment variable ``VKRNN_NUM_THREADS``, else
    ``OMP_NUM_THREADS``, says. Results do not depend on the number of threads. ``VKRNN_CPU_TARGET`` chooses the
    instruction set: avx512, avx2, sse4, neon or scalar.

    Examples
    --------
    >>> device = Device(0)
    >>> with device:
    ...     default_device() is device
    True
    >>> device.close()
    """

    def __init__(
        self,
        selector: int | str | None = None,
        *,
        schedule: str | None = None,
        gemm: str | None = None,
        float32: Precision | None = None,
        wavefront: int | None = None,
        **parameters: int | None,
    ) -> None:
        options = {"schedule": schedule, "gemm": gemm, "wavefront": wavefront, **parameters}
        self._index, self._profile = select(selector, "[Device] selector")
        # Not a functools.cached_property, whose lock a forked child may find locked up to Python 3.11.
        self.rounds_products = "matrices" in self.strategies["gemm"]
        """Whether the device can round operands of float32 products, which ``float32="tf32"`` allows."""
        wanted = float32 if float32 is not None else os.environ.get("VKRNN_FLOAT32") or "ieee"
        self._precision = checked_precision(wanted, "VKRNN_FLOAT32" if float32 is None else "[Device] float32")
        self._options = {name: value for name, value in options.items() if value is not None}
        self._opener = _core.Opener(self._index, _core.make_choice(self._profile, self._options))
        self._lock = threading.RLock()
        self._opened: _core.Device | None = None
        self._closed = False
        self._process = os.getpid()
        _all.add(self)

    @property
    def index(self) -> int:
        """Position in `devices()`."""
        return self._index

    @property
    def profile(self) -> _core.Profile:
        """Properties of the device that planning uses."""
        return self._profile

    @property
    def strategies(self) -> dict[str, list[str]]:
        """The strategies that the device can run, for each part of a call: ``schedule`` and ``gemm``."""
        return _core.list_strategies(self._profile)

    @property
    def name(self) -> str:
        """Name of the device from its driver; ``cpu (...)`` for the CPU."""
        return self._profile.name

    @property
    def type(self) -> Literal["discrete_gpu", "integrated_gpu", "virtual_gpu", "cpu", "other"]:
        """One of ``discrete_gpu``, ``integrated_gpu``, ``virtual_gpu``, ``cpu``, ``other``."""
        return self._profile.type

    @property
    def backend(self) -> Literal["vulkan", "cuda", "native"]:
        """What runs the calls: ``vulkan``, ``cuda``, or ``native`` for the CPU's own kernels."""
        return self._profile.backend

    @property
    def driver(self) -> str:
        """Short name of the driver; ``native`` for the CPU."""
        return self._profile.driver

    @property
    def driver_version(self) -> str:
        """Version of the driver; for the CPU the instruction set, as in ``VKRNN_CPU_TARGET``."""
        return self._profile.driver_version

    @property
    def memory_bytes(self) -> int:
        """Size of the device's largest memory heap; for the CPU the host's memory."""
        return self._profile.memory_bytes

    @property
    def float32(self) -> Precision:
        """Precision that calls accept for float32 products: the innermost `fp32_precision`, else the device's.

        ``plan(...).float32`` tells whether a call rounds.
        """
        return block_precision.get() or self._precision

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Whether the driver lost the device. It stays lost; a new `Device` works."""
        return self._opened is not None and self._opened.lost

    def _open(self, prefix: str = "[Device]", *, tuned: bool = True) -> _core.Device:
        """Return the core's device, opened at the first call; `prefix` begins the messages.

        If `tuned`, opening reads the table that ``python -m vkrnn tune`` has made.

        Raises
        ------
        DeviceError
            If it was closed or does not open.
        """
        opened = self._opened
        if opened is not None and not self._closed:
            return opened
        with self._lock:
            if self._closed:
                raise _core.DeviceError(f"{prefix} the device is closed; open a new vkrnn.Device")
            if self._opened is None:
                try:
                    use = tuned and self.backend != "native" and not self._options
                    opened = self._opener.open(tuning.load(self._profile) if use else _core.make_tuning([]))
                    if self.backend == "cuda" and not self._options:
                        for check in compiler_checks:
                            check(self, _core.cuda_compiler_key(opened), prefix)
                    self._opened = opened
                finally:
                    log_reports()
                _logger.info("opened %r", self)
                if self._precision == "tf32" and not self.rounds_products:
                    _logger.info("float32='tf32' makes no difference on %s: it has no matrix units", self.name)
            return self._opened

    def _rounds(self) -> bool:
        """Return whether calls may round operands of float32 products. Devices that never do so answer at once."""
        return self.rounds_products and self.float32 == "tf32"

    def close(self) -> None:
        """Release what the driver holds. Later calls on the device raise `DeviceError`."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()
                log_reports()

    def synchronize(self) -> None:
        """Wait for all calls made so far. Calls on the CPU are synchronous anyway.

        Raises
        ------
        DeviceError
            If the device was closed, or if it failed. The message begins with the call that was not done.
        """
        self._open().synchronize()

    def statistics(self) -> dict[str, int | float]:
        """Return counters since the device was opened.

        - ``calls``. Steps of streams, and single steps with kept weights that run like them, are not counted.
        - ``repeated``, which are among the calls: those that replayed the command buffer of an earlier call on the same
          memory
        - ``submissions`` and ``dispatches``
        - ``bytes_uploaded`` and ``bytes_downloaded``: copied from and to the host's memory
        - ``bytes_imported``: of NumPy arrays that the device read in place
        - ``bytes_allocated``, ``pipelines`` and ``plans``: held now
        - ``failed_waits``: how often time loops were found to have run again, because workgroups had waited too long
          for each other. From the third time on, layers run one after the other, except with `Device(wavefront=...)`.
        - ``last_device_seconds``: duration of the last finished call by the device's clock, without copies. Calls of
          `vkrnn.torch` and compiled programs of JAX on CUDA devices are not timed.
        - ``last_host_seconds``: time until the last call returned
        """
        counted = (self._opened or self._open()).statistics()
        log_reports()
        return counted

    def __enter__(self) -> Self:
        """Make this the default device."""
        _current.set((*_current.get(), self))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Restore the previous default device. This one stays open."""
        # Blocks of generators and coroutines may end in another order, so this one may not be the innermost.
        blocks = list(_current.get())
        if self in blocks:  # a generator that is closed in another context has no block there
            del blocks[-1 - blocks[::-1].index(self)]
            _current.set(tuple(blocks))

    def __reduce__(self) -> NoReturn:
        """Raise a TypeError: a device can be neither copied nor pickled."""
        raise TypeError(f"cannot pickle '{type(self).__name__}' object")

    def __repr__(self) -> str:
        """Return position, name, type, driver version, options, and whether it is closed or lost."""
        state = ", closed" if self.closed else ", lost" if self.lost else ""
        version = self.driver_version or self.driver
        shown = self._options if self._precision == "ieee" else {**self._options, "float32": self._precision}
        options = "".join(f", {name}={value!r}" for name, value in shown.items())
        return f"<vkrnn.Device {self._index}: {self.name}, {self.type}, {version}{options}{state}>"


DeviceLike = Device | int | str
"""What arguments accept as a device: a `Device`, its position in `devices()`, or part of its name."""


def devices() -> list[Device]:
    """List the devices, best first: discrete, integrated and virtual GPUs, the CPU, then Vulkan on the CPU.

    This opens none of them. The CPU is always listed. GPUs, and Vulkan on the CPU (Mesa's llvmpipe), are listed if a
    Vulkan loader and a driver are installed. CUDA devices are listed if NVIDIA's driver and NVRTC are installed, each
    after the Vulkan device of the same GPU.

    Examples
    --------
    >>> devices()  # doctest: +SKIP
    [<vkrnn.Device 0: cpu (AMD EPYC), cpu, avx2>, <vkrnn.Device 1: llvmpipe (LLVM 15.0.6, 256 bits), cpu, Mesa 22.3.6>]
    """
    found = [Device(index) for index in range(len(_core.list_devices()))]
    log_reports()
    return found


def default_device() -> Device:
    """Return the device of calls that name none.

    That is the device of the innermost ``with device:``, else the one that the environment variable ``VKRNN_DEVICE``
    names (position or part of the name), else the best one. A device that was closed or lost is replaced by a new one.

    Warns
    -----
    RuntimeWarning
        Once per process, if Vulkan has a GPU that cannot be used, so that calls run on the CPU. It says why.

    Raises
    ------
    ValueError
        If ``VKRNN_DEVICE`` names no device.
    """
    stack = _current.get()
    if stack:
        return stack[-1]
    selector = _core.environment_variable("VKRNN_DEVICE") or None
    device = _shared_device(selector, "VKRNN_DEVICE")
    if selector is None and not _warned and device.type == "cpu":
        _tell_of_skipped(device)
    return device


def is_default(device: Device) -> bool:
    """Return whether this is `default_device`, or was until it was closed or lost. Returns in half the time."""
    stack = _current.get()
    if stack:
        return stack[-1] is device
    return _by_selector.get(_core.environment_variable("VKRNN_DEVICE") or None) is device


def resolve(device: DeviceLike | None, prefix: str) -> Device:
    """Return the device that an operation's argument ``device`` names.

    A device that is named by position or name is opened once and kept for later calls.
    """
    if device is None:
        return default_device()
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(f"{prefix} device: expected a vkrnn.Device, an int or a str, got {type(device).__name__}")
    return _shared_device(str(device), f"{prefix} device")


def require_device(given: DeviceLike | None, device: Device, prefix: str, reason: str) -> None:
    """Raise ValueError if an operation's argument ``device`` names another device than `device`."""
    if given is None or (named := resolve(given, prefix)) is device:
        return
    got = distinct_repr(named, device) if isinstance(given, Device) else f"{given!r}: {distinct_repr(named, device)}"
    raise ValueError(f"{prefix} device: expected {device!r}, {reason}, got {got}")


def distinct_repr(other: Device, device: Device) -> str:
    """Return the repr of `other`, extended if it equals that of `device`."""
    return f"another {other!r}" if repr(other) == repr(device) else repr(other)


def _shared_device(selector: str | None, where: str) -> Device:
    with _lock:
        device = _by_selector.get(selector)
        if device is None or device.closed or device.lost:
            index, _ = select(selector, where)
            device = _by_index.get(index)
            if device is None or device.closed or device.lost:
                device = _by_index[index] = Device(index)
            _by_selector[selector] = device
        return device


def _tell_of_skipped(device: Device) -> None:
    global _warned  # noqa: PLW0603
    _warned = True
    gpus = [f"{name} ({reason})" for name, kind, reason in _core.skipped_devices(complete=False) if kind != "cpu"]
    log_reports()
    if gpus:
        message = f"no GPU can be used, calls run on {device.name}; skipped: {'; '.join(gpus)}"
        warn_caller(message, RuntimeWarning)


def _after_fork() -> None:
    # A driver's threads and handles do not survive a fork, so the child opens its own devices and does not touch the
    # parent's.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    for device in list(_all):
        device._lock = threading.RLock()  # noqa: SLF001
    _inherited.extend(_by_index.values())
    _by_index.clear()
    _by_selector.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _finish() -> None:
    # After this the process destroys what the drivers' threads use, so these must be idle. Python has joined all of its
    # threads except daemons; dummies are threads of other libraries.
    others = set(threading.enumerate()) - {threading.current_thread()}
    dummy = threading._DummyThread  # noqa: SLF001
    _core.stop_threads({thread.ident for thread in others if thread.ident and not isinstance(thread, dummy)})
    for device in list(_all):
        opened = device._opened  # noqa: SLF001
        if opened is not None and device._process == os.getpid():  # noqa: SLF001
            with contextlib.suppress(_core.DeviceError):  # closed or lost
                opened.synchronize()


atexit.register(_finish)
_core.provide("Device", Device)
_core.provide("distinct_repr", distinct_repr)
