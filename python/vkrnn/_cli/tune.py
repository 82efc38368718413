"""Measures a device's strategies for the calls that the user names, and stores the fastest."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkrnn import _core
from vkrnn._base.text import table
from vkrnn._cli import pytorch
from vkrnn._cli.bench import Timing, time_call
from vkrnn._cli.measured import CELLS, PASSES, MeasuredCall, Strategy, draw_calls, open_with
from vkrnn._cli.output import Progress
from vkrnn._cli.sample import time_calls
from vkrnn._device import tuning
from vkrnn._ops.calls import bind
from vkrnn.checks import TF32_TOLERANCE, Comparison
from vkrnn.devices import Device
from vkrnn.plans import plan

__all__ = ["add_options", "check_options", "shown", "tune"]

_SIZES = [(64, 8, 128, 128), (128, 32, 256, 256)]
_LARGEST = 2**31 - 1  # limit of T, N, I and H
_LONGEST = 3600  # seconds
_SIZES_HELP = "of calls; 64,8,128,128 and 128,32,256,256 if not given"
# How much the results of two strategies may differ (see Comparison): by roundings of long sums only.
_TOLERANCES = {"float32": 1e-4, "float64": 1e-10, "float16": 2e-2, "bfloat16": 1e-1}
_WARM_UP = 0.4  # seconds, because an idle GPU has a low clock rate
_WORTH = 1.03  # least speed-up over the default strategies for an entry, because times vary by this much


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options except the device."""
    parser.add_argument("--sizes", nargs="+", type=_sizes, default=_SIZES, metavar="T,N,I,H", help=_SIZES_HELP)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="default: all")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES), help="default: all")
    parser.add_argument("--dtypes", nargs="+", choices=_TOLERANCES, default=["float32"], help="default: float32")
    parser.add_argument("--schedules", nargs="+", metavar="NAME", help="loop strategies to try (default: all)")
    parser.add_argument("--gemms", nargs="+", metavar="NAME", help="product strategies to try (default: all)")
    parser.add_argument("--seconds", type=_seconds, default=0.1, help="measuring time per strategy (default: 0.1)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--print", action="store_true", help="show the current table, and measure nothing")
    group.add_argument("--forget", action="store_true", help="remove the table")


def check_options(device: Device, options: argparse.Namespace) -> None:
    """Raise ValueError if the options name a strategy that the device does not have."""
    for option, part in (("schedules", "schedule"), ("gemms", "gemm")):
        known = device.strategies[part]
        for name in getattr(options, option) or ():
            if name not in known:
                raise ValueError(f"argument --{option}: expected {' or '.join(map(repr, known))}, got {name!r}")


def tune(device: Device, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Measure the calls in `options` on the device, and store strategies that are faster than the default ones."""
    faster: list[tuning.Entry] = []
    as_fast: list[tuning.Entry] = []
    torch = pytorch.find()
    place = pytorch.prepare(torch, device)
    ratios: dict[str, float] = {}
    rows = [("call", "default", "ms", "fastest", "ms", "ratio", f"PyTorch ({place.upper()}), ms")]
    total = len(options.cells) * len(options.sizes) * len(options.dtypes) * len(options.passes)
    calls = draw_calls(device.memory_bytes, options.cells, options.sizes, options.dtypes, options.passes)
    for number, (label, call) in enumerate(calls):
        progress = Progress(f"{number + 1}/{total} {label}")
        found = None if call is None else _Search(device, call, options, progress).run()
        progress.clear()
        if found is None:
            say(f"  {label}: does not fit this device")
            continue
        (as_fast if found.fastest is found.default else faster).append(found.entry)
        times = [f"{1e3 * each.seconds:.3f}" for each in (found.default, found.fastest)]
        names = [_short(each.strategy) for each in (found.default, found.fastest)]
        ratio = found.default.seconds / found.fastest.seconds
        theirs = _time_pytorch(torch, call, place, options.seconds)
        if theirs:
            ratios[label] = theirs.minimum / (1e3 * found.fastest.seconds)
        other = f"{theirs.minimum:.3f}" if theirs else "-"
        rows.append((label, names[0], times[0], names[1], times[1], f"{ratio:.2f}", other))
    entries, path = tuning.merge(device.profile, faster, as_fast)
    for line in table(rows):
        say(line)
    say(pytorch.compared(torch, place, ratios))
    say(f"{entries} calls are in {path}" if path else "no cache folder is known: nothing was stored")


def shown(device: Device) -> list[str]:
    """Return the current table as lines of text."""
    entries = tuning.read(device.profile)
    rows = [("call", "strategy", "ms", "default", "ratio")]
    for entry in entries:
        default, tuned = map(float, entry["milliseconds"])
        text = f"{_label(entry)}, T <= {entry['T']}"
        rows.append((text, _long(entry["strategy"]), f"{tuned:.3f}", f"{default:.3f}", f"{default / tuned:.2f}"))
    return [f"{len(entries)} calls in {tuning.path_of(device.profile)}", *(table(rows) if entries else [])]


def _sizes(text: str) -> tuple[int, int, int, int]:
    try:
        T, N, features, hidden = (int(part) for part in text.split(","))
    except ValueError:
        T = N = features = hidden = 0
    if not all(1 <= size <= _LARGEST for size in (T, N, features, hidden)):
        raise argparse.ArgumentTypeError(f"expected T,N,I,H, each from 1 to {_LARGEST}, got {text!r}")
    return T, N, features, hidden


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"expected 0 to {_LONGEST}, got {text!r}")
    return seconds


@dataclass(frozen=True)
class _Timed:
    strategy: Strategy
    seconds: float


@dataclass(frozen=True)
class _Found:
    entry: tuning.Entry
    default: _Timed
    fastest: _Timed


@dataclass
class _Search:
    """Times strategies of one call: first loop strategies with the default products, then product strategies.

    If the options exclude the other part's current strategy, candidates are combined with every named one.
    """

    device: Device
    call: MeasuredCall
    options: argparse.Namespace
    progress: Progress
    tried: set[tuple[tuple[str, str | int], ...]] = field(default_factory=set)
    answer: dict[str, Any] = field(default_factory=dict)

    def run(self) -> _Found | None:
        """Return the result, or None if the device cannot make the call."""
        default = self._try({})
        if default is None:
            return None
        fastest = default
        variants = _core.list_variants(self.device.profile)
        wanted = {
            "schedule": self.options.schedules or variants["schedule"],
            "gemm": self.options.gemms or variants["gemm"],
        }
        names = {part: [name for name in variants[part] if name in wanted[part]] for part in wanted}
        for part, other in (("schedule", "gemm"), ("gemm", "schedule")):
            found = fastest.strategy
            if found[other] in names[other]:
                partners = [{other: found[other], **_sizes_of(found, other, variants)}]
            else:
                partners = [{other: name} for name in names[other]]
            candidates = [
                {part: name, **sizes, **rest}
                for name in names[part]
                for sizes in variants[part][name]
                for rest in partners
            ]
            for number, candidate in enumerate(candidates):
                self.progress.show((number + 1) / len(candidates), _long(candidate))
                timed = self._try(candidate)
                if timed is not None and timed.seconds < fastest.seconds:
                    fastest = timed
        if fastest is not default:
            default, fastest = self._again(default, fastest)
            if default.seconds < _WORTH * fastest.seconds:
                fastest = default
        checked = bind("tune", self.call.function, (), self.call.arguments)
        entry = {
            **_core.tuned_call(checked.call, self.device.profile, self.device._rounds()),
            "strategy": dict(fastest.strategy),
            "milliseconds": [round(1e3 * each.seconds, 6) for each in (default, fastest)],
        }
        return _Found(entry, default, fastest)

    def _try(self, strategy: Strategy) -> _Timed | None:
        """Time the call; None if that was done before, does not fit, or disagrees with the default strategies."""
        try:
            device = open_with(self.device, strategy)
        except (ValueError, TypeError, _core.DeviceError):  # the last one if a library is missing
            return None
        try:
            complete = plan(self.call.function, **self.call.arguments, device=device).strategy
            key = tuple(sorted(complete.items()))
            if key in self.tried:
                return None
            self.tried.add(key)
            call = self.call.on(device)
            if not self._agrees(call()):
                return None
            return _Timed(complete, statistics.median(_times(call, device, self.options.seconds)))
        except (NotImplementedError, MemoryError, _core.DeviceError):
            return None
        finally:
            device.close()

    def _agrees(self, results: Any) -> bool:
        got = {name: np.asarray(getattr(results, name).numpy(), np.float64) for name in results._fields}
        if not self.answer:
            self.answer = got
        rounds = self.call.dtype == "float32" and self.device._rounds()
        bound = TF32_TOLERANCE if rounds else _TOLERANCES[self.call.dtype]
        return all(Comparison.of(name, got[name], wanted).error <= bound for name, wanted in self.answer.items())

    def _again(self, *both: _Timed) -> tuple[_Timed, _Timed]:
        """Time two strategies in turns: what disturbs one then disturbs the other too."""
        devices = [open_with(self.device, each.strategy) for each in both]
        try:
            calls = [self.call.on(device) for device in devices]
            times: list[list[float]] = [[], []]
            for _ in range(3):
                for own, call, device in zip(times, calls, devices, strict=True):
                    own.extend(_times(call, device, self.options.seconds))
        finally:
            for device in devices:
                device.close()
        first, second = (_Timed(each.strategy, statistics.median(own)) for each, own in zip(both, times, strict=True))
        return first, second


def _times(call: Callable[[], object], device: Device, seconds: float) -> list[float]:
    """Return the seconds of calls on device arrays, after calls that warm up the device."""
    awake = time.perf_counter() + (0.0 if device.type == "cpu" else _WARM_UP)
    call()
    while time.perf_counter() < awake:
        call()
    device.synchronize()

    def call_and_wait() -> None:
        call()
        device.synchronize()

    return time_calls(call_and_wait, seconds)


def _time_pytorch(torch: Any, call: MeasuredCall | None, place: str, seconds: float) -> Timing | None:
    """Time PyTorch's call after others that warm up; None if PyTorch cannot make it."""
    try:
        theirs = call and pytorch.resident_call(torch, call.cell, call.which, call.arguments, call.dtype, place)
        if not theirs:
            return None
        time_calls(theirs, 0.0 if place == "cpu" else _WARM_UP)
        return time_call(theirs, seconds)
    except RuntimeError:  # too little memory, or a dtype that PyTorch does not compute there
        return None


def _sizes_of(strategy: Strategy, part: str, variants: Any) -> dict[str, int]:
    """Return the parameters of the strategy of that part: those that its variants name."""
    names = {name for sizes in variants[part][strategy[part]] for name in sizes}
    return {name: int(size) for name, size in strategy.items() if name in names}


def _short(strategy: Strategy) -> str:
    return f"{strategy['schedule']} {strategy['gemm']}"


def _long(strategy: Strategy) -> str:
    return ", ".join(
        str(value) if name in {"schedule", "gemm"} else f"{name} {value}" for name, value in strategy.items()
    )


def _label(entry: tuning.Entry) -> str:
    training = " training" if entry["training"] else ""
    sizes = ",".join(f"{name}={entry[name]}" for name in ("N", "I", "H", "D"))
    phases = " (two phases)" if entry["phases"] > 1 else ""
    dtype = entry["dtype"] if entry["float32"] == "ieee" else entry["float32"]
    return f"{entry['operation']}{training}{phases} {dtype} {sizes}"
