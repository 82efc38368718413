"""Programs that call the CPU device in a process of their own, and the calls that they make."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from cases import OPTIONAL, UPSTREAM, Case
from scale import HANGS_AFTER

__all__ = ["KINDS", "run", "shared_case"]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bidirectional": {"bidirectional": True},
    "lengths": {"bidirectional": True},
    "reset after": {"reset_after": True},
}


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the native CPU device, in a process of its own that can import the tests' modules."""
    begin = f"import sys\nsys.path[:0] = {[str(Path(__file__).parent)]!r}\n"
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(program)],
        env=os.environ | {"VKRNN_DEVICE": "cpu ("} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )


def shared_case(cell: str, kind: str, sizes: tuple[int, int, int, int]) -> Case:
    """Return a case with every argument that has an effect."""
    options = KINDS[kind] | ({"activation": "tanh"} if cell == "single_gate_rnn" else {})
    without = set() if options.get("reset_after") else {"secondary_bias"}
    return Case(cell, *sizes, options, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])) - without)
