"""GFLOP/s of the native CPU device's products, compared with OpenBLAS's best through NumPy.

A batched product is timed as a call of `single_gate_rnn` with one time step and no activation, less the same call
without input weight, which has no batched product. Its gradients are two such products. The time loop is timed by calls
without input weight, which have no other product. The measure is device time. OpenBLAS's best is that of square
matrices, `np.dot` with ``out``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import reference

from . import common
from .baseline_numpy import blas
from .common import (
    ALONE,
    DEVICE,
    HOST_CALL,
    Contender,
    Problem,
    Record,
    Sizes,
    cpu_name,
    milliseconds,
    show,
    table,
    timed,
)
from .problems import GATES, descriptor, named_gradients

SQUARES = (512, 768, 1024, 1536, 2048)
# [N, I] times [I, H]: three with I = H, and the projection of the LSTM 50,64,512,512.
PRODUCTS = (Sizes(1, 4096, 512, 512), Sizes(1, 2048, 1024, 1024), Sizes(1, 1024, 2048, 2048), Sizes(1, 3200, 512, 2048))
# Their I is that of a source without input weight, and depends on the cell.
LOOPS = (
    Sizes(256, 6, 0, 128),
    Sizes(64, 6, 0, 512),
    Sizes(256, 8, 0, 128),
    Sizes(64, 8, 0, 512),
    Sizes(48, 16, 0, 512),
    Sizes(64, 32, 0, 256),
    Sizes(24, 64, 0, 512),
)
SMOKE_SQUARES, SMOKE_PRODUCTS, SMOKE_LOOPS = (16,), (Sizes(1, 65, 300, 33),), (Sizes(3, 6, 0, 16),)

SQUARE, PRODUCT, GRADIENTS, LOOP = "square product", "product", "gradients of product", "time loop"
FLOORS = {PRODUCT: 75.0, GRADIENTS: 75.0, LOOP: 60.0}  # percent of OpenBLAS's best
LINEAR = vkrnn.SingleGateRNNDescriptor(activation="none")
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # these may make OpenBLAS slower

Work = Callable[[], tuple[vkrnn.Results, float]]  # also returns the device time in seconds


def draw(*shape: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Return random numbers; the same ones every time."""
    numbers = np.random.default_rng(list(shape)).standard_normal(shape, np.float32)
    return numbers * np.float32(scale)


def square(n: int) -> Problem:
    """Return a product of square matrices for OpenBLAS."""
    a, b = draw(n, n), draw(1, n, n)[0]
    out = np.empty_like(a)

    def answer() -> Mapping[str, npt.NDArray[np.float32]]:
        return {"output": np.dot(a, b, out=out)}

    contender = Contender(
        "numpy",
        cpu_name(),
        f"NumPy {np.__version__}, {blas()}",
        lambda: {HOST_CALL: timed(lambda: np.dot(a, b, out=out))},
        answer,
    )
    ideal = {"output": a.astype(np.float64) @ b.astype(np.float64)}
    return Problem(SQUARE, f"M={n} N={n} K={n}", 3 * a.nbytes, 2.0 * n**3, ideal, [contender])


def repeated(function: Callable[..., vkrnn.Results], given: Mapping[str, Any], device: vkrnn.Device) -> Work:
    """Return a call that reuses the result arrays of its first call; the device is in `given`."""
    results = function(**given)

    def work() -> tuple[vkrnn.Results, float]:
        function(**given, out=results)
        return results, device.statistics()["last_device_seconds"]

    return work


def _named(results: vkrnn.Results) -> dict[str, Any]:
    return {"output": results.output} if "output" in results._asdict() else named_gradients(results)


def product(size: Sizes, device: vkrnn.Device, *, gradients: bool) -> Problem:
    """Return only [N, I] times [I, H], or the gradients of both."""
    suffix = "_gradients" if gradients else ""
    function, right = (getattr(module, f"single_gate_rnn{suffix}") for module in (vkrnn, reference))
    rows = draw(3, size.N, size.H, scale=size.H**-0.5)
    given = {
        "source": draw(1, size.N, size.I),
        "input_weight": draw(size.H, size.I, scale=size.I**-0.5),
        "recurrent_weight": draw(size.H, size.H, scale=size.H**-0.5),
        "descriptor": LINEAR,
    }
    if gradients:
        given |= {"source_gradient": rows[1:2], "z_state": rows[2:]}
    without = {name: value for name, value in given.items() if name != "input_weight"} | {"source": rows[:1]}
    whole, rest = (repeated(function, {**each, "device": device}, device) for each in (given, without))

    def run() -> dict[str, float]:
        seconds = whole()[1]
        # A disturbed call without the product may take longer than the one with it.
        return {ALONE: max(seconds - rest()[1], seconds / 100)}

    contender = Contender("vkrnn", device.name, device.driver_version, run, lambda: _named(whole()[0]))
    count = 2 if gradients else 1
    return Problem(
        op=GRADIENTS if gradients else PRODUCT,
        workload=f"M={size.N} N={size.H} K={size.I}",
        bytes=4 * count * (size.N * size.I + size.I * size.H + size.N * size.H),
        flops=2.0 * count * size.N * size.I * size.H,
        ideal=_named(right(**given)),
        contenders=[contender],
    )


def loop(cell: str, size: Sizes, device: vkrnn.Device) -> Problem:
    """Return a forward call whose products are all in the time loop."""
    gated = GATES[cell] * size.H
    given = {
        "source": draw(size.T, size.N, gated),
        "recurrent_weight": draw(gated, size.H, scale=size.H**-0.5),
        "init_state": draw(size.N, size.H),  # without it, the first step has no product
    }
    function, how = getattr(vkrnn, cell), {"descriptor": descriptor(cell)}
    work = repeated(function, {**given, **how, "device": device}, device)
    contender = Contender(
        "vkrnn", device.name, device.driver_version, lambda: {DEVICE: work()[1]}, lambda: _named(work()[0])
    )
    ideal = _named(getattr(reference, cell)(**given, **how))
    moved = sum(array.nbytes for array in given.values()) + ideal["output"].size * 4
    flops = vkrnn.plan(function, **given, **how, device=device).flops
    return Problem(f"{LOOP}, {cell}", f"T={size.T} N={size.N} H={size.H}", moved, flops, ideal, [contender])


def problems(
    squares: Sequence[int], products: Sequence[Sizes], loops: Sequence[Sizes], device: vkrnn.Device
) -> Iterator[Problem]:
    """Yield all problems, whose contenders take turns."""
    yield from map(square, squares)
    for size in products:
        yield product(size, device, gradients=False)
        yield product(size, device, gradients=True)
    for cell in GATES:
        for size in loops:
            yield loop(cell, size, device)


def speed(record: Record) -> float:
    """Return a record's GFLOP/s."""
    return record.flops / record.median / 1e9


def report(records: Sequence[Record]) -> Iterator[str]:
    """Yield the table, and which floors were reached."""
    best = max(speed(record) for record in records if record.op == SQUARE)
    rows = (
        [
            record.op,
            record.workload,
            milliseconds(record.median),
            f"{speed(record):.1f}",
            f"{100 * speed(record) / best:.0f} %",
            f"{record.error:.1e}",
        ]
        for record in records
    )
    yield from table(["operation", "workload", "time", "GFLOP/s", "of OpenBLAS's best", "error"], rows)
    yield ""
    yield f"OpenBLAS's best: {best:.1f} GFLOP/s"
    own = [record for record in records if record.op != SQUARE]
    for op in dict.fromkeys(record.op for record in own):
        worst = min((record for record in own if record.op == op), key=speed)
        what = f"{op}, worst ({worst.workload}), of OpenBLAS's best"
        yield common.verdict(what, 100 * speed(worst) / best, FLOORS[op.split(", ")[0]], "%", at_least=True)
    for name in UNSET:
        if name in os.environ:
            yield f"{name}={os.environ[name]} is set: OpenBLAS's best may not be its best"


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    options = common.arguments(__doc__ or "").parse_args()
    device = common.open_native(options.device)
    sizes = (SMOKE_SQUARES, SMOKE_PRODUCTS, SMOKE_LOOPS) if options.smoke else (SQUARES, PRODUCTS, LOOPS)
    group = list(problems(*sizes, device))
    [records] = common.measure_all([group], 1, common.pace_of(options), options.output)
    show([f"{device!r}, {cpu_name()}, NumPy with {blas()}", *common.settings(), "medians", "", *report(records)])


if __name__ == "__main__":
    main()
