"""How much the tests do: everything where VKRNN_TESTS=full, as in .ci/run, else less of what takes long."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")

FULL = os.environ.get("VKRNN_TESTS") == "full"


def scaled(full: int, short: int) -> int:
    """Return the first number where all tests run, else the second."""
    return full if FULL else short


def sample(full: Sequence[Value], every: int) -> Sequence[Value]:
    """Return all where all tests run, else every n-th."""
    return full if FULL else full[::every]
