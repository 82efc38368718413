"""Bandwidth of uploads and downloads in GiB/s, compared with copies on the host and, with CUDA, PyTorch's.

Measures uploads (`Array.copy_from`), downloads (`Array.numpy`), both at once from two threads, and calls with NumPy
arrays. The call returns its source unchanged, and its device time is subtracted. If the host maps the device's memory,
`Array.numpy` is a view, and there is no download to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

import vkrnn

from . import common
from .baseline_torch import find_torch
from .common import COPYING, DEVICE, HOST_CALL, Contender, Floats, Problem, Record, cpu_name, show, table, timed

MEBIBYTES = (1, 16, 256, 1024)
SMOKE_MEBIBYTES = (1, 16)
ON_DEVICE = 4  # arrays on the device at a time
T, H = 16, 64  # of the call; N follows from the size of its source

UPLOAD, DOWNLOAD, BOTH, CALL = "upload", "download", "both at once", "NumPy call"
LINEAR = vkrnn.SingleGateRNNDescriptor(activation="none")
FLOOR_PER_CENT = 70.0  # bandwidth of a call with NumPy arrays, relative to the measured copies


@dataclass(frozen=True)
class Way:
    """A way to upload one array and download another one. Both functions return when the copy is complete."""

    implementation: str
    device: str
    driver: str
    upload: Callable[[], object]
    download: Callable[[], Floats]
    uploaded: Callable[[], Floats]  # the uploaded array, for checks

    def both(self, threads: ThreadPoolExecutor) -> Floats:
        """Do both at once."""
        upload = threads.submit(self.upload)
        downloaded = self.download()
        upload.result()
        return downloaded

    def contenders(self, threads: ThreadPoolExecutor) -> Mapping[str, Contender]:
        """Return the way as a contender for each operation."""

        def upload() -> Mapping[str, Floats]:
            self.upload()
            return {"uploaded": self.uploaded()}

        def both() -> Mapping[str, Floats]:
            downloaded = self.both(threads)
            return {"uploaded": self.uploaded(), "downloaded": downloaded}

        return {
            UPLOAD: self._contender(self.upload, upload),
            DOWNLOAD: self._contender(self.download, lambda: {"downloaded": self.download()}),
            BOTH: self._contender(lambda: self.both(threads), both),
        }

    def _contender(self, work: Callable[[], object], answer: Callable[[], Mapping[str, Floats]]) -> Contender:
        return Contender(self.implementation, self.device, self.driver, lambda: {HOST_CALL: timed(work)}, answer)


def on_vkrnn(up: Floats, down: Floats, device: vkrnn.Device) -> Way:
    """Return copies to and from arrays on the device."""
    there, here = vkrnn.empty(up.shape, device=device), vkrnn.asarray(down, device=device)

    def upload() -> None:
        there.copy_from(up)
        there.wait()

    return Way("vkrnn", device.name, device.driver_version, upload, here.numpy, there.numpy)


def on_numpy(up: Floats, down: Floats) -> Way:
    """Return copies within the host's memory."""
    there, target = np.zeros_like(up), np.zeros_like(down)

    def download() -> Floats:
        np.copyto(target, down)
        return target

    return Way("numpy", cpu_name(), f"NumPy {np.__version__}", lambda: np.copyto(there, up), download, lambda: there)


def on_torch(torch: Any, up: Floats, down: Floats, *, pinned: bool) -> Way:
    """Return PyTorch's copies to and from CUDA, each on a stream of its own."""
    there, here = torch.empty(up.shape, device="cuda"), torch.from_numpy(down).cuda()
    source, target = torch.from_numpy(up), torch.empty(down.shape, pin_memory=pinned)
    if pinned:
        source = source.pin_memory()
    uploads, downloads = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()

    def copy(stream: Any, to: Any, tensor: Any) -> None:
        with torch.cuda.stream(stream):
            to.copy_(tensor, non_blocking=True)
        stream.synchronize()

    def download() -> Floats:
        copy(downloads, target, here)
        got: Floats = target.numpy()
        return got

    memory = "pinned" if pinned else "pageable"
    return Way(
        "torch",
        torch.cuda.get_device_name(),
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, {memory}",
        lambda: copy(uploads, there, source),
        download,
        lambda: there.cpu().numpy(),
    )


def call_on_vkrnn(source: Floats, device: vkrnn.Device) -> Contender:
    """Return a call on NumPy arrays whose output is its source."""
    weight = np.zeros((H, H), np.float32)

    def work() -> vkrnn.Results:
        return vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, device=device)

    def run() -> dict[str, float]:
        host = timed(work)
        on_device = device.statistics()["last_device_seconds"]
        return {HOST_CALL: host, DEVICE: on_device, COPYING: host - on_device}

    return Contender("vkrnn", device.name, device.driver_version, run, lambda: {"output": work().output})


def draw(mebibytes: int, which: int) -> Floats:
    """Return a source of the call; the same one every time."""
    batch = (mebibytes << 20) // (4 * T * H)
    return np.random.default_rng([mebibytes, which]).random((T, batch, H), np.float32)


def problems(
    sizes: Sequence[int], device: vkrnn.Device, torch: Any, threads: ThreadPoolExecutor
) -> Iterator[list[Problem]]:
    """Yield all operations of each size, which take turns."""
    for mebibytes in sizes:
        up, down = draw(mebibytes, 0), draw(mebibytes, 1)
        ways = [on_vkrnn(up, down, device), on_numpy(up, down)]
        if torch is not None:
            ways += [on_torch(torch, up, down, pinned=pinned) for pinned in (True, False)]
        contenders = [way.contenders(threads) for way in ways]
        ideals = {UPLOAD: {"uploaded": up}, DOWNLOAD: {"downloaded": down}, BOTH: {"uploaded": up, "downloaded": down}}
        size = f"{mebibytes} MiB"
        group = []
        for op, ideal in ideals.items():
            copied = op == UPLOAD or not vkrnn.empty(1, device=device).host_visible
            moved = sum(array.nbytes for array in ideal.values())
            group.append(Problem(op, size, moved, 0, ideal, [each[op] for each in contenders[0 if copied else 1 :]]))
        flops = vkrnn.plan(vkrnn.single_gate_rnn, up, np.zeros((H, H), np.float32), device=device).flops
        group.append(Problem(CALL, size, 2 * up.nbytes, flops, {"output": up}, [call_on_vkrnn(up, device)]))
        yield group


def who(record: Record) -> str:
    """Return the column of a record."""
    return {"numpy": "np.copyto", "torch": f"torch, {record.driver.rsplit(', ')[-1]}"}.get(
        record.implementation, record.implementation
    )


def bandwidth(*records: Record) -> float:
    """Return the GiB/s of copies one after the other."""
    return sum(record.bytes for record in records) / sum(record.median for record in records) / (1 << 30)


def copied(device: vkrnn.Device) -> str:
    """Return the part of its arrays that a call on NumPy arrays copies."""
    source = draw(SMOKE_MEBIBYTES[-1], 0)
    before = device.statistics()
    call_on_vkrnn(source, device).run()
    after = device.statistics()
    names = ("bytes_uploaded", "bytes_downloaded", "bytes_imported")
    up, down, read = ((after[name] - before[name]) / (1 << 20) for name in names)
    size = source.nbytes / (1 << 20)
    return (
        f"A call with {size:.3g} MiB in and {size:.3g} MiB out copies {up:.3g} MiB there and {down:.3g} MiB back; "
        f"{read:.3g} MiB are read where they are."
    )


def report(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield the table, and the lines below it."""
    found: dict[tuple[str, str, str], Record] = {}
    for record in (record for group in groups for record in group):
        if record.measure == (COPYING if record.op == CALL else HOST_CALL):
            found[record.workload, record.op, who(record)] = record
    columns = list(dict.fromkeys(column for *_, column in found))
    rows = list(dict.fromkeys((size, op) for size, op, _ in found))

    def cell(size: str, op: str, column: str) -> str:
        record = found.get((size, op, column))
        return f"{bandwidth(record):.2f}" if record else "-"

    body = ([f"{op}, {size}", *(cell(size, op, column) for column in columns)] for size, op in rows)
    yield from table(["GiB/s", *columns], body)
    yield ""
    sizes = list(dict.fromkeys(size for size, _ in rows))
    for size in sizes:
        for column in columns:
            if (size, UPLOAD, column) in found and (size, BOTH, column) in found:
                alone = sum(found[size, op, column].median for op in (UPLOAD, DOWNLOAD))
                share = found[size, BOTH, column].median / alone
                yield f"{size}, {column}: both at once take {share:.2f} of the time of one after the other"
    yield ""
    copies = next(column for column in ("torch, pinned", "np.copyto") if column in columns)
    for size in sizes:
        measured = bandwidth(*(found[size, op, copies] for op in (UPLOAD, DOWNLOAD)))
        reached = bandwidth(found[size, CALL, "vkrnn"]) / measured * 100
        what = f"{CALL}, {size}, of {copies}"
        yield common.verdict(what, reached, FLOOR_PER_CENT, "%", at_least=True)


def main() -> None:
    """Measure, print a table, say whether the floor was reached."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--sizes", nargs="+", type=int, help="MiB of each array (1 16 256 1024)")
    options = parser.parse_args()
    device = common.open_device(options.device)
    torch = find_torch()
    if torch is not None and not torch.cuda.is_available():
        torch = None
    wanted = options.sizes or (SMOKE_MEBIBYTES if options.smoke else MEBIBYTES)
    sizes = [size for size in wanted if ON_DEVICE * size << 20 <= device.memory_bytes]
    left_out = [f"{size} MiB: left out, too large for the device" for size in wanted if size not in sizes]
    if not sizes:
        parser.error("none of the sizes fits on the device")
    with ThreadPoolExecutor(1) as threads:
        measured = problems(sizes, device, torch, threads)
        groups = list(common.measure_all(measured, len(sizes), common.pace_of(options), options.output))
    show([f"{device!r}", "medians", "", *report(groups), "", copied(device), *left_out])


if __name__ == "__main__":
    main()
