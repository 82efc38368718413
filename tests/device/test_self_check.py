"""The check of a compiler's results, on devices that compute right, and with results that are wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn import gradients
from vkrnn.checks import _self_check


def test_right_results_pass() -> None:
    """Every strategy of every device passes. The check computes in float32's precision, whatever precision is set."""
    for device in vkrnn.devices():
        for schedule in device.strategies["schedule"]:
            with vkrnn.fp32_precision("tf32"):
                assert _self_check._error(device.index, schedule) < 2e-6, (device.name, schedule)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 2.0])
def test_a_wrong_last_gradient_is_found(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the last gradient is found, also if it is not finite and comparisons could overlook it."""
    (cpu,) = [device for device in vkrnn.devices() if device.backend == "native"]
    real = gradients.lstm_gradients

    def spoiled(*args: Any, **kwargs: Any) -> list[Any]:
        *others, last = real(*args, **kwargs)
        return [*others, np.full_like(last, wrong)]

    monkeypatch.setattr(gradients, "lstm_gradients", spoiled)
    assert not _self_check._error(cpu.index, "native") <= _self_check._MOST
