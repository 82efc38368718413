"""Thousands of random calls, half of them with a mistake: no crash, hang, wrong answer or undocumented error.

The seed is VKRNN_FUZZ_SEED, which the header of the test run shows, and the number of calls VKRNN_FUZZ_CALLS. On
llvmpipe, nearly every set of options compiles new kernels, which takes most of the time. VKRNN_FUZZ_CALLS_OF_OPTIONS
makes that many calls in a row share their options; they differ in sizes, numbers, layouts and mistakes. test_soak
checks calls that are the same in every run.
"""

from __future__ import annotations

import faulthandler
import os
from collections import Counter

import pytest

import vkrnn
from drawn_calls import check, drawn
from resident import opened
from scale import HANGS_AFTER, scaled

CALLS = int(os.environ.get("VKRNN_FUZZ_CALLS", scaled(5000, 1500)))
CALLS_OF_OPTIONS = int(os.environ.get("VKRNN_FUZZ_CALLS_OF_OPTIONS", "1"))
PARTS = 20


def run(seed: int, first: int, end: int) -> Counter[str]:
    """Draw and check these calls. Return and print how many ended in which way (pytest -rP shows it)."""
    ended: Counter[str] = Counter()
    for number in range(first, end):
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        call = None
        try:
            call = drawn(seed, number, CALLS_OF_OPTIONS)
            how = check(call)
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"seed {seed}, call {number}: {call}\n{type(error).__name__}: {error}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        ended[how] += 1
    print(dict(ended))  # noqa: T201
    return ended


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_calls(part: int) -> None:
    each = CALLS // PARTS
    ended = run(int(os.environ["VKRNN_FUZZ_SEED"]), part * each, (part + 1) * each)
    if each >= 100:
        assert ended["right"] > each / 3
        assert min(ended["TypeError"], ended["ValueError"]) > 0
    if each >= 1000:  # one call in fifty has numbers that are not finite
        assert ended["not finite"] > 0


def test_drawn_calls_on_a_vulkan_device() -> None:
    """Fewer calls, because most of them compile a pipeline."""
    with opened("mapped") as device, device:
        assert vkrnn.default_device() is device
        assert run(int(os.environ["VKRNN_FUZZ_SEED"]), 0, CALLS // scaled(50, 100))["right"] > 0
