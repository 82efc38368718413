"""Writes the tables of docs/performance.md from the records in bench/results/.

A page has a table between the lines ``<!-- bench.publish NAME -->`` and ``<!-- end -->``. Figures are never edited by
hand: measure, keep the record, and run this program. `--check` changes nothing and fails if a page would change.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from .common import groups_of, show
from .floors import host_ratios

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "README.md")  # whose figures the records must give
CELLS = {"lstm": "LSTM", "gru": "GRU", "single_gate_rnn": "RNN"}
CPU_RECORDS = {
    "2 cores, AVX2": "cells-cpu-2",
    "2 cores, AVX2, alone": "cells-cpu-2-avx2-alone",
    "2 cores, AVX-512": "cells-cpu-2-avx512",
    "16 cores, AVX-512": "cells-cpu-16",
}
GRADIENTS = " + gradients"  # ends the names of rows
OTHERS = {"torch": "PyTorch", "onnxruntime": "onnxruntime", "numpy": "NumPy"}
# By type: the record and the name of the contender there, on Vulkan, on CUDA and in modules.
GPU_RECORDS = {
    "float32": [("gpu-h200", name) for name in ("vkrnn", "vkrnn, cuda", "vkrnn, module")],
    "TF32": [
        ("gpu-h200-tf32", "vkrnn, tf32"),
        ("gpu-h200-tf32", "vkrnn, cuda tf32"),
        ("gpu-h200", "vkrnn, module in TF32"),
    ],
    "float16": [("gpu-h200-float16", name) for name in ("vkrnn", "vkrnn, cuda", "vkrnn, module")],
    "bfloat16": [("gpu-h200-bfloat16", name) for name in ("vkrnn", "vkrnn, cuda", "vkrnn, module")],
    "float32, no matrix units, six sizes": [("gpu-h200-plain", "vkrnn, without matrix units")],
}

Table = list[list[str]]


class Ratios(NamedTuple):
    """Speed-ups of a record: how many, their geometric mean, and the worst one with its row."""

    rows: int
    mean: str
    worst: str
    row: str

    @classmethod
    def of(cls, by_row: Mapping[str, float]) -> Ratios:
        """Summarize ratios by the names of their rows."""
        row, worst = min(by_row.items(), key=lambda item: item[1])
        return cls(len(by_row), f"{geometric_mean(by_row.values()):.2f}", f"{worst:.2f}", row)

    @property
    def cell(self) -> str:
        """Return the cell of a table."""
        return f"{self.mean} ({self.worst}: {self.row})"


def tables_of(record: str) -> Iterator[list[dict[str, str]]]:
    """Yield the tables that a printed record has, as rows by the names of their columns."""
    for text in re.findall(r"(?:^\|.*\|\n)+", (RESULTS / f"{record}.txt").read_text(), re.MULTILINE):
        header, _, *lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()]
        yield [dict(zip(header, line, strict=True)) for line in lines]


def with_column(record: str, column: str) -> list[dict[str, str]]:
    """Return all rows of the record's tables that have this column."""
    return [row for rows in tables_of(record) for row in rows if column in row]


def named(op: str, sizes: str) -> str:
    """Return a row's name in the tables."""
    cell, _, gradients = op.partition(" + ")
    return f"{CELLS[cell]}{' with gradients' if gradients else ''} {sizes}"


def cpu_ratios(record: str, other: str) -> dict[str, float]:
    """Return the ratios of a record of `bench.cells` by row."""
    found = {}
    for (op, workload), ratio in host_ratios(groups_of(RESULTS / f"{record}.jsonl"), other).items():
        T, N, _, H = re.findall(r"\d+", workload)
        found[named(op, f"{T},{N},{H}")] = ratio
    return found


def gpu_ratios(record: str, contender: str) -> Ratios:
    """Return the summary of a contender in a record of `bench.gpu`, which has ratios of unrounded times."""
    [row] = [
        row
        for row in with_column(record, "worst row")
        if (row["operation"], row["implementation"]) == ("all", contender)
    ]
    op, sizes = row["worst row"].split(", ")
    return Ratios(int(row["rows"]), row["geometric mean"], row["worst"], named(op, sizes))


def graph_ratios(layers: int, cell: str, dtype: str) -> dict[tuple[str, bool], float]:
    """Return the ratios of modules replayed from CUDA graphs, by sizes and whether with gradients."""
    found = {}
    for row in with_column("graphs-h200", "T,N,I,H"):
        own, _, gradients = row["operation"].partition(" + ")
        if own == cell and row["layers"] == str(layers) and row["type"] == dtype:
            T, N, _, H = row["T,N,I,H"].split(",")
            found[f"{T},{N},{H}", bool(gradients)] = float(row["torch : vkrnn.torch"])
    return found


def cpu() -> Table:
    """Return means and worst rows on CPUs."""
    table = [["", *OTHERS.values()]]
    for machine, record in CPU_RECORDS.items():
        table.append([machine, *(Ratios.of(cpu_ratios(record, other)).cell for other in OTHERS)])
    return table


def gpu() -> Table:
    """Return means and worst rows on an H200."""
    table = [["type", "Vulkan", "CUDA", "modules"]]
    for kind, contenders in GPU_RECORDS.items():
        cells = [gpu_ratios(*each).cell for each in contenders]
        table.append([kind, *cells, *["-"] * (3 - len(cells))])
    return table


def layers() -> Table:
    """Return modules of several layers, replayed from CUDA graphs."""
    table = [["layers", "T, N, I=H", "LSTM", "GRU", "LSTM, float16", "LSTM, bfloat16"]]
    kinds = (("lstm", "tf32"), ("gru", "tf32"), ("lstm", "float16"), ("lstm", "bfloat16"))
    for count in (4, 8):
        columns = [graph_ratios(count, *kind) for kind in kinds]
        every = dict.fromkeys(sizes for column in columns for sizes, _ in column)
        table += [[str(count), sizes, *(pair(column, {sizes}) for column in columns)] for sizes in every]
        table.append([str(count), "mean", *(pair(column, {*every}) for column in columns)])
    return table


def pair(ratios: Mapping[tuple[str, bool], float], chosen: set[str]) -> str:
    """Return the means of the chosen sizes' ratios, forward and with gradients."""
    means = []
    for wanted in (False, True):
        own = [ratio for (sizes, gradients), ratio in ratios.items() if sizes in chosen and gradients is wanted]
        means.append(f"{geometric_mean(own):.2f}" if own else "-")
    return " / ".join(means)


def loops() -> Table:
    """Return an LSTM with peepholes beside loops in PyTorch, forward and with gradients."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in with_column("loops-h200", "compiled : vkrnn"):
        found.setdefault(row["T,N,H"].partition(" ")[0], []).append(row)
    columns = ("loop : vkrnn", "compiled : vkrnn")
    table = [["T,N,H", "loop", "loop of a compiled cell"]]
    for sizes, rows in found.items():
        table.append([sizes, *(" / ".join(row[column] for row in rows) for column in columns)])
    return table


def gpus() -> Table:
    """Return milliseconds a step of data-parallel training."""
    found: dict[str, dict[str, str]] = {}
    for gpu_name, record in (("H200", "ddp-h200-2"), ("H100", "ddp-h100-4")):
        for row in with_column(record, "ms a step"):
            found.setdefault(f"{row['processes']} {gpu_name}", {})[row["implementation"]] = row["ms a step"]
    return [["GPUs", "vkrnn.torch", "PyTorch"]] + [
        [name, times["vkrnn.torch"], times["torch"]] for name, times in found.items()
    ]


def memory() -> Table:
    """Return peak memory of a training step over PyTorch's."""
    table = [["type", "mean", "worst row"]]
    for part in (RESULTS / "memory-h200.txt").read_text().split("$ ")[1:]:
        [dtype] = re.findall(r"--dtype (\w+)", part)
        [mean] = re.findall(r"geometric mean ([\d.]+);", part)
        [(cell, T, N, H, worst)] = re.findall(r"PyTorch's, (\w+) T=(\d+) N=(\d+) I=\d+ H=(\d+): ([\d.]+) times", part)
        table.append([dtype, mean, f"{worst}: {named(cell, f'{T},{N},{H}')}"])
    return table


def fused() -> Table:
    """Return layers with heads and resets beside fused kernels of other projects. A later run of a row replaces it."""
    times: dict[str, dict[str, str]] = {}
    for rows in tables_of("fused-h200"):
        again = {row["row"] for row in rows}
        times = {name: found for name, found in times.items() if name not in again}
        for row in rows:
            times.setdefault(row["row"], {})[row["contender"]] = row["ms"]
    table = [["row", "vkrnn, ms", "others, ms"]]
    for name, forward in times.items():
        if not name.endswith(GRADIENTS):
            training = times[name + GRADIENTS]
            both = {who: f"{forward.get(who, '-')} / {training.get(who, '-')}" for who in (forward | training)}
            others = "; ".join(f"{other} {ms}" for other, ms in both.items() if other != "vkrnn")
            table.append([name, both["vkrnn"], others])
    return table


TABLES: Mapping[str, Callable[[], Table]] = {
    made.__name__: made for made in (cpu, gpu, layers, loops, gpus, memory, fused)
}


def written(table: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    header, *lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([header, f"|{'---|' * len(table[0])}", *lines])


def published(page: Path) -> str:
    """Return the page with its tables as the records have them."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{written(TABLES[found[2]]())}\n\n<!-- end -->"

    return re.sub(r"(<!-- bench\.publish (\w+) -->).*?<!-- end -->", replaced, page.read_text(), flags=re.DOTALL)


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, and fail if a page would change")
    options = parser.parse_args()
    changed = [page for page in PAGES if published(page) != page.read_text()]
    for page in changed:
        if not options.check:
            page.write_text(published(page))
        show([f"{page.relative_to(ROOT)}: {'differs from the records' if options.check else 'written'}"])
    if changed and options.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
