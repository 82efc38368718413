"""How much the tests do: everything if VKRNN_TESTS=full, as in .ci/run; otherwise long tests are shortened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")

FULL = os.environ.get("VKRNN_TESTS") == "full"
HANGS_AFTER = 600  # seconds, for a process that ends within seconds on most machines


def scaled(full: int, short: int) -> int:
    """Return the first number in a full run, else the second."""
    return full if FULL else short


def sample(full: Sequence[Value], every: int) -> Sequence[Value]:
    """Return all values in a full run, else every n-th."""
    return full if FULL else full[::every]
