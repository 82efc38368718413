"""How the time of a whole call grows: fitted exponents in T, N and I = H, of vkrnn and other libraries.

All workloads of an operation take turns, so that a machine that slows down affects all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import vkrnn

from . import cells, common
from .common import HOST_CALL, Problem, Record, Sizes, show, table
from .problems import Arrays

Series = Mapping[str, Sequence[int]]

# Each letter takes all its values while the others have their smallest.
SERIES: Series = {"T": (32, 64, 128, 256, 512), "N": (8, 16, 32, 64), "H": (256, 512, 1024)}
SMOKE_SERIES: Series = {"T": (3, 6), "N": (2, 4), "H": (4, 8)}


def workloads(series: Series, letter: str) -> list[Sizes]:
    """Return the workloads that differ in that letter."""
    least = {name: values[0] for name, values in series.items()}
    points = [{**least, letter: value} for value in series[letter]]
    return [Sizes(point["T"], point["N"], point["H"], point["H"]) for point in points]


def problems(names: Sequence[str], series: Series, device: vkrnn.Device) -> Iterator[list[Problem]]:
    """Yield all workloads of each operation."""
    sizes = dict.fromkeys(size for letter in series for size in workloads(series, letter))
    for cell in names:
        drawn = [Arrays.draw(cell, size) for size in sizes]
        for gradients in (False, True):
            yield [
                arrays.problem(device, list(cells.contenders(arrays, device, gradients=gradients)), gradients=gradients)
                for arrays in drawn
            ]


def exponents(records: Sequence[Record], series: Series) -> dict[tuple[str, str], float]:
    """Return the slope of log time over log size, least squares, by letter and implementation."""
    times = {(r.implementation, r.workload): r.median for r in records if r.measure == HOST_CALL}
    slopes = {}
    for letter, values in series.items():
        for name in dict.fromkeys(name for name, _ in times):
            seconds = [times[name, str(size)] for size in workloads(series, letter)]
            slopes[letter, name] = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
    return slopes


def main() -> None:
    """Measure and print a table."""
    options = cells.arguments(__doc__ or "").parse_args()
    device = common.open_device(options.device)
    series = SMOKE_SERIES if options.smoke else SERIES
    measured = common.measure_all(
        problems(options.cells, series, device), 2 * len(options.cells), common.pace_of(options), options.output
    )
    slopes = {records[0].op: exponents(records, series) for records in measured}
    show([repr(device), "exponents of the whole call's median time", ""])
    show([", ".join(f"{letter} = {' '.join(map(str, values))}" for letter, values in series.items())])
    names = list(dict.fromkeys(name for fitted in slopes.values() for _, name in fitted))
    columns = [(letter, name) for letter in series for name in names]
    rows = (
        [op, *(f"{fitted[column]:.2f}" if column in fitted else "" for column in columns)]
        for op, fitted in slopes.items()
    )
    show(["", *table(["operation", *(f"{letter}, {name}" for letter, name in columns)], rows)])


if __name__ == "__main__":
    main()
