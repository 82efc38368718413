"""README and docs/: examples run, tables are complete, figures match the records, links work."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

import pytest

from jax_ways import require_ffi
from oracles import require
from vkrnn import devices, mpsgraph

pytest.importorskip("tqdm")  # bench needs it
os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported

from bench.common import groups_of
from bench.floors import host_ratios

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PERFORMANCE = DOCS / "performance.md"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "bench" / "README.md"]
WITH_EXAMPLES = {
    DOCS / "arrays.md": 5,
    DOCS / "devices.md": 5,
    DOCS / "jax.md": 5,
    DOCS / "mpsgraph.md": 5,
    DOCS / "onnx.md": 5,
    DOCS / "torch.md": 6,
}
# Packages of extras that the examples of a page import.
NEEDED = {DOCS / "jax.md": "jax", DOCS / "onnx.md": "onnx", DOCS / "torch.md": "torch"}
# Pages whose other Python blocks are scripts, and the packages that these import. Those of two more pages need a GPU.
SCRIPTS = {
    DOCS / "command-line.md": (),
    DOCS / "conventions.md": (),
    DOCS / "streaming.md": ("torch", "keras"),
    DOCS / "torch.md": ("torch", "keras"),
}
NEED_A_GPU = {DOCS / "cuda.md", DOCS / "devices.md"}
# The records of the tables' platforms, and the baselines' names in the records.
RECORDS = {
    "2 cores, AVX2": "cells-cpu-2",
    "2 cores, AVX-512": "cells-cpu-2-avx512",
    "16 cores, AVX-512": "cells-cpu-16",
}
GPU_RECORDS = {"float32, cuDNN with TF32": "gpu-h200", "float16": "gpu-h200-float16", "bfloat16": "gpu-h200-bfloat16"}
GPU_PLATFORMS = {
    "H200, float32": "gpu-h200",
    "H200, float32, earlier run": "gpu-h200-earlier",
    "H200, float16": "gpu-h200-float16",
    "H100, TF32": "gpu-h100-tf32",
    "H100, TF32, six other sizes": "gpu-h100-tf32-six",
    "H200, bfloat16": "gpu-h200-bfloat16",
    "H100, float32": "gpu-h100",
    "H200, NumPy to NumPy": "gpu-h200-transfers",
}
# The columns of each table about CUDA devices: the record, and the column there.
CUDA_TABLES = [
    {
        "Vulkan": ("gpu-h200-cuda", "ratio of vkrnn"),
        "CUDA": ("gpu-h200-cuda", "ratio of vkrnn, cuda"),
        "module": ("gpu-h200-cuda", "ratio of vkrnn, module"),
        "module, TF32": ("gpu-h200-cuda", "ratio of vkrnn, module in TF32"),
    },
    {
        "TF32, own": ("gpu-h100-cublas-tf32", "ratio of vkrnn, matrices"),
        "TF32, cuBLASLt": ("gpu-h100-cublas-tf32", "ratio of vkrnn"),
        "float16, own": ("gpu-h100-cublas-float16", "ratio of vkrnn, matrices"),
        "float16, cuBLASLt": ("gpu-h100-cublas-float16", "ratio of vkrnn"),
    },
]
RESULTS = ROOT / "bench" / "results"
OTHERS = {"PyTorch": "torch", "onnxruntime": "onnxruntime", "NumPy": "numpy"}
CELLS = {"lstm": "LSTM", "gru": "GRU", "single_gate_rnn": "RNN"}

Ratios = Mapping[tuple[str, str], float]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    """The examples print what the page shows."""
    if page in NEEDED:
        require(NEEDED[page])
    if page == DOCS / "jax.md":
        require_ffi()
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= WITH_EXAMPLES[page]
    assert results.failed == 0


def test_no_example_is_left_out() -> None:
    """Every page with examples that can run is in the list."""
    assert {page for page in PAGES if ">>> " in page.read_text()} == set(WITH_EXAMPLES)


def scripts(page: Path) -> list[str]:
    """Return a page's Python blocks that are no doctests."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if not block.startswith(">>> ")]


@pytest.mark.parametrize("page", SCRIPTS, ids=lambda page: page.name)
def test_scripts_run(page: Path) -> None:
    """The blocks of a page run as written, one after the other. What they say about several processes runs in one."""
    for package in SCRIPTS[page]:
        require(package)
    run_scripts(page)


def run_scripts(page: Path) -> None:
    """Run the blocks of a page in one process."""
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", "\n".join(scripts(page))]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | alone, check=False)
    assert done.returncode == 0, done.stderr


def test_scripts_about_cuda_run() -> None:
    """On a machine on which PyTorch and vkrnn have a CUDA device."""
    torch = require("torch")
    if not torch.cuda.is_available() or all(device.backend != "cuda" for device in devices()):
        pytest.skip("needs a CUDA device")
    run_scripts(DOCS / "cuda.md")


def test_no_script_is_left_out() -> None:
    """Every page with such blocks is in a list."""
    assert {page for page in PAGES if scripts(page)} == {README, *SCRIPTS, *NEED_A_GPU}


@pytest.mark.parametrize(("number", "package"), [(0, "numpy"), (1, "torch")], ids=["numpy", "torch"])
def test_the_quick_start_can_be_pasted(
    number: int, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is a complete script that prints something."""
    require(package)
    script = tmp_path / "quick_start.py"
    script.write_text(scripts(README)[number])
    runpy.run_path(str(script))
    assert capsys.readouterr().out


def test_the_quick_start_passes_mypy(tmp_path: Path) -> None:
    """The first block passes `mypy --strict` unchanged."""
    require("mypy")
    script = tmp_path / "quick_start.py"
    script.write_text(scripts(README)[0])
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.cache' / 'mypy'}"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_short() -> None:
    """It has at most 120 lines."""
    assert len(README.read_text().splitlines()) <= 120


def test_every_method_is_listed() -> None:
    """The table has all MPSGraph methods in the documented order, each with the function that computes it."""
    listed = re.findall(r"^\| \d+ \| `([^`]+)` \| `(\w+)`", (DOCS / "mpsgraph.md").read_text(), re.MULTILINE)
    assert listed == [(method.swift, mpsgraph._NAMES[method.base].__name__) for method in mpsgraph.METHODS]


@pytest.mark.parametrize("label", GPU_RECORDS)
def test_rows_of_gpus_are_on_record(label: str) -> None:
    """Every ratio in the GPU table is the benchmark's, and README.md has their mean."""
    record = RESULTS / f"{GPU_RECORDS[label]}.txt"
    recorded = {
        (op, sizes): ratio for op, sizes, _, _, ratio, *_ in rows(record, 10) if "," in sizes and "T" not in sizes
    }
    assert len(recorded) >= 40
    found: dict[tuple[str, str], str] = {}
    at = ""
    for first, sizes, *cells in rows(PERFORMANCE, 8):
        at = first or at
        if at == label:
            operations = [op for cell in CELLS for op in (cell, f"{cell} + gradients")]
            found |= {
                (op, sizes.replace(" ", "")): ratio for op, ratio in zip(operations, cells, strict=True) if ratio != "-"
            }
    assert found == recorded
    mean = f"{geometric_mean(map(float, recorded.values())):.2f} in {label.split(',')[0]}"
    assert mean in " ".join(README.read_text().split())


def described(op: str, *sizes: str) -> str:
    """Return how the tables name a row."""
    cell, _, gradients = op.partition(" + ")
    return f"{CELLS[cell]}{' with gradients' if gradients else ''} {', '.join(sizes)}"


def summary() -> dict[tuple[str, str], list[str]]:
    """Return the rows of the summary: number of rows, mean and worst row by platform and baseline."""
    return {(platform, words_of(against)): cells for platform, against, *cells in rows(PERFORMANCE, 5)[2:]}


@pytest.mark.parametrize("platform", GPU_PLATFORMS)
def test_the_summary_of_gpus_is_on_record(platform: str) -> None:
    """The number of rows, mean and worst row are the benchmark's."""
    printed = rows(RESULTS / f"{GPU_PLATFORMS[platform]}.txt", 6)
    contender = ("all", "vkrnn, tf32" if "TF32" in platform else "vkrnn")
    [(count, mean, worst, row)] = [cells for name, other, *cells in printed if (name, other) == contender]
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


@pytest.mark.parametrize("columns", CUDA_TABLES, ids=", ".join)
def test_the_tables_of_cuda_are_on_record(columns: Mapping[str, tuple[str, str]]) -> None:
    """Every ratio is the benchmark's, and all of them are there."""
    found, sizes, cell = {}, "", ""
    for row in table_with(PERFORMANCE, next(iter(columns))):
        sizes = row["T, N, I=H"].replace(" ", "") or sizes
        gradients = row[""] == "with gradients"
        cell = cell if gradients else {name: cell for cell, name in CELLS.items()}[row[""]]
        op = f"{cell} + gradients" if gradients else cell
        found |= {(column, op, sizes): row[column] for column in columns if row[column] != "-"}
    assert found == {
        (column, row["operation"], row["T,N,I=H"]): row[name]
        for column, (record, name) in columns.items()
        for row in table_with(RESULTS / f"{record}.txt", name)
    }


def test_the_table_of_loops_is_on_record() -> None:
    """So is what the page says about data-parallel training."""
    found = [[row["loop"], row["loop of a compiled cell"]] for row in table_with(PERFORMANCE, "loop")]
    assert found == [
        [row["loop : vkrnn"], row["compiled : vkrnn"]] for row in table_with(RESULTS / "loops-h100.txt", "compiled")
    ]
    paragraph = next(text for text in PERFORMANCE.read_text().split("\n\n") if "ddp-h100-4" in text)
    record = RESULTS / "ddp-h100-4.txt"
    assert all(row["ms a step"] in paragraph for row in table_with(record, "ms a step"))
    assert record.read_text().splitlines()[0].removeprefix("$ ") in paragraph


def test_the_device_times_in_float16_are_on_record() -> None:
    """Milliseconds are those of the record, whose second part is after the changes."""
    parts = (RESULTS / "gpu-h200-float16-loop.txt").read_text().split("\nAt ")[1:]
    totals, own = (
        [dict(re.findall(pattern, part)) for part in parts]
        for pattern in (r"(LSTM \S+ \S+ \w+): (\d+) us", r"(LSTM \S+ \S+ \w+): .*\n +([\d.]+) us +[\d.]+x kernel\n")
    )
    for row in table_with(PERFORMANCE, "without cuBLASLt's part"):
        size = row["T, N, I=H"].replace(" ", "")
        ours, theirs = (f"LSTM {size} torch.float16 {name}" for name in ("vkrnn", "torch"))
        for column, microseconds in {
            "vkrnn, before": totals[0][ours],
            "vkrnn": totals[1][ours],
            "without cuBLASLt's part": own[1][ours],
            "PyTorch": totals[1][theirs],
        }.items():
            assert abs(float(row[column]) - float(microseconds) / 1000) <= 0.00501, f"{size}, {column}"
        assert abs(float(row["PyTorch : vkrnn"]) - float(totals[1][theirs]) / float(totals[1][ours])) <= 0.00501, size


def test_the_runs_of_the_summary_are_on_record() -> None:
    """Each platform has a command and a commit, the same as its record if that has them."""
    runs = {platform: cells for platform, *cells in rows(PERFORMANCE, 4)[2:]}
    assert set(runs) == {platform for platform, _ in summary()} == {*RECORDS, *GPU_PLATFORMS}
    for platform, (command, commit, record) in runs.items():
        path = PERFORMANCE.parent / re.findall(r"\((.*)\)", record)[0]
        if platform in GPU_PLATFORMS:
            assert path.name == f"{GPU_PLATFORMS[platform]}.txt"
            assert path.read_text().splitlines()[0] == f"$ {command.strip('`')}"
            continue
        assert path.name == f"{RECORDS[platform]}.jsonl"
        [recorded] = {records[0].commit for records in groups_of(path)}
        assert recorded.startswith(re.findall(r"\d, (\w{7})", commit)[0])
        assert recorded.endswith("-dirty") == commit.endswith(" and local changes")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_work() -> None:
    """Every relative link in a Markdown file leads to an existing file and heading."""
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" not in link:
                target = page.parent / link if link else page
                assert target.exists(), f"{page.name}: {link}"
                assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"


def test_quoted_tests_exist() -> None:
    """A test that a page names before the link to its file is in that file."""
    quoted = [
        (page, name, page.parent / file)
        for page in PAGES
        for name, file in re.findall(r"`(\w+)` in \[\w+\.\w+\]\(([^)#]*)\)", page.read_text())
    ]
    assert quoted
    for page, name, file in quoted:
        assert name in file.read_text(), f"{page.name}: {name}"


@pytest.fixture(scope="module")
def ratios() -> dict[str, Ratios]:
    """Return the recorded ratios by the tables' words."""
    found = {}
    for machine, record in RECORDS.items():
        groups = groups_of(RESULTS / f"{record}.jsonl")
        for other, implementation in OTHERS.items():
            found[f"{machine}, {other}"] = host_ratios(groups, implementation)
    return found


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
    """So are the README's geometric means of each cell and of all rows, and its worst rows."""
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
