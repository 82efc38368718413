"""GFLOP/s of a device's batched products, compared with NumPy's matmul: the input projection and its gradients.

A call of `single_gate_rnn` is timed with one time step and many more input than hidden features, so that the projection
is more than 98 % of its flops. The measure is the device time of the whole call, which slightly understates the
product's speed. The gradient call has two such products, for source and input weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

import vkrnn
from vkrnn import reference

from . import common
from .common import DEVICE, HOST_CALL, Contender, Problem, Record, Sizes, cpu_name, milliseconds, show, table, timed
from .problems import Arrays, named_gradients, on_vkrnn_alone

# T=1: [N, I] times [I, H]. The last one has few rows, like a short sequence with a small batch.
SIZES = (Sizes(1, 1024, 8192, 128), Sizes(1, 512, 16384, 256), Sizes(1, 32, 32768, 512))
GPU_SIZES = (Sizes(1, 4096, 32768, 512), Sizes(1, 512, 65536, 1024))
SMOKE_SIZES = (Sizes(1, 13, 257, 3),)

CELL = "single_gate_rnn"


def _on_numpy(arrays: Arrays, *, gradients: bool) -> Contender:
    """Return the same products alone by NumPy."""
    source, weight = arrays.given["source"][0], arrays.given["input_weight"]
    delta = np.ones((arrays.sizes.N, arrays.sizes.H), np.float32)

    def work() -> object:
        return (delta @ weight, delta.T @ source) if gradients else source @ weight.T

    return Contender("numpy", cpu_name(), f"NumPy {np.__version__}", lambda: {HOST_CALL: timed(work)}, None)


def problems(sizes: Sequence[Sizes], device: vkrnn.Device) -> Iterator[Problem]:
    """Yield the projection and its gradients for every size."""

    def measure(work: Callable[[], vkrnn.Results]) -> dict[str, float]:
        work()
        return {DEVICE: device.statistics()["last_device_seconds"]}

    for size in sizes:
        arrays = Arrays.draw(CELL, size)
        forward = arrays.forward(reference, training=True)
        for gradients in (False, True):
            ideal = named_gradients(arrays.gradients(reference, forward)) if gradients else {"output": forward.output}
            both_bytes, both_flops = arrays.cost(device, gradients=True)
            moved, flops = arrays.cost(device, gradients=False)
            yield Problem(
                op="gradients of projection" if gradients else "projection",
                workload=str(size),
                bytes=both_bytes - moved if gradients else moved,
                flops=both_flops - flops if gradients else flops,
                ideal=ideal,
                contenders=[
                    on_vkrnn_alone(arrays, device, measure, gradients=gradients),
                    _on_numpy(arrays, gradients=gradients),
                ],
            )


def share(record: Record, size: Sizes) -> float:
    """Return the part of the flops that the batched products make up."""
    products = 2 if record.op != "projection" else 1
    return products * 2.0 * size.T * size.N * size.I * size.H / record.flops


def main() -> None:
    """Measure and print a table."""
    options = common.arguments(__doc__ or "").parse_args()
    device = common.open_device(options.device)
    sizes = SMOKE_SIZES if options.smoke else SIZES if device.type == "cpu" else GPU_SIZES
    groups = list(common.measure_all(problems(sizes, device), 2 * len(sizes), common.pace_of(options), options.output))
    rows = []
    for index, (own, other) in enumerate(groups):
        size, speed = sizes[index // 2], own.flops / own.median / 1e9
        rows.append(
            [
                own.op,
                f"M={size.N} N={size.H} K={size.I}",
                milliseconds(own.median),
                f"{speed:.1f}",
                f"{100 * share(own, size):.1f} %",
                milliseconds(other.median),
                f"{other.median / own.median:.2f}",
                f"{own.error:.1e}",
            ]
        )
    header = ["product", "size", "vkrnn device", "GFLOP/s", "of the call", "numpy", "numpy : vkrnn", "error"]
    show([repr(device), "", *table(header, rows), ""])


if __name__ == "__main__":
    main()
