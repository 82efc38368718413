"""The reports of ``python -m vkrnn info``: one screen for a person, and with ``--details`` all for a bug report."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from vkrnn import _core, operations
from vkrnn._base.text import table
from vkrnn._device import tuning
from vkrnn.arrays import empty
from vkrnn.devices import Device, devices
from vkrnn.plans import plan

__all__ = ["describe", "summarize"]

_SIZES = (64, 8, 128)  # T, N and H = I of the call whose strategies are shown
_SHOWN = {"name", "type", "driver", "driver_version", "memory_bytes", "float64"}  # these have a line of their own
_WIDTH = 100  # characters of a line
_NVIDIA = 0x10DE  # PCI vendor ID
# Packages that work with vkrnn, and what each is for.
_PACKAGES = {
    "torch": "vkrnn.torch, vkrnn.keras",
    "jax": "vkrnn.jax, vkrnn.keras",
    "keras": "vkrnn.keras",
    "onnx": "vkrnn.onnx",
    "onnxruntime": "faster models in vkrnn.onnx",
    "ml_dtypes": "bfloat16 arrays in NumPy",
}


def summarize() -> Iterator[str]:
    """Yield the lines of one screen: devices, why others are missing, and what to install."""
    yield f"vkrnn {_core.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    found = devices()
    yield from ("", "Devices, best first. Calls run on the first one unless they name another:")
    yield from table([(str(each.index), each.name, _kind_of(each)) for each in found])
    if missing := list(_missing(found)):
        yield from ("", "Missing:")
        for reason in missing:
            yield from textwrap.wrap(reason, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield from ("", "Other packages, each by `pip install`:")
    yield from table([(name, *_package(name, purpose)) for name, purpose in _PACKAGES.items()])
    yield from ("", "python -m vkrnn info --details prints all that a bug report needs.")


def _kind_of(device: Device) -> str:
    memory = f"{device.memory_bytes / 2**30:.1f} GiB"
    if device.backend == "native":
        return f"the CPU, {device.driver_version}, {memory}"
    through = "CUDA" if device.backend == "cuda" else "Vulkan"
    return f"{through}, on the CPU, for tests" if device.type == "cpu" else f"GPU through {through}, {memory}"


def _missing(found: list[Device]) -> Iterator[str]:
    """Yield a sentence for everything that is missing: what it is, why, and what to do."""
    problem, no_cuda = _core.vulkan_problem(), _core.cuda_problem()
    if problem:
        yield f"Vulkan: {problem}"
    elif not any(device.backend == "vulkan" and device.type != "cpu" for device in found):
        yield (
            "Vulkan: no GPU was found. If the machine has one, install its vendor's driver (Debian: apt install "
            "mesa-vulkan-drivers for AMD and Intel). In a container, pass the GPU and its driver through"
        )
    if no_cuda:
        advice = "; for an NVIDIA GPU, install NVIDIA's driver" if "no CUDA driver" in no_cuda else ""
        yield f"CUDA: {no_cuda}{advice}"
    for name, kind, reason in _core.skipped_devices():
        yield f"{name}, {kind}: {reason}. A newer driver may help"
    for device in found:
        if device.backend == "vulkan" and device.profile.vendor_id == _NVIDIA and not device.profile.matrix_side:
            yield f"Matrix units of {device.name} through Vulkan: build with newer tools (docs/installation.md)"
    if _core.xla_handler() is None:
        yield "Direct calls from JAX's programs: build with XLA's headers (docs/jax.md)"


def _package(name: str, purpose: str) -> tuple[str, str]:
    try:
        return version(name), purpose
    except PackageNotFoundError:
        return "missing", purpose


def describe() -> Iterator[str]:
    """Yield the lines. Devices are opened one after the other."""
    yield f"vkrnn {_core.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    yield f"{platform.platform()}, {sys.executable}"
    yield f"cache folder: {_core.cache_directory() or 'none: no home folder is known'}"
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("VKRNN_")]
    yield f"environment: {', '.join(variables) or 'nothing is set'}"
    built = _core.xla_handler() is not None
    how = "call CPU and CUDA devices" if built else "call back into Python: vkrnn was built without XLA's headers"
    yield f"programs of JAX: {how}"
    for device in devices():
        yield ""
        yield from _describe_device(device)
    skipped = _core.skipped_devices()
    problem, no_cuda = _core.vulkan_problem(), _core.cuda_problem()
    if skipped or problem or no_cuda:
        yield ""
    for name, kind, reason in skipped:
        yield f"skipped: {name}, {kind}: {reason}"
    if problem:
        yield f"Vulkan: {problem}"
    if no_cuda:
        yield f"CUDA: {no_cuda}"


def _describe_device(device: Device) -> Iterator[str]:
    yield f"{device.index}: {device.name}"
    yield f"  type: {device.type}"
    yield f"  driver: {device.driver}, {device.driver_version}"
    yield f"  memory: {device.memory_bytes / 2**30:.1f} GiB"
    for line in _core.memory_types(device.index):
        yield f"    {line}"
    dtypes = ["float32", "float16", "bfloat16", *(["float64"] if device.profile.float64 else [])]
    yield f"  dtypes: {', '.join(dtypes)}"
    for part, names in device.strategies.items():
        yield f"  {part}: {', '.join(names)}"
    if device.rounds_products:
        yield f"  float32 products: {device.float32}"
    else:
        yield "  float32 products: ieee, always: there are no matrix units"
    if tuned := tuning.read(device.profile):
        yield f"  tuned: {len(tuned)} calls, in {tuning.path_of(device.profile)}"
    own = [name for name, value in vars(type(device.profile)).items() if isinstance(value, property)]
    properties = {name: getattr(device.profile, name) for name in own if name not in _SHOWN}
    yield f"  properties: {', '.join(f'{name} {value}' for name, value in properties.items() if value != '')}"
    try:
        yield f"  host_visible: {empty(1, device=device).host_visible}"
        T, N, H = _SIZES
        source, weight = np.zeros((T, N, H), np.float32), np.zeros((4 * H, H), np.float32)
        made = plan(operations.lstm, source, weight, input_weight=weight, device=device)
        chosen = ", ".join(f"{name} {value}" for name, value in made.strategy.items())
        yield f"  an LSTM with T = {T}, N = {N}, I = H = {H}: {chosen}"
    except (_core.DeviceError, MemoryError) as error:
        yield f"  does not open: {error}"
    finally:
        device.close()
