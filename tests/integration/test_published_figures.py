"""Figures in README.md and docs/performance.md match the records in bench/results/."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

import pytest

pytest.importorskip("tqdm")  # bench needs it
os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported

from bench.common import groups_of
from bench.floors import host_ratios

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
# The records of the tables' platforms, and the baselines' names in the records.
RECORDS = {
    "2 cores, AVX2": "cells-cpu-2",
    "2 cores, AVX-512": "cells-cpu-2-avx512",
    "16 cores, AVX-512": "cells-cpu-16",
}
# For each platform of the summary, the record and the contender there.
GPU_PLATFORMS = {
    "H200, float32, Vulkan": ("gpu-h200", "vkrnn"),
    "H200, float32, CUDA": ("gpu-h200", "vkrnn, cuda"),
    "H200, float32, modules": ("gpu-h200", "vkrnn, module"),
    "H200, TF32, Vulkan": ("gpu-h200-tf32", "vkrnn, tf32"),
    "H200, TF32, CUDA": ("gpu-h200-tf32", "vkrnn, cuda tf32"),
    "H200, TF32, modules": ("gpu-h200", "vkrnn, module in TF32"),
    "H200, float16, Vulkan": ("gpu-h200-float16", "vkrnn"),
    "H200, float16, CUDA": ("gpu-h200-float16", "vkrnn, cuda"),
    "H200, float16, modules": ("gpu-h200-float16", "vkrnn, module"),
    "H200, bfloat16, Vulkan": ("gpu-h200-bfloat16", "vkrnn"),
    "H200, bfloat16, CUDA": ("gpu-h200-bfloat16", "vkrnn, cuda"),
    "H200, bfloat16, modules": ("gpu-h200-bfloat16", "vkrnn, module"),
    "H200, float32, without matrix units": ("gpu-h200-plain", "vkrnn, without matrix units"),
    "H100, float32": ("gpu-h100", "vkrnn"),
    "H100, TF32, Vulkan": ("gpu-h100-tf32", "vkrnn"),
    "H100, TF32, CUDA": ("gpu-h100-tf32", "vkrnn, cuda"),
    "H100, TF32, six more sizes, Vulkan": ("gpu-h100-tf32-six", "vkrnn"),
    "H100, TF32, six more sizes, CUDA": ("gpu-h100-tf32-six", "vkrnn, cuda"),
    "H100, float16, Vulkan": ("gpu-h100-float16", "vkrnn"),
    "H100, float16, CUDA": ("gpu-h100-float16", "vkrnn, cuda"),
    "H200, NumPy to NumPy": ("gpu-h200-transfers", "vkrnn"),
}
# The sections with a table of every row, and the platforms in each of its cells.
GPU_SECTIONS = {
    kind: [f"H200, {kind}, {where}" for where in ("Vulkan", "CUDA", "modules")]
    for kind in ("float32", "TF32", "float16", "bfloat16")
} | {"Without matrix units": ["H200, float32, without matrix units"]}
RESULTS = ROOT / "bench" / "results"
OTHERS = {"PyTorch": "torch", "onnxruntime": "onnxruntime", "NumPy": "numpy"}
CELLS = {"lstm": "LSTM", "gru": "GRU", "single_gate_rnn": "RNN"}

Ratios = Mapping[tuple[str, str], float]


def described(op: str, *sizes: str) -> str:
    """Return a row's name in the tables."""
    cell, _, gradients = op.partition(" + ")
    return f"{CELLS[cell]}{' with gradients' if gradients else ''} {', '.join(sizes)}"


def summary() -> dict[tuple[str, str], list[str]]:
    """Return the rows of the summary: number of rows, mean and worst row by platform and baseline."""
    lines = [list(row.values()) for row in table_with(PERFORMANCE, "rows")]
    return {(platform, words_of(against)): cells for platform, against, *cells in lines}


def words_of(label: str) -> str:
    """Return a table's label without the version at its end."""
    return re.sub(r" [\d.]+$", "", label)


def rows(page: Path, columns: int) -> list[list[str]]:
    """Return the cells of a page's tables that have this many columns."""
    lines = [line[1:-1].split("|") for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns]


def table_with(page: Path, column: str) -> list[dict[str, str]]:
    """Return the rows of the page's only table that has this column, by the names of its columns."""
    tables = re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE)
    parsed = [[[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines()] for text in tables]
    [(header, _, *lines)] = [cells for cells in parsed if column in cells[0]]
    return [dict(zip(header, line, strict=True)) for line in lines]


@pytest.mark.parametrize("section", GPU_SECTIONS)
def test_rows_of_gpus_are_on_record(section: str) -> None:
    """Every ratio in a section's table is the benchmark's, and all of them are there."""
    expected: dict[tuple[str, str], list[str]] = {}
    for index, platform in enumerate(GPU_SECTIONS[section]):
        record, contender = GPU_PLATFORMS[platform]
        for row in table_with(RESULTS / f"{record}.txt", f"ratio of {contender}"):
            ratios = expected.setdefault((row["operation"], row["T,N,I=H"]), ["-"] * len(GPU_SECTIONS[section]))
            ratios[index] = row[f"ratio of {contender}"] or "-"
    assert len(expected) >= 36
    [text] = re.findall(rf"^### {section}$(.*?)^##", PERFORMANCE.read_text(), re.MULTILINE | re.DOTALL)
    operations = [op for cell in CELLS for op in (cell, f"{cell} + gradients")]
    found = {
        (op, sizes.strip().replace(" ", "")): cell.strip().split(" / ")
        for sizes, *cells in (line[1:-1].split("|") for line in re.findall(r"^\| \d.*$", text, re.MULTILINE))
        for op, cell in zip(operations, cells, strict=True)
        if cell.strip() != "-"
    }
    assert found == expected


def test_means_of_gpus_are_on_record() -> None:
    """README.md has the means of the summary."""
    means = {platform: cells[1] for (platform, _), cells in summary().items()}
    text = " ".join(README.read_text().split())
    for kind in ("float32", "TF32", "float16", "bfloat16"):
        pair = " and ".join(means[f"H200, {kind}, {device}"] for device in ("Vulkan", "CUDA"))
        assert f"{pair} in {kind}" in text


@pytest.mark.parametrize("platform", GPU_PLATFORMS)
def test_the_summary_of_gpus_is_on_record(platform: str) -> None:
    """The number of rows, mean and worst row are the benchmark's."""
    record, contender = GPU_PLATFORMS[platform]
    printed = rows(RESULTS / f"{record}.txt", 6)
    [(count, mean, worst, row)] = [cells for name, other, *cells in printed if (name, other) == ("all", contender)]
    op, sizes = row.split(", ")
    found = [cells for (name, _), cells in summary().items() if name == platform]
    assert found == [[count, mean, f"{worst}: {described(op, *sizes.split(','))}"]]


@pytest.mark.parametrize("contender", ["vkrnn, options", "vkrnn, bidirectional"])
def test_the_cost_of_options_is_on_record(contender: str) -> None:
    """The mean and the worst row are the benchmark's."""
    printed = rows(RESULTS / "gpu-h200-options.txt", 6)
    [(mean, worst, row)] = [cells[1:] for name, other, *cells in printed if (name, other) == ("all", contender)]
    op, sizes = row.split(", ")
    expected = [mean, f"{worst}: {described(op, *sizes.split(','))}"]
    assert expected in [cells for _, *cells in rows(PERFORMANCE, 3)]


def test_the_table_of_loops_is_on_record() -> None:
    """The ratios are the benchmark's."""
    found = [[row["loop"], row["loop of a compiled cell"]] for row in table_with(PERFORMANCE, "loop")]
    assert found == [
        [row["loop : vkrnn"], row["compiled : vkrnn"]] for row in table_with(RESULTS / "loops-h200.txt", "compiled")
    ]


def test_the_table_of_layers_is_on_record() -> None:
    """Every ratio of modules replayed from CUDA graphs is the benchmark's, and all rows in TF32 are there."""
    name = re.compile(
        r"^\| (?P<op>\w+( \+ gradients)?) +\| +(?P<sizes>[\d,]+) \| +(?P<layers>\d+) \| +tf32 ", re.MULTILINE
    )
    expected: dict[tuple[str, str, str], list[str]] = {}
    for line in (RESULTS / "graphs-h200.txt").read_text().splitlines():
        if row := name.match(line):
            cell, _, gradients = row["op"].partition(" + ")
            T, N, _, H = row["sizes"].split(",")
            ratios = expected.setdefault((f"{T}, {N}, {H}", row["layers"], CELLS[cell]), ["", ""])
            ratios[bool(gradients)] = line.split("|")[7].strip()
    found = {
        (row["T, N, I=H, TF32"], row["layers"], cell): row[cell].split(" / ")
        for row in table_with(PERFORMANCE, "T, N, I=H, TF32")
        for cell in ("LSTM", "GRU")
    }
    assert len(expected) == 14
    assert found == expected


def test_the_table_of_several_gpus_is_on_record() -> None:
    """Milliseconds are the benchmark's, and its commands are named."""
    expected: dict[str, dict[str, str]] = {}
    for gpu, record in (("H200", "ddp-h200-2"), ("H100", "ddp-h100-4")):
        path = RESULTS / f"{record}.txt"
        assert f"`{path.read_text().splitlines()[0].removeprefix('$ ')}`" in PERFORMANCE.read_text()
        for row in table_with(path, "ms a step"):
            name = {"torch": "PyTorch"}.get(row["implementation"], row["implementation"])
            expected.setdefault(f"{row['processes']} {gpu}", {})[name] = row["ms a step"]
    found = {
        row["GPUs"]: {name: row[name] for name in ("vkrnn.torch", "PyTorch")} for row in table_with(PERFORMANCE, "GPUs")
    }
    assert found == expected


def test_the_table_of_memory_is_on_record() -> None:
    """The means and the worst rows are the benchmark's."""
    parts = (RESULTS / "memory-h200.txt").read_text().split("$ ")[1:]
    expected = []
    for part in parts:
        [dtype] = re.findall(r"--dtype (\w+)", part)
        [mean] = re.findall(r"geometric mean ([\d.]+);", part)
        [(cell, T, N, H, worst)] = re.findall(r"PyTorch's, (\w+) T=(\d+) N=(\d+) I=\d+ H=(\d+): ([\d.]+) times", part)
        expected.append([dtype, mean, f"{worst}: {described(cell, T, N, H)}"])
    [text] = re.findall(r"^### Memory$(.*?)^##", PERFORMANCE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        [cell.strip() for cell in line[1:-1].split("|")] for line in re.findall(r"^\| b?float.*$", text, re.MULTILINE)
    ]
    assert lines == expected


def test_answers_beyond_the_limits_are_on_record() -> None:
    """The page says how many there are in the records of the H200, and quotes errors and limits of each kind."""
    kinds = ("gpu-h200", "gpu-h200-tf32", "gpu-h200-float16", "gpu-h200-bfloat16", "gpu-h200-plain")
    texts = [(RESULTS / f"{kind}.txt").read_text() for kind in kinds]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("WRONG")]
    assert f"{len(lines)} of 982 answers" in PERFORMANCE.read_text()
    beyond = {
        (float(error), float(limit))
        for line in lines
        for error, limit in re.findall(r"\w+ ([\d.e-]+) \(at most ([\d.e-]+)\)", line)
        if float(error) >= float(limit)  # equal if they differ by less than the rounding of the text
    }
    quoted = {
        (float(f"{float(row['error']):.1e}"), float(f"{float(row['limit']):.1e}"))
        for row in table_with(PERFORMANCE, "limit")
    }
    assert quoted == beyond


def test_the_runs_of_the_summary_are_on_record() -> None:
    """Each platform has a command and a commit, the same as its record if that has them."""
    page = PERFORMANCE.read_text()
    [sizes] = re.findall(r'^SIZES="([^"]*)"$', page, re.MULTILINE)
    runs = {platform: cells for platform, *cells in (row.values() for row in table_with(PERFORMANCE, "record"))}
    paths = {platform: PERFORMANCE.parent / re.findall(r"\((.*)\)", cells[2])[0] for platform, cells in runs.items()}
    assert {platform for platform, _ in summary()} == {*RECORDS, *GPU_PLATFORMS}
    assert {path.stem for path in paths.values()} == {
        *RECORDS.values(),
        *(record for record, _ in GPU_PLATFORMS.values()),
    }
    for platform, (command, commit, _) in runs.items():
        path = paths[platform]
        if platform not in RECORDS:
            assert (
                path.read_text().splitlines()[0] == f"$ {command.strip('`').replace('$SIZES', ' '.join(sizes.split()))}"
            )
            continue
        assert path.name == f"{RECORDS[platform]}.jsonl"
        [recorded] = {records[0].commit for records in groups_of(path)}
        assert recorded.startswith(re.findall(r"\d, (\w{7})", commit)[0])
        assert recorded.endswith("-dirty") == commit.endswith(" and local changes")


def test_every_record_is_quoted() -> None:
    """The documentation or the table of costs names it, and bench/results/README.md lists it."""
    pages = [*(ROOT / "docs").glob("*.md"), README, ROOT / "cpp" / "src" / "plan" / "cost_table.cpp"]
    text = "".join(page.read_text() for page in pages)
    listed = (RESULTS / "README.md").read_text()
    for record in RESULTS.iterdir():
        if record.name != "README.md":
            assert record.stem in text, record.name
            assert record.name in listed, record.name


@pytest.fixture(scope="module")
def ratios() -> dict[str, Ratios]:
    """Return the recorded ratios by the tables' words."""
    found = {}
    for machine, record in RECORDS.items():
        groups = groups_of(RESULTS / f"{record}.jsonl")
        for other, implementation in OTHERS.items():
            found[f"{machine}, {other}"] = host_ratios(groups, implementation)
    return found


def test_the_summary_of_cpus_is_on_record(ratios: Mapping[str, Ratios]) -> None:
    """The number of rows, geometric mean and worst row are the benchmark's."""
    expected = {}
    for label, by_row in ratios.items():
        (op, workload), worst = min(by_row.items(), key=lambda row: row[1])
        T, N, _, H = re.findall(r"\d+", workload)
        row = [str(len(by_row)), f"{geometric_mean(by_row.values()):.2f}", f"{worst:.2f}: {described(op, T, N, H)}"]
        expected[tuple(label.rsplit(", ", 1))] = row
    assert {key: cells for key, cells in summary().items() if key[0] in RECORDS} == expected


def test_means_are_on_record(ratios: Mapping[str, Ratios]) -> None:
    """The README's geometric means of each cell and of all rows, and its worst rows, are the benchmark's."""
    found = {words_of(label): cells for label, *cells in rows(README, 6) if words_of(label) in ratios}
    expected = {}
    for label, by_row in ratios.items():
        of_cells = [[ratio for (op, _), ratio in by_row.items() if op.split(" + ")[0] == cell] for cell in CELLS]
        means = [geometric_mean(of_cell) if of_cell else None for of_cell in of_cells]
        numbers = [*means, geometric_mean(by_row.values()), min(by_row.values())]
        expected[label] = ["-" if number is None else f"{number:.2f}" for number in numbers]
    assert found == expected


def test_rows_are_on_record(ratios: Mapping[str, Ratios]) -> None:
    """Every ratio in the CPU tables is the benchmark's."""
    label, checked = "", 0
    for first, sizes, *cells in rows(PERFORMANCE, 8):
        label = first or label
        by_row = ratios.get(words_of(label))
        if by_row is None:
            continue  # the header, a GPU
        T, N, H = sizes.split(", ")
        operations = [op for cell in CELLS for op in (cell, f"{cell} + gradients")]
        expected = [by_row.get((op, f"T={T} N={N} I={H} H={H}")) for op in operations]
        assert cells == ["-" if ratio is None else f"{ratio:.2f}" for ratio in expected], (label, sizes)
        checked += len(cells) - cells.count("-")
    assert checked == sum(map(len, ratios.values()))
