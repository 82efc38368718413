"""GFLOP/s at odd sizes, each compared with a neighbour of the same cost that suits every vector width.

The neighbour has the same batch, I = H, a multiple of 64, and T chosen for the same cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import vkrnn

from . import common
from .common import HOST_CALL, Problem, Record, Sizes, table
from .problems import Arrays, on_vkrnn

SIZES = (
    Sizes(90, 3, 50, 100),
    Sizes(60, 24, 200, 150),
    Sizes(40, 48, 96, 300),
    Sizes(150, 2, 333, 65),
    Sizes(30, 12, 700, 450),
    Sizes(300, 1, 20, 190),
    Sizes(80, 6, 128, 33),
)
SMOKE_SIZES = (Sizes(5, 3, 7, 33),)
MULTIPLE = 64
FLOOR = 0.85


def neighbour(size: Sizes) -> Sizes:
    """Return the size of the same cost, T N H (I + H), that suits every vector width."""
    wanted = size.H * (size.I + size.H)  # per row
    H = max(MULTIPLE, round((wanted / 2) ** 0.5 / MULTIPLE) * MULTIPLE)
    return Sizes(max(1, round(size.T * wanted / (2 * H * H))), size.N, H, H)


def problems(cells: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device) -> Iterator[list[Problem]]:
    """Yield every cell on every size and its neighbour, which take turns, forward first, then with gradients."""
    for cell in cells:
        for size in sizes:
            pair = [Arrays.draw(cell, size), Arrays.draw(cell, neighbour(size))]
            for gradients in (False, True):
                yield [
                    arrays.problem(device, [on_vkrnn(arrays, device, gradients=gradients)], gradients=gradients)
                    for arrays in pair
                ]


def report(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield the table, and whether the floor was reached."""
    rows = []
    found: list[tuple[float, str]] = []
    for records in groups:
        one, other = (record for record in records if record.measure == HOST_CALL)
        speeds = [record.flops / record.median / 1e9 for record in (one, other)]
        share = speeds[0] / speeds[1]
        found.append((share, f"{one.op} {one.workload}"))
        texts = (f"{speed:.1f}" for speed in speeds)
        rows.append([one.op, one.workload, other.workload, *texts, f"{share:.2f}", f"{one.error:.1e}"])
    header = ["operation", "workload", "neighbour", "GFLOP/s", "neighbour's", "share", "error"]
    yield from table(header, rows)
    yield ""
    for share, what in sorted(found):
        if share < FLOOR:
            yield common.verdict(f"{what}, of its neighbour's speed", share, FLOOR, "times", at_least=True)
    worst, what = min(found)
    if worst >= FLOOR:
        what = f"{what}, the worst, of its neighbour's speed"
        yield common.verdict(what, worst, FLOOR, "times", at_least=True)
