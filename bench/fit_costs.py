"""Fits the costs with which vkrnn estimates times to a device, and prints its table as ``plan/cost_table.cpp`` has it.

Each call is timed with every time loop that runs it, in several shapes, beside the products that vkrnn chooses, and
with all ways to compute products beside the time loop that it chooses. The times of one call and one part form a group.
Each group has an unknown constant: the time of everything else, which all of its times include. Least squares fits the
costs to the rest, starting from the table that the device uses now. A cost that the times do not determine stays near
its value in that table.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn import _core
from vkrnn._cli.measured import CELLS, PASSES, MeasuredCall, draw_calls, open_with
from vkrnn._ops.calls import bind

from . import common
from .common import Sizes, show, table
from .gpu import parse_sizes

SIZES = [Sizes(64, N, H, H) for N in (1, 8, 16, 64, 128) for H in (64, 256, 512, 1024)]
SIZES += [Sizes(64, N, 2048, 2048) for N in (1, 64)]
SMOKE_SIZES = [Sizes(4, 3, 8, 8), Sizes(4, 5, 24, 24)]
PARTS = ("schedule", "gemm")
SOURCE = Path(__file__).parents[1] / "cpp/src/plan/cost_table.cpp"
COST = re.compile(r"\.(\w+) = ([0-9][0-9.e]*)")
WARM_UP = 0.2  # seconds: an idle GPU's clock is slow
PRIOR = 0.01  # residual of a cost that changes by a factor of e; a time with a relative error of 1 has a residual of 1
TURNS = 30  # the most iterations of the fit
SLOPE = 1e-3  # relative step of a cost

Floats = npt.NDArray[np.float64]


class Time(NamedTuple):
    """A measured time."""

    call: str
    part: str  # the part of the call whose strategy differs within the group
    strategy: Mapping[str, str | int]  # complete
    microseconds: float
    estimate: Callable[[Sequence[float]], tuple[float, float]]  # of both parts, by the costs


def candidates(device: vkrnn.Device, part: str, most: int) -> list[dict[str, Any]]:
    """List the strategies of one part, each with at most `most` choices of tuning parameters."""
    variants = _core.list_variants(device.profile)[part]
    return [
        {part: name, **shape}
        for name, shapes in variants.items()
        for shape in shapes[:: max(1, -(-len(shapes) // most))]
    ]


def device_microseconds(call: MeasuredCall, device: vkrnn.Device, repeats: int) -> float:
    """Return the median of the device's time, after calls that prepare and wake it up."""
    run = call.on(device)
    awake = perf_counter() + (0.0 if device.type == "cpu" else WARM_UP)
    run()
    while perf_counter() < awake:
        run()
    times = []
    for _ in range(repeats):
        run()
        device.synchronize()
        times.append(1e6 * device.statistics()["last_device_seconds"])
    return statistics.median(times)


def time_call(
    device: vkrnn.Device, label: str, call: MeasuredCall, options: argparse.Namespace, progress: tqdm[Any]
) -> Iterator[Time]:
    """Time one call with all candidates of one part beside what vkrnn chooses for the other."""
    checked = bind("fit_costs", call.function, (), call.arguments).call
    own = open_with(device, {})
    chosen = vkrnn.plan(call.function, **call.arguments, device=own).strategy
    own.close()
    for part, other in (PARTS, PARTS[::-1]):
        seen = []
        for candidate in candidates(device, part, options.shapes):
            progress.update()
            try:
                own = open_with(device, {other: chosen[other], **candidate})
            except (ValueError, vkrnn.DeviceError):  # the device cannot run this shape, or a library is missing
                continue
            try:
                strategy = vkrnn.plan(call.function, **call.arguments, device=own).strategy
                if strategy not in seen:
                    seen.append(strategy)
                    profile = own._open().profile  # an open CUDA device knows whether there is cuBLASLt
                    estimate = _core.Estimator(checked, profile, strategy, device.float32 == "tf32")
                    yield Time(label, part, strategy, device_microseconds(call, own, options.repeats), estimate)
            except (NotImplementedError, MemoryError, _core.DeviceError):  # the strategy cannot run this call
                continue
            finally:
                own.close()


def measure(device: vkrnn.Device, options: argparse.Namespace) -> list[Time]:
    """Time all calls."""
    sizes = [(size.T, size.N, size.I, size.H) for size in options.sizes]
    calls = len(options.cells) * len(sizes) * len(PASSES)
    each = sum(len(candidates(device, part, options.shapes)) for part in PARTS)
    times: list[Time] = []
    with tqdm(total=calls * each, unit="time", disable=None, leave=False) as progress:
        for label, call in draw_calls(device.memory_bytes, options.cells, sizes, [options.dtype], PASSES):
            progress.set_description(label)
            if call is not None:
                times += time_call(device, label, call, options, progress)
    return times


class Model:
    """The errors of the estimates, as a function of the costs."""

    def __init__(self, times: Sequence[Time]) -> None:
        """Find the groups."""
        self.times = times
        self.measured = np.array([time.microseconds for time in times])
        groups: dict[tuple[str, str], list[int]] = {}
        for row, time in enumerate(times):
            groups.setdefault((time.call, time.part), []).append(row)
        self.groups = [np.array(rows) for rows in groups.values()]

    def estimates(self, costs: Floats) -> Floats:
        """Return the estimated microseconds of the part that differs, for each time."""
        values = costs.tolist()
        return np.array([time.estimate(values)[PARTS.index(time.part)] for time in self.times])

    def errors(self, costs: Floats) -> Floats:
        """Return the errors relative to the times, after the best choice of each group's unknown."""
        weights = 1 / self.measured
        errors = self.estimates(costs) * weights - 1
        for rows in self.groups:
            errors[rows] -= weights[rows] * (errors[rows] @ weights[rows]) / (weights[rows] @ weights[rows])
        return errors

    def summary(self, costs: Floats) -> str:
        """Say how far off the estimates are, and how much slower the chosen strategies are than the fastest."""
        estimates, error = self.estimates(costs), float(np.sqrt(np.mean(self.errors(costs) ** 2)))
        lost = [self.measured[rows][estimates[rows].argmin()] / self.measured[rows].min() - 1 for rows in self.groups]
        return f"error {error:.1%} (root mean square), choices {np.mean(lost):.1%} slower than the best ones"


def fit(model: Model, start: Floats, free: npt.NDArray[np.intp]) -> Floats:
    """Fit the free costs by damped least squares in their logarithms."""
    logs = np.zeros(free.size)  # of the costs, relative to the start
    damping = 1e-2

    def costs(logs: Floats) -> Floats:
        changed = start.copy()
        changed[free] *= np.exp(logs)
        return changed

    def residuals(logs: Floats) -> Floats:
        return np.concatenate([model.errors(costs(logs)), PRIOR * logs])

    now = residuals(logs)
    for _ in tqdm(range(TURNS), unit="turn", desc="fit", disable=None, leave=False):
        slopes = np.stack([(residuals(logs + SLOPE * one) - now) / SLOPE for one in np.eye(free.size)], axis=1)
        normal, gradient, before = slopes.T @ slopes, slopes.T @ now, now @ now
        while damping < 1e6:
            step = -np.linalg.solve(normal + damping * np.diag(normal.diagonal()), gradient)
            changed = logs + np.clip(step, -1, 1)
            found = residuals(changed)
            if found @ found < before:
                logs, now, damping = changed, found, damping / 4
                break
            damping *= 4
        if now @ now > 0.9999 * before:
            break
    return costs(logs)


class Source:
    """The table in ``plan/cost_table.cpp``: an initializer that names each cost."""

    def __init__(self) -> None:
        """Read it. Costs in lines that end with the comment "limit" are not fitted."""
        whole = SOURCE.read_text()
        begin = whole.index(".costs = ")
        self.text = whole[begin : whole.index("};", begin)]
        found = list(COST.finditer(self.text))
        self.names = [self._path(match.start()) + match[1] for match in found]
        lines = [whole[begin + match.end() :].partition("\n")[0] for match in found]
        self.limits = np.array([line.endswith("// limit") for line in lines])
        self._spans = [match.span(2) for match in found]

    def _path(self, end: int) -> str:
        """Return the names of the structs around a position."""
        path: list[str] = []
        for match in re.finditer(r"\.(\w+) = {|}", self.text[len(".costs = {") : end]):
            path = [*path, match[1]] if match[1] else path[:-1]
        return "".join(f"{name}." for name in path)

    def with_values(self, values: Floats) -> str:
        """Return the initializer with other numbers."""
        text = self.text
        for (begin, end), value in reversed(list(zip(self._spans, values, strict=True))):
            text = text[:begin] + number(value) + text[end:]
        return text


def number(value: float) -> str:
    """Return three or four digits of a number, as C++ has it: ``1.8e7``, ``250``."""
    digits, _, power = f"{value:.4g}".partition("e")
    if not power and value >= 1e4:
        digits, _, power = f"{value:.3e}".partition("e")
    return f"{float(digits):g}" + (f"e{int(power)}" if power else "")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    add = made.add_argument
    add("--device", help="position in vkrnn.devices() or a part of the name; the best if not given")
    add("--sizes", nargs="+", type=parse_sizes, default=SIZES, metavar="T,N,H", help="of calls, I = H")
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="all if not given")
    add("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    add("--shapes", type=int, default=100, help="of one strategy, at most (%(default)s)")
    add("--repeats", type=int, default=20, help="timed calls, whose median counts (%(default)s)")
    add("--output", type=Path, help="append the times to this file, one JSON line each")
    add("--smoke", action="store_true", help="two tiny sizes, two shapes of each strategy, one repeat")
    return made


def main() -> None:
    """Measure, fit and print."""
    options = parser().parse_args()
    if options.smoke:
        options.sizes, options.shapes, options.repeats = SMOKE_SIZES, 2, 1
    device = common.open_device(options.device)
    if common.is_native(device):
        raise SystemExit(f"{device!r} has one strategy, so there is nothing to fit")
    times = measure(device, options)
    if any(time.microseconds <= 0 for time in times):
        raise SystemExit(f"{device!r} does not measure the time of its work")
    if options.output:
        with options.output.open("a") as file:
            file.writelines(json.dumps(dict(zip(Time._fields[:-1], time, strict=False))) + "\n" for time in times)
    source, start, model = Source(), np.array(_core.cost_values(device.profile)), Model(times)
    fitted = fit(model, start, np.flatnonzero(~source.limits & (start > 0)))
    rows = [(name, number(old), number(new)) for name, old, new in zip(source.names, start, fitted, strict=True)]
    show(table(("cost", "before", "fitted"), rows))
    show(["", f"before: {model.summary(start)}", f"fitted: {model.summary(fitted)}", ""])
    calls = len({time.call for time in times})
    show([f"// {len(times)} times of {calls} calls on {device.name}, {device.driver_version}; {common.commit()}"])
    show([source.with_values(fitted)])


if __name__ == "__main__":
    main()
