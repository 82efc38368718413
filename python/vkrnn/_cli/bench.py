"""A short benchmark of the cells, forward and training, against NumPy and, if installed, PyTorch."""

from __future__ import annotations

import importlib
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkrnn import reference
from vkrnn._cli.output import Progress
from vkrnn._cli.sample import SAMPLES, Floats, Sample, time_calls
from vkrnn.devices import Device

if sys.platform != "win32":
    import resource

__all__ = ["Row", "Timing", "run"]

T, N, H = 64, 8, 128  # I = H
_LEAST_CALLS = 5  # one that takes a hundred times as long as usual would show nothing by itself
_USUAL_SPREAD = 0.5
_USUAL_PREEMPTIONS = 50  # a second
# PyTorch's modules, for the cells that it has.
_MODULES = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru": "GRU"}


@dataclass(frozen=True)
class Timing:
    """How long several calls of the same kind took.

    Attributes
    ----------
    minimum : float
        Milliseconds of the fastest call.
    spread : float
        How much longer the median call took, as a fraction of that.
    disturbed : bool
        Whether something else has probably used the processors meanwhile.
    """

    minimum: float
    spread: float
    disturbed: bool

    @staticmethod
    def of(times: Sequence[float], preemptions: int) -> Timing:
        """Return the timing of calls, from the seconds of each and from how often a thread lost its processor."""
        minimum = min(times)
        spread = statistics.median(times) / minimum - 1
        disturbed = spread > _USUAL_SPREAD or preemptions > _USUAL_PREEMPTIONS * (0.2 + sum(times))
        return Timing(1e3 * minimum, spread, disturbed)


@dataclass(frozen=True)
class Row:
    """An operation and its timing in each library: vkrnn, NumPy and PyTorch; None for one that is not installed."""

    operation: str
    timings: tuple[Timing | None, ...]

    @property
    def disturbed(self) -> bool:
        """Whether one of the timings is."""
        return any(each is not None and each.disturbed for each in self.timings)


def run(device: Device, progress: Progress, *, seconds: float = 0.3) -> Iterator[Row]:
    """Time each operation on the device and with the other libraries; NumPy is the float64 reference."""
    torch = _torch()
    done = 0
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
            known = torch and name in _MODULES
            others = _torch_calls(torch, _MODULES[name], source, upstream) if known else (None, None)
            for label, *calls in zip((name, f"{name} + gradients"), own, theirs, others, strict=True):
                timings: list[Timing | None] = []
                for library, call in zip(("vkrnn", "NumPy", "PyTorch"), calls, strict=True):
                    progress.show(done / (6 * len(SAMPLES)), f"{label}, {library}")
                    timings.append(_timed(call, seconds) if call else None)
                    done += 1
                progress.clear()
                yield Row(label, tuple(timings))


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


def _timed(call: Callable[[], object], seconds: float) -> Timing:
    """Time calls after the first, which warms up."""
    call()
    before = _preemptions()
    times = time_calls(call, seconds, least=_LEAST_CALLS)
    return Timing.of(times, _preemptions() - before)


def _preemptions() -> int:
    """Return how often a thread of this process has lost its processor to another one; 0 if the system cannot tell."""
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
