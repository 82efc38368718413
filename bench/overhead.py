"""The host time of a warm small call, divided into Python, core and device, and the time of a call on device arrays.

A call on device arrays returns before it is done. A few calls are timed with an idle device before them and an untimed
wait after them, so that they include no device time, unless the device is the same processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import reference

from . import common
from .common import (
    DEVICE,
    HOST_CALL,
    RESIDENT,
    SUBMISSIONS,
    SUBMIT,
    Contender,
    Problem,
    Sizes,
    milliseconds,
    show,
    table,
    timed,
)
from .problems import GATES, Arrays, named_gradients, on_vkrnn_alone

SIZES = Sizes(8, 1, 8, 8)
FLOOR_SECONDS = 200e-6
RESIDENT_FLOOR_SECONDS = 30e-6
MOST_CALLS = 2000
ROW = 16  # calls on arrays between two waits; fewer than the host may run ahead


def _on_arrays(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    """Return the same calls on arrays on the device."""
    there = arrays.on(device)
    forward = there.forward(vkrnn, training=True)

    def work() -> vkrnn.Results:
        return there.gradients(vkrnn, forward) if gradients else there.forward(vkrnn)

    def row() -> None:
        for _ in range(ROW):
            work()

    def run() -> dict[str, float]:
        device.synchronize()
        before = device.statistics()["submissions"]
        seconds = timed(row)
        submissions = device.statistics()["submissions"] - before
        device.synchronize()
        return {RESIDENT: seconds / ROW, SUBMISSIONS: submissions / ROW}

    def answer() -> Mapping[str, npt.NDArray[np.float32]]:
        results = work()
        named = named_gradients(results) if gradients else {"output": results.output}
        return {name: array.numpy() for name, array in named.items()}

    return Contender("vkrnn", device.name, device.driver_version, run, answer)


def problems(device: vkrnn.Device) -> Iterator[Problem]:
    """Yield forward and gradients of each cell."""

    def measure(work: Callable[[], vkrnn.Results]) -> dict[str, float]:
        host = timed(work)
        counted = device.statistics()
        return {HOST_CALL: host, SUBMIT: counted["last_host_seconds"], DEVICE: counted["last_device_seconds"]}

    for cell in GATES:
        arrays = Arrays.draw(cell, SIZES)
        forward = arrays.forward(reference, training=True)
        for gradients in (False, True):
            ideal = named_gradients(arrays.gradients(reference, forward)) if gradients else {"output": forward.output}
            moved, flops = arrays.cost(device, gradients=gradients)
            contenders = [
                on_vkrnn_alone(arrays, device, measure, gradients=gradients),
                _on_arrays(arrays, device, gradients=gradients),
            ]
            op = f"{cell}_gradients" if gradients else cell
            yield Problem(op, str(SIZES), moved, flops, ideal, contenders)


def main() -> None:
    """Measure, print a table, say whether the floor was reached."""
    options = common.arguments(__doc__ or "").parse_args()
    device = common.open_device(options.device)
    pace = replace(common.pace_of(options), most=MOST_CALLS)
    groups = list(common.measure_all(problems(device), 2 * len(GATES), pace, options.output))
    rows = []
    for records in groups:
        by_measure = {record.measure: record for record in records}
        host, submit, work, resident = (by_measure[name].median for name in (HOST_CALL, SUBMIT, DEVICE, RESIDENT))
        parts = [host, by_measure[HOST_CALL].p90, host - submit, submit - work, work]
        on_arrays = [resident, by_measure[RESIDENT].p90]
        submissions = by_measure[SUBMISSIONS].median
        calls = by_measure[HOST_CALL].n
        rows.append([records[0].op, *map(milliseconds, (*parts, *on_arrays)), f"{submissions:g}", str(calls)])
    header = ["operation", "call", "p90", "Python", "core", "device", "on arrays", "p90", "submissions", "calls"]
    show([repr(device), f"{SIZES}, medians", "", *table(header, rows), ""])
    for records in groups:
        times = {record.measure: record.median * 1e6 for record in records}
        op = records[0].op
        parts_of_call = {
            "host's part": times[HOST_CALL] - times[DEVICE],
            "whole call": times[HOST_CALL],
        }
        for what, reached in parts_of_call.items():
            show([common.verdict(f"{op}, {what}", reached, FLOOR_SECONDS * 1e6, "us", at_least=False)])
        floor = RESIDENT_FLOOR_SECONDS * 1e6
        show([common.verdict(f"{op}, call on arrays", times[RESIDENT], floor, "us", at_least=False)])


if __name__ == "__main__":
    main()
