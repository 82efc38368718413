"""A short benchmark of the three cells, forward and training, against NumPy and, if installed, PyTorch."""

from __future__ import annotations

import importlib
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkrnn import reference
from vkrnn._sample import SAMPLES, Floats, Sample, time_calls
from vkrnn.devices import Device

__all__ = ["Row", "run"]

T, N, H = 64, 8, 128  # I = H
_MODULES = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}


@dataclass(frozen=True)
class Row:
    """A call's time in milliseconds for each library; None if PyTorch is not installed."""

    operation: str
    vkrnn: float
    numpy: float
    torch: float | None


def run(device: Device, *, seconds: float = 0.3) -> Iterator[Row]:
    """Time each operation on the device and with the other libraries; NumPy is the float64 reference."""
    torch = _torch()
    rng = np.random.default_rng(0)
    source, upstream = (rng.standard_normal((T, N, H), np.float32) for _ in range(2))
    for sample in SAMPLES:
        given = sample.arguments(rng, H, H)
        name = sample.forward.__name__
        with device:
            own = _calls(sample, sample.forward, sample.backward, source, upstream, given)
            theirs = _calls(
                sample, getattr(reference, name), getattr(reference, f"{name}_gradients"), source, upstream, given
            )
            others = _torch_calls(torch, _MODULES[name], source, upstream) if torch else (None, None)
            for label, call, other, third in zip((name, f"{name} + gradients"), own, theirs, others, strict=True):
                yield Row(
                    label, _median(call, seconds), _median(other, seconds), _median(third, seconds) if third else None
                )


def _calls(
    sample: Sample,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    source: Floats,
    upstream: Floats,
    given: dict[str, Any],
) -> tuple[Callable[[], object], Callable[[], object]]:
    def train() -> object:
        saved = sample.saved_from(forward(source, **given))
        return backward(source, source_gradient=upstream, **saved, **given)

    return lambda: forward(source, **given), train


def _torch() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch")
    except ImportError:
        return None


def _torch_calls(
    torch: Any, name: str, source: Floats, upstream: Floats
) -> tuple[Callable[[], object], Callable[[], object]]:
    layer = getattr(torch.nn, name)(H, H)
    fed, above = torch.from_numpy(source).requires_grad_(), torch.from_numpy(upstream)

    def forward() -> object:
        with torch.no_grad():
            return layer(fed)

    def train() -> object:
        output, _ = layer(fed)
        return torch.autograd.grad(output, [fed, *layer.parameters()], above)

    return forward, train


def _median(call: Callable[[], object], seconds: float) -> float:
    """Return the median time in milliseconds of calls after the first, which warms up."""
    call()
    return 1e3 * statistics.median(time_calls(call, seconds))
