"""Compiles the kernels that `bench.gpu` needs, with many processes, so that its own time goes into measuring.

On a machine that has never run vkrnn, a row of `bench.gpu` takes seconds to compile and one processor to do it. This
makes each call once, in as many processes as there are processors. Drivers and vkrnn keep what they compile on disk.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn

from .common import THREADS, Sizes, show
from .gpu import DTYPES, SIZES, SMOKE_SIZES, parse_sizes
from .gpu_contenders import on_vkrnn
from .problems import GATES, Arrays

KINDS = (*DTYPES, "tf32")


@dataclass(frozen=True)
class Job:
    """A cell on a workload, forward and with gradients, on a device."""

    cell: str
    sizes: Sizes
    dtype: str
    device: int
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return what messages call it."""
        return f"{self.cell} {self.sizes} {self.options.get('float32', self.dtype)} on device {self.device}"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add(
        "--devices", nargs="+", type=int, help="indices in vkrnn.devices() (the first Vulkan and the first CUDA device)"
    )
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="dtypes, and tf32 for rounded float32 (all)")
    add("--cells", nargs="+", choices=list(GATES), default=list(GATES), help="cells (all)")
    add("--sizes", nargs="+", type=parse_sizes, default=SIZES, metavar="T,N,H", help="I = H (those of bench.gpu)")
    add("--processes", type=int, default=THREADS, help="how many at once (%(default)s)")
    add("--smoke", action="store_true", help="a tiny size, to test the script")
    return made


def first_devices() -> list[int]:
    """Return the indices of the first device of each back end that runs kernels of GPUs."""
    found: dict[str, int] = {}
    for device in vkrnn.devices():
        found.setdefault(device.backend, device.index)
    return [index for backend, index in found.items() if backend != "native"]


def compile_all(job: Job) -> tuple[Job, str]:
    """Make the job's calls. Return the job, and the error if there was one."""
    try:
        device = vkrnn.Device(job.device, **job.options)  # type: ignore[arg-type]
        arrays = Arrays.draw(job.cell, job.sizes, dtype=job.dtype, states=True)
        for gradients in (False, True):
            on_vkrnn("vkrnn", arrays, device).work(arrays, gradients).answer()
        device.close()
    except (RuntimeError, MemoryError) as error:
        return job, str(error)
    return job, ""


def _limit_threads() -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"


def main() -> None:
    """Compile, and say what failed."""
    options = parser().parse_args()
    sizes = SMOKE_SIZES if options.smoke else options.sizes
    devices = options.devices or first_devices()
    jobs = [
        Job(cell, each, "float32", index, {"float32": "tf32"}) if kind == "tf32" else Job(cell, each, kind, index)
        for each, kind, cell, index in itertools.product(sizes, options.kinds, options.cells, devices)
    ]
    jobs.sort(key=lambda job: -job.sizes.N * job.sizes.H)  # those that take longest
    _limit_threads()
    failed = []
    with multiprocessing.get_context("spawn").Pool(min(options.processes, len(jobs))) as pool:
        ended = pool.imap_unordered(compile_all, jobs)
        for job, error in tqdm(ended, total=len(jobs), unit="job", disable=None, leave=False):
            if error:
                failed.append(f"{job}: {error}")
    show([f"{len(jobs) - len(failed)} of {len(jobs)} jobs compiled, {options.processes} at once.", *failed])
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
