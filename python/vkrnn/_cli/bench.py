"""A short benchmark of the cells, forward and training, against NumPy and, if installed, PyTorch."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vkrnn import reference
from vkrnn._cli import pytorch
from vkrnn._cli.output import Progress
from vkrnn._cli.sample import SAMPLES, Floats, Sample, time_calls
from vkrnn.devices import Device

__all__ = ["Row", "Timing", "run", "time_call"]

T, N, H = 64, 8, 128  # I = H
_LEAST_CALLS = 5  # one that takes a hundred times as long as usual would show nothing by itself
_USUAL_SPREAD = 0.5
_USUAL_SHARE = 0.1


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
    def of(times: Sequence[float], share: float) -> Timing:
        """Return the timing of calls, from the seconds of each and the share of the processors that others had."""
        minimum = min(times)
        spread = statistics.median(times) / minimum - 1
        return Timing(1e3 * minimum, spread, spread > _USUAL_SPREAD or share > _USUAL_SHARE)


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
        """PyTorch's time over vkrnn's, if both are known."""
        own, _, theirs = self.timings
        return theirs.minimum / own.minimum if own and theirs else None


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
    start, before = time.perf_counter(), _seconds_of_others()
    times = time_calls(call, seconds, least=_LEAST_CALLS)
    others = _seconds_of_others() - before
    return Timing.of(times, others / (time.perf_counter() - start) / (os.cpu_count() or 1))


def _seconds_of_others() -> float:
    """Return the processor time that was not this process's since the system started; 0 if the system does not tell."""
    try:
        all_processors = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, all_processors.split()[1:9])
    except (OSError, ValueError):
        return 0
    own = os.times()
    busy = user + nice + system + sum(interrupts_and_stolen)
    return busy / os.sysconf("SC_CLK_TCK") - own.user - own.system
