"""The host time of a warm small call, and where it goes: Python, the core, the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import reference

from . import common
from .common import DEVICE, HOST_CALL, SUBMIT, Contender, Problem, Sizes, milliseconds, show, table, timed
from .problems import GATES, Arrays, named_gradients

SIZES = Sizes(8, 1, 8, 8)
FLOOR_SECONDS = 200e-6
MOST_CALLS = 2000


def _contender(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    forward = arrays.forward(vkrnn, training=True, device=device)

    def work() -> vkrnn.Results:
        if gradients:
            return arrays.gradients(vkrnn, forward, device=device)
        return arrays.forward(vkrnn, device=device)

    def run() -> dict[str, float]:
        host = timed(work)
        counted = device.statistics()
        return {HOST_CALL: host, SUBMIT: counted["last_host_seconds"], DEVICE: counted["last_device_seconds"]}

    def answer() -> Mapping[str, npt.NDArray[np.float32]]:
        return named_gradients(work()) if gradients else {"output": work().output}

    return Contender("vkrnn", device.name, device.driver_version, run, answer)


def problems(device: vkrnn.Device) -> Iterator[Problem]:
    """Yield forward and gradients of each cell."""
    for cell in GATES:
        arrays = Arrays.draw(cell, SIZES)
        forward = arrays.forward(reference, training=True)
        for gradients in (False, True):
            ideal = named_gradients(arrays.gradients(reference, forward)) if gradients else {"output": forward.output}
            moved, flops = arrays.cost(device, gradients=gradients)
            contender = _contender(arrays, device, gradients=gradients)
            op = f"{cell}_gradients" if gradients else cell
            yield Problem(op, str(SIZES), moved, flops, ideal, [contender])


def main() -> None:
    """Measure, print a table, say whether the floor was reached."""
    options = common.arguments(__doc__ or "").parse_args()
    device = common.open_device(options.device)
    pace = replace(common.pace_of(options), most=MOST_CALLS)
    groups = list(common.measure_all(problems(device), 2 * len(GATES), pace, options.output))
    rows = []
    for records in groups:
        by_measure = {record.measure: record for record in records}
        host, submit, work = (by_measure[name].median for name in (HOST_CALL, SUBMIT, DEVICE))
        parts = [host, by_measure[HOST_CALL].p90, host - submit, submit - work, work]
        rows.append([records[0].op, *map(milliseconds, parts), str(records[0].n)])
    header = ["operation", "call", "p90", "Python", "core", "device", "calls"]
    show([f"{device!r}, {device.flavour!r}", f"{SIZES}, medians", "", *table(header, rows), ""])
    for records in groups:
        times = {record.measure: record.median * 1e6 for record in records}
        op = records[0].op
        host = times[HOST_CALL] - times[DEVICE]
        show([common.verdict(f"{op}, host's part", host, FLOOR_SECONDS * 1e6, "us", at_least=False)])
        show([common.verdict(f"{op}, whole call", times[HOST_CALL], FLOOR_SECONDS * 1e6, "us", at_least=False)])


if __name__ == "__main__":
    main()
