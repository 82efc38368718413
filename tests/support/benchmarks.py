"""What tests of the benchmarks have in common: the devices to run them on, and the form of their tables."""

from __future__ import annotations

import re

import pytest

import vkrnn
from bench.common import is_native

TABLE = re.compile(r"^\| [^|]+(\| [^|]+)+\|\n\| :-+ (\| -+: )+\|\n(\| [^|]+(\| [^|]+)+\|\n)+", re.MULTILINE)

NATIVE = next((str(device.index) for device in vkrnn.devices() if is_native(device)), None)
# The option that selects the native CPU device, unless it is the default.
ON_NATIVE = () if is_native(vkrnn.default_device()) else ("--device", str(NATIVE))
VULKAN = next((str(device.index) for device in vkrnn.devices() if not is_native(device)), None)
native = pytest.mark.skipif(NATIVE is None, reason="there is no native CPU device")
vulkan = pytest.mark.skipif(VULKAN is None, reason="there is no Vulkan device")
