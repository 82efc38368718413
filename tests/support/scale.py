"""How much the tests do: everything if VKRNN_TESTS=full; otherwise long tests are shortened.

With VKRNN_TESTS=merge, as in .ci/run, random calls, long use and cases that strategies share are as short as in a short
run, but whatever else takes long runs in full.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")

MODE = os.environ.get("VKRNN_TESTS", "short")
FULL = MODE == "full"
MERGE = MODE in ("merge", "full")
HANGS_AFTER = 600  # seconds, for a process that ends within seconds on most machines


def scaled(full: int, short: int) -> int:
    """Return the first number in a full run, else the second."""
    return full if FULL else short


def sample(full: Sequence[Value], every: int) -> Sequence[Value]:
    """Return all values in a full run, else every n-th."""
    return full if FULL else full[::every]


def distinct(full: Sequence[Value], every: int) -> Sequence[Value]:
    """Return all values in a full run and before a merge, because each tests something else; otherwise every n-th."""
    return full if MERGE else full[::every]
