"""Finds a device among those that the core lists, and logs what the core reports."""

from __future__ import annotations

import logging

from vkrnn import _core

__all__ = ["log_reports", "select", "why_no_cuda"]

_logger = logging.getLogger("vkrnn")


def select(selector: int | str | None, where: str) -> tuple[int, _core.Profile]:
    """Return the index and the profile of the first device that the selector means; None means the best one.

    An int, or digits alone, are a position.

    Errors begin with `where`: a TypeError, a ValueError if there is no such device, or a DeviceError if it is a CUDA
    device that cannot be used.
    """
    if selector is not None and (isinstance(selector, bool) or not isinstance(selector, (int, str))):
        raise TypeError(f"{where}: expected an int or a str, got {type(selector).__name__}")
    if isinstance(selector, str) and selector.removeprefix("-").isdecimal():
        selector = int(selector)
    name = selector.lower() if isinstance(selector, str) else ""
    # Ask Vulkan's drivers only if the device may be theirs, because that takes far longer than a call.
    for complete in (False, True):
        profiles = _core.list_devices(complete)
        log_reports()
        for index, profile in enumerate(profiles):
            if selector in (None, index) or (name and name in profile.name.lower()):
                return index, profile
    if name.startswith("cuda") and (reason := why_no_cuda(name if ":" in name else "cuda:")):
        raise _core.DeviceError(f"{where}: {selector!r} cannot be used: {reason}")
    listed = ", ".join(f"{index}: {profile.name}" for index, profile in enumerate(profiles))
    problem = _core.vulkan_problem()
    listed = f"({listed}; Vulkan: {problem})" if problem else f"({listed})"
    by_index = isinstance(selector, int)
    expected = f"an index from 0 to {len(profiles) - 1}" if by_index else "a part of a device's name"
    raise ValueError(f"{where}: expected {expected}, got {selector!r} {listed}")


def why_no_cuda(name: str) -> str:
    """Return why there is no CUDA device whose name begins with `name`; empty if the driver has no reason."""
    reasons = [reason for skipped, _, reason in _core.skipped_devices() if skipped.startswith(name)]
    return reasons[0] if reasons else _core.cuda_problem()


def log_reports() -> None:
    """Log what the core has reported since the last time."""
    for severity, text in _core.take_reports():
        _logger.log(getattr(logging, severity), "%s", text)
