"""The check of a CUDA compiler before its first use: a small call must give right results."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from vkrnn import _core, gradients, operations, reference
from vkrnn.descriptors import LSTMDescriptor
from vkrnn.devices import Device
from vkrnn.precision import fp32_precision

__all__ = ["require_right_results"]

_SCHEDULES = ("slices", "matrices")  # those that are chosen for small and for large calls
_MOST = 1e-4  # errors in parts of each result's largest value; float32 makes 1e-6
_checked: set[str] = set()
_logger = logging.getLogger("vkrnn")


def require_right_results(device: Device, compiler: str, prefix: str) -> None:
    """Compare a training call and its gradients with `vkrnn.reference`, once for each `compiler` and cache folder.

    It takes a second or two. ``VKRNN_SELF_CHECK=0`` leaves it out.

    Raises
    ------
    DeviceError
        If the results are wrong. The message begins with `prefix`.
    """
    folder = _core.cache_directory()
    seal = Path(folder, "cuda", f"{compiler}.checked") if folder else None
    if os.environ.get("VKRNN_SELF_CHECK") == "0" or compiler in _checked or (seal is not None and seal.exists()):
        return
    _logger.info("checking the results of %s", compiler)
    for schedule in _SCHEDULES:
        if schedule not in device.strategies["schedule"]:
            continue
        error = _error(device.index, schedule)
        if not error <= _MOST:
            raise _core.DeviceError(
                f"{prefix} the kernels that {compiler} has compiled for {device.name} compute something else: expected "
                f"errors of at most {_MOST:g} of the largest value, got {error:.2g} ({schedule}). Name the library of "
                "another version in VKRNN_NVRTC"
            )
    _checked.add(compiler)
    if seal is not None:
        with contextlib.suppress(OSError):
            seal.parent.mkdir(parents=True, exist_ok=True)
            seal.touch()


def _error(index: int, schedule: str) -> float:
    """Return the largest error of a small LSTM and its gradients, each in parts of the largest value."""
    T, N, H = 3, 16, 32
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        name: rng.uniform(-0.5, 0.5, shape).astype(np.float32)
        for name, shape in (
            ("source", (T, N, H)),
            ("recurrent_weight", (4 * H, H)),
            ("input_weight", (4 * H, H)),
            ("bias", (4 * H,)),
        )
    }
    upstream = rng.uniform(-1, 1, (T, N, H)).astype(np.float32)
    how = LSTMDescriptor(training=True)
    found: list[Any] = []
    with fp32_precision("ieee"), contextlib.closing(Device(index, schedule=schedule)) as device:
        for module, options in ((operations, {"device": device}), (reference, {})):
            results = module.lstm(**given, **options, descriptor=how)
            back = gradients if module is operations else reference
            more = {"z_state": results.z_state, "cell_output_fwd": results.cell_output}
            backward = back.lstm_gradients(source_gradient=upstream, **given, **more, **options, descriptor=how)
            found.append([*results, *backward])
    errors = [np.abs(one - other).max() / np.abs(other).max() for one, other in zip(found[0], found[1], strict=True)]
    return float(np.max(errors))  # NaN if one of them is
