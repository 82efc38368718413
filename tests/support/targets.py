"""Test targets: every device with its own choice of strategies, and with each of its strategies fixed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

import vkrnn
from scale import FULL
from vkrnn.results import Results

Value = TypeVar("Value")

# Fixed together with a strategy: a CPU would choose one lane, unlike any GPU.
SIZES: dict[str, dict[str, int]] = {"steps": {"lanes": 8, "rows": 4}}
# Fixed together with a strategy, as another target: otherwise only large states are computed this way.
MORE_SIZES: dict[str, dict[str, int]] = {"persistent": {"kept_blocks": 1, "depth_groups": 2, "blocks_ahead": 2}}


@functools.cache
def _listed() -> Sequence[vkrnn.Device]:
    """Return the devices, once: drivers take milliseconds to list them, and each test is named after its device."""
    return vkrnn.devices()


@dataclass(frozen=True)
class Target:
    """A device by its index, and the options that fix its strategies. Without options it chooses for each call."""

    index: int
    options: tuple[tuple[str, str | int], ...] = ()

    @property
    def id(self) -> str:
        """Return the target in the form of VKRNN_TEST_DEVICE."""
        name = _listed()[self.index].name.split(" (")[0].replace(" ", "-")
        return " ".join([name, *(f"{name}={value}" for name, value in self.options)])

    @property
    def is_costly(self) -> bool:
        """Return whether kernels compile slowly: for Vulkan on a CPU (llvmpipe), and for CUDA by NVRTC."""
        device = _listed()[self.index]
        return device.backend == "cuda" or (device.type == "cpu" and device.backend == "vulkan")

    def opened(self) -> vkrnn.Device:
        """Open the device."""
        return vkrnn.Device(self.index, **dict(self.options))  # type: ignore[arg-type]

    def share(self, cases: Sequence[Value], parts: int) -> Sequence[Value]:
        """Return the cases that a test runs on this target: unless in a full run, on a costly target, one part of them.

        Successive targets take different parts, so that a device with at least `parts` targets runs every case.
        """
        return cases if FULL or not self.is_costly else cases[targets().index(self) % parts :: parts]


def forced(index: int) -> list[Target]:
    """Return the device with each of its strategies fixed, in as few targets as possible.

    A loop strategy is combined with the product strategy of its name, or in turn with the others.
    """
    device = vkrnn.Device(index)
    listed = device.strategies
    loops, products = listed["schedule"], listed["gemm"]
    if len(loops) == len(products) == 1:
        return []
    others = [product for product in products if product not in loops]
    targets = []
    for i in range(max(len(loops), len(others))):
        loop = loops[i % len(loops)]
        product = loop if loop in products else others[-1 - i % len(others)]
        sizes = dict(SIZES.get(loop, {}))
        if "lanes" in sizes:
            sizes["lanes"] = min(sizes["lanes"], device.profile.subgroup_size)
        targets.append(Target(index, tuple({"schedule": loop, "gemm": product, **sizes}.items())))
    for loop, sizes in MORE_SIZES.items():
        if loop in loops:
            targets.append(Target(index, tuple({"schedule": loop, "gemm": others[0], **sizes}.items())))
    return targets


closes_the_default = pytest.mark.skipif(
    "VKRNN_TEST_DEVICE" in os.environ, reason="closes the device that VKRNN_TEST_DEVICE has all calls run on"
)


@functools.cache
def _distinct() -> Sequence[int]:
    """Return the index of the first device of each kind. A machine may have several equal GPUs."""
    first: dict[tuple[str, str], int] = {}
    for device in _listed():
        model = device.name[device.name.find(" (") :] if device.backend == "cuda" else device.name
        first.setdefault((device.backend, model), device.index)
    return list(first.values())


def targets() -> list[Target]:
    """Return all targets of every kind of device, or the one in VKRNN_TEST_DEVICE."""
    if "VKRNN_TEST_DEVICE" in os.environ:
        index = vkrnn.default_device().index
        _, *options = os.environ["VKRNN_TEST_DEVICE"].split()
        pairs = (option.split("=") for option in options)
        fixed = tuple((name, int(value) if value.isdecimal() else value) for name, value in pairs)
        return [Target(index, fixed)] if fixed else [Target(index), *forced(index)]
    return [target for index in _distinct() for target in (Target(index), *forced(index))]


def devices() -> list[Target]:
    """Return one target per device: without fixed strategies, unless VKRNN_TEST_DEVICE fixes some."""
    first: dict[int, Target] = {}
    for target in targets():
        first.setdefault(target.index, target)
    return list(first.values())


def require_cuda_device() -> None:
    """Skip the test file if vkrnn lists no CUDA device."""
    if not any(device.backend == "cuda" for device in vkrnn.devices()):
        pytest.skip("vkrnn lists no CUDA device", allow_module_level=True)


def is_there(device: vkrnn.Device) -> bool:
    """Return whether the device opens. It does not if its options need cuBLASLt, which is not installed."""
    try:
        device._open()
    except vkrnn.DeviceError as error:
        if "cuBLASLt, which computes products, was not found" in str(error):
            return False
        raise
    return True


def fits(device: vkrnn.Device, target: Target, function: Callable[..., Results], **call: Any) -> bool:
    """Return whether the target's strategies fit the call, so that its plan uses them."""
    if not is_there(device):
        return False
    try:
        plan = vkrnn.plan(function, **call, device=device)
    except NotImplementedError as error:
        if target.options and "does not fit this call" in str(error):
            return False
        raise
    wanted: Mapping[str, str | int] = dict(target.options)
    assert {name: plan.strategy.get(name) for name in wanted} == wanted
    return True


def require_fit(device: vkrnn.Device, target: Target, function: Callable[..., Results], **call: Any) -> None:
    """Skip the test if the target's strategies do not fit the call."""
    if not fits(device, target, function, **call):
        pytest.skip(f"strategies of {target.id} do not fit this call")
