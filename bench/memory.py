"""Peak memory of a training step on a GPU: vkrnn on device arrays, and PyTorch with cuDNN.

A step is a training forward call and the gradients of input, weights, biases and initial states. The peak covers its
arguments, its results, and all memory that the libraries take or keep for it. It is measured in the second step.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn._cli.measured import open_with

from . import cells, common
from .baseline_torch import TorchCell
from .common import Sizes, show, table
from .gpu import DTYPES, SIZES, SMOKE_SIZES, parse_sizes
from .gpu_contenders import Torch, torch_there
from .problems import Arrays

CEILING = 1.3  # relative to PyTorch's peak


@dataclass(frozen=True)
class Row:
    """The peaks of one call, a line of JSON. Sizes are in bytes; `torch` is None without PyTorch."""

    commit: str
    device: str
    op: str
    workload: str
    dtype: str
    float32: str  # of vkrnn: tf32 or ieee
    vkrnn: int
    torch: int | None


def vkrnn_peak(arrays: Arrays, like: vkrnn.Device) -> int:
    """Return the bytes of the arguments plus those that the device allocates in two steps."""
    device = open_with(like, {})
    there = arrays.on(device)
    device.synchronize()
    before = device.statistics()["bytes_allocated"]
    forward = there.forward(vkrnn, training=True)
    back = there.gradients(vkrnn, forward)
    there.forward(vkrnn, training=True, out=forward)
    there.gradients(vkrnn, forward, out=back)
    device.synchronize()
    grown = int(device.statistics()["bytes_allocated"] - before)
    device.close()
    return grown + sum(int(array.nbytes) for array in (*arrays.given.values(), arrays.source_gradient))


def torch_peak(torch: Any, arrays: Arrays, dtype: str) -> int:
    """Return the largest size of all tensors and workspaces during the second step."""
    before = torch.cuda.memory_allocated()
    cell = TorchCell(torch, arrays, "cuda", dtype, gradients=True)
    cell.work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    cell.work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - int(before)


def rows(
    device: vkrnn.Device, torch: Torch | None, sizes: Sequence[Sizes], names: Sequence[str], dtype: str
) -> Iterator[Row]:
    """Measure each call."""
    for size, cell in tqdm([*itertools.product(sizes, names)], unit="row", disable=None, leave=False):
        arrays = Arrays.draw(cell, size, dtype=dtype, states=True)
        own = vkrnn_peak(arrays, device)
        other = torch_peak(torch.module, arrays, dtype) if torch else None
        yield Row(common.commit(), device.name, cell, str(size), dtype, device.float32, own, other)


def report(found: Sequence[Row]) -> Iterator[str]:
    """Yield the table of peaks, and whether the ceiling was kept."""
    lines, ratios = [], {}
    for row in found:
        line = [row.op, ",".join(word[2:] for word in row.workload.split()), f"{row.vkrnn / 1e6:.1f}"]
        if row.torch:
            ratios[f"{row.op} {row.workload}"] = ratio = row.vkrnn / row.torch
            line += [f"{row.torch / 1e6:.1f}", f"{ratio:.2f}"]
        lines.append(line)
    compared = ["torch", "vkrnn : torch"] if ratios else []
    yield from table(["training step", "T,N,I,H", "vkrnn, MB", *compared], lines)
    if ratios:
        worst = max(ratios, key=ratios.__getitem__)
        mean, beyond = geometric_mean(ratios.values()), sum(ratio > CEILING for ratio in ratios.values())
        yield f"\ngeometric mean {mean:.2f}; {beyond} of {len(ratios)} rows beyond {CEILING:g}"
        yield common.verdict(f"peak : PyTorch's, {worst}", ratios[worst], CEILING, "times", at_least=False)


def main() -> None:
    """Measure, and print the table."""
    parser = cells.arguments(__doc__ or "")
    parser.add_argument("--sizes", nargs="+", type=parse_sizes, metavar="T,N,H", help="workloads, I = H (bench.gpu's)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of all tensors (%(default)s)")
    options = parser.parse_args()
    device, torch = common.open_device(options.device), torch_there("cuda")
    sizes = options.sizes or (SMOKE_SIZES if options.smoke else SIZES)
    found = []
    for row in rows(device, torch if isinstance(torch, Torch) else None, sizes, options.cells, options.dtype):
        found.append(row)
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    other = f"torch {torch.module.__version__}" if isinstance(torch, Torch) else torch
    show([repr(device), *common.settings(), other, "", f"{options.dtype}, float32={device.float32}", ""])
    show(report(found))


if __name__ == "__main__":
    main()
