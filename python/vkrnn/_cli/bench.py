"""A short benchmark of the cells, forward and training, against NumPy and, if installed, PyTorch."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkrnn import reference
from vkrnn._cli import pytorch
from vkrnn._cli.output import Progress
from vkrnn._cli.sample import SAMPLES, Floats, Sample, time_calls
from vkrnn.devices import Device

if sys.platform != "win32":
    import resource

__all__ = ["Row", "Timing", "run", "time_call"]

T, N, H = 64, 8, 128  # I = H
_LEAST_CALLS = 5  # one that takes a hundred times as long as usual would show nothing by itself
_USUAL_SPREAD = 0.5
_USUAL_PREEMPTIONS = 50  # a second


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

    @property
    def ratio(self) -> float | None:
        """PyTorch's time over vkrnn's; None if there is none, or if something disturbed one of them."""
        own, _, theirs = self.timings
        if own is None or theirs is None or own.disturbed or theirs.disturbed:
            return None
        return theirs.minimum / own.minimum


def run(device: Device, progress: Progress, torch: Any, place: str, *, seconds: float = 0.3) -> Iterator[Row]:
    """Time each operation on the device and with the other libraries; NumPy is the float64 reference.

    `torch` is the package, or None, and `place` is where it computes.
    """
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
            known = "gru_reset_after" if name == "gru" else name
            others = pytorch.copied_calls(torch, known, source, upstream, place) or (None, None)
            for label, *calls in zip((name, f"{name} + gradients"), own, theirs, others, strict=True):
                timings: list[Timing | None] = []
                for library, call in zip(("vkrnn", "NumPy", "PyTorch"), calls, strict=True):
                    progress.show(done / (6 * len(SAMPLES)), f"{label}, {library}")
                    timings.append(time_call(call, seconds) if call else None)
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


def time_call(call: Callable[[], object], seconds: float) -> Timing:
    """Time calls for about this time, after a first one that warms up."""
    call()
    before = _preemptions()
    times = time_calls(call, seconds, least=_LEAST_CALLS)
    return Timing.of(times, _preemptions() - before)


def _preemptions() -> int:
    """Return how often a thread of this process has lost its processor to another one; 0 if the system cannot tell."""
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
