"""The two ways in which compiled programs of JAX call vkrnn: XLA's foreign function interface, or Python."""

from __future__ import annotations

import os
from contextvars import ContextVar
from importlib import import_module

import pytest

import vkrnn
from oracles import require

__all__ = ["both_ways", "require_ffi", "take"]

both_ways = pytest.mark.parametrize("way", ["ffi", "callback"])


def require_ffi() -> None:
    """Skip the test or the test file where the first way is not built. With VKRNN_REQUIRE_ORACLES=1 it must be."""
    require("jax")
    if problem := require("vkrnn.jax").ffi_problem():
        assert os.environ.get("VKRNN_REQUIRE_ORACLES") != "1", problem
        pytest.skip(problem, allow_module_level=True)


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the programs that the test compiles take a way. It must compile new ones.

    The first way is open to the CPU device alone, so that becomes the default device.
    """
    if way == "callback":
        monkeypatch.setattr("vkrnn.jax._ffi._problem", "a test wants it so")
    else:
        require_ffi()
        module = import_module("vkrnn.devices")  # vkrnn.devices is a function
        monkeypatch.setattr(module, "_current", ContextVar("of a test", default=(vkrnn.Device("cpu ("),)))
