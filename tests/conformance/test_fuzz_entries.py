"""Every public callable, called with nonsense, returns a result or raises a documented class of error."""

from __future__ import annotations

import inspect
import os
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from drawn_calls import DOCUMENTED, garbage
from scale import scaled

CALLS = int(os.environ.get("VKRNN_FUZZ_CALLS", scaled(5000, 1500)))
# Errors besides the documented ones: indices, buffers and DLPack, packages that are not installed.
ALLOWED = (*DOCUMENTED, IndexError, BufferError, ImportError, StopIteration)
# Left out: methods that close or switch the tests' device, and those of Python and pybind11.
LEFT_OUT = {
    "Activation",
    "MPSGraphRNNActivation",
    "close",
    "__class__",
    "__init_subclass__",
    "__new__",
    "__getattr__",
    "__getattribute__",
    "__buffer__",
    "__release_buffer__",
}
LEFT_OUT |= {"__enter__", "__exit__", "__setattr__", "__delattr__", "__doc__", "_pybind11_conduit_v1_"}


def _of_module(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    return {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__ if name not in LEFT_OUT}


def _of_object(name: str, instance: Any) -> dict[str, Callable[..., Any]]:
    ours = [kind for kind in type(instance).__mro__ if kind.__module__.startswith("vkrnn")]
    members = {member for kind in ours for member in vars(kind)} - LEFT_OUT
    present = (member for member in sorted(members) if hasattr(instance, member))  # some are of other devices only
    return {f"{name}.{member}": getattr(instance, member) for member in present}


def entries() -> dict[str, Callable[..., Any]]:
    """Return all public functions, classes and methods by name."""
    array = vkrnn.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    results = vkrnn.single_gate_rnn(np.ones((2, 1, 2), np.float32), np.ones((2, 2), np.float32))
    found: dict[str, Any] = {}
    for module in (vkrnn, vkrnn.mpsgraph, vkrnn.reference, vkrnn.convert):
        found |= _of_module(module)
    for name, instance in {"Array": array, "Device": array.device, "Results": results}.items():
        found |= _of_object(name, instance)
    return {name: entry for name, entry in found.items() if callable(entry)}


def parameters(entry: Callable[..., Any]) -> list[str]:
    """Return the names of the entry's parameters as far as Python knows them."""
    try:
        return list(inspect.signature(entry).parameters)
    except ValueError:
        return []


def test_arguments_that_make_no_sense() -> None:
    number = int(os.environ["VKRNN_FUZZ_SEED"])
    found = entries()
    names = list(found)
    ended: Counter[str] = Counter()
    for i in range(CALLS // 2):
        rng = np.random.default_rng([number, i])
        name = names[rng.integers(len(names))]
        positional = [garbage(rng) for _ in range(rng.integers(4))]
        known = parameters(found[name])
        keywords = {str(rng.choice(known)): garbage(rng) for _ in range(rng.integers(3)) if known}
        how = "result"
        try:
            found[name](*positional, **keywords)
        except ALLOWED as error:
            how = type(error).__name__
        except Exception as error:  # noqa: BLE001
            pytest.fail(
                f"seed {number}, call {i}: {name}(*{positional}, **{keywords})\n{type(error).__name__}: {error}"
            )
        ended[how] += 1
    assert ended["result"] > 0
    assert ended["TypeError"] > CALLS / 5
