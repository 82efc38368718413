"""README and docs/ tell the truth: examples run, tables are complete, numbers are those on record, links lead on."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

import pytest

from vkrnn import mpsgraph

pytest.importorskip("tqdm")  # of bench

from bench.common import RESIDENT_BATCH, groups_of
from bench.floors import host_ratios

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PERFORMANCE = DOCS / "performance.md"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "bench" / "README.md"]
WITH_EXAMPLES = {README: 5, DOCS / "arrays.md": 5, DOCS / "devices.md": 5, DOCS / "mpsgraph.md": 5}
# A table's words for a record, and for the others in it.
RECORDS = {
    "2 cores, AVX2": "cells-cpu-2",
    "2 cores, AVX-512": "cells-cpu-2-avx512",
    "16 cores, AVX-512": "cells-cpu-16",
}
GPU_LABEL = "H200, cuDNN 9.19 with TF32"
GPU_RECORDS = ("gpu-h200", "gpu-h200-2048")
OTHERS = {"PyTorch": "torch", "onnxruntime": "onnxruntime", "NumPy": "numpy"}
CELLS = ("lstm", "gru", "single_gate_rnn")

Ratios = Mapping[tuple[str, str], float]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    """The examples give what they show."""
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= WITH_EXAMPLES[page]
    assert results.failed == 0


def test_no_example_is_left_out() -> None:
    """Pages with examples that could run are in the list."""
    assert {page for page in PAGES if ">>> " in page.read_text()} == set(WITH_EXAMPLES)


def test_the_readme_is_short() -> None:
    """What is longer than two screens belongs to docs/."""
    assert len(README.read_text().splitlines()) <= 120


def test_every_method_is_listed() -> None:
    """All of MPSGraph's methods, in the order of the documentation, each beside the function that does it."""
    listed = re.findall(r"^\| \d+ \| `([^`]+)` \| `(\w+)`", (DOCS / "mpsgraph.md").read_text(), re.MULTILINE)
    assert listed == [(method.swift, mpsgraph._NAMES[method.base].__name__) for method in mpsgraph.METHODS]


def test_rows_of_gpus_are_on_record() -> None:
    """Every ratio of the GPU's table."""
    times: dict[tuple[str, str, str], float] = {}
    for record in GPU_RECORDS:
        for line in (ROOT / "bench" / "results" / f"{record}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry["measure"] == RESIDENT_BATCH:
                times[entry["op"], entry["workload"], entry["implementation"]] = entry["median"]
    found: dict[tuple[str, str], str] = {}
    label = ""
    for first, sizes, *cells in rows(PERFORMANCE, 8):
        label = first or label
        if label == GPU_LABEL:
            T, N, H = sizes.split(", ")
            operations = [op for cell in CELLS for op in (cell, f"{cell} + gradients")]
            found |= {(op, f"T={T} N={N} I={H} H={H}"): ratio for op, ratio in zip(operations, cells, strict=True)}
    ratios = {(op, size): time / times[op, size, "vkrnn"] for (op, size, by), time in times.items() if by == "torch"}
    assert found == {row: f"{ratio:.2f}" for row, ratio in ratios.items()}
    mean = f"{geometric_mean(ratios.values()):.2f}"
    assert f"The geometric mean of all rows is {mean}." in PERFORMANCE.read_text()
    assert f"over nine sizes is {mean}." in " ".join(README.read_text().split())


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    """Every relative link of the Markdown files points to a file of the tree, and to a heading of it."""
    for page in PAGES:
        for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if "://" not in link:
                target = page.parent / link if link else page
                assert target.exists(), f"{page.name}: {link}"
                assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"


@pytest.fixture(scope="module")
def ratios() -> dict[str, Ratios]:
    """Return the ratios on record by the tables' words."""
    found = {}
    for machine, record in RECORDS.items():
        groups = groups_of(ROOT / "bench" / "results" / f"{record}.jsonl")
        for other, implementation in OTHERS.items():
            found[f"{machine}, {other}"] = host_ratios(groups, implementation)
    return found


def words_of(label: str) -> str:
    """Return a label of a table without the version at its end."""
    return re.sub(r" [\d.]+$", "", label)


def rows(page: Path, columns: int) -> list[list[str]]:
    """Return the cells of the tables of a page that have so many columns."""
    lines = [line[1:-1].split("|") for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns]


@pytest.mark.parametrize("page", [README, PERFORMANCE], ids=lambda page: page.name)
def test_means_are_on_record(page: Path, ratios: Mapping[str, Ratios]) -> None:
    """The geometric means of each cell and of all rows, and the worst row."""
    found = {words_of(label): cells for label, *cells in rows(page, 6) if words_of(label) in ratios}
    expected = {}
    for label, by_row in ratios.items():
        of_cells = [[ratio for (op, _), ratio in by_row.items() if op.split(" + ")[0] == cell] for cell in CELLS]
        means = [geometric_mean(of_cell) if of_cell else None for of_cell in of_cells]
        numbers = [*means, geometric_mean(by_row.values()), min(by_row.values())]
        expected[label] = ["-" if number is None else f"{number:.2f}" for number in numbers]
    assert found == expected


def test_rows_are_on_record(ratios: Mapping[str, Ratios]) -> None:
    """Every ratio of the CPU's tables."""
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
