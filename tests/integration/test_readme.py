"""README and docs/ tell the truth: examples run, tables are complete, numbers are those on record, links lead on."""

from __future__ import annotations

import doctest
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

import pytest

from oracles import require
from vkrnn import mpsgraph

pytest.importorskip("tqdm")  # of bench

from bench.common import groups_of
from bench.floors import host_ratios

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PERFORMANCE = DOCS / "performance.md"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "bench" / "README.md"]
WITH_EXAMPLES = {
    README: 5,
    DOCS / "arrays.md": 5,
    DOCS / "devices.md": 5,
    DOCS / "jax.md": 5,
    DOCS / "mpsgraph.md": 5,
    DOCS / "onnx.md": 5,
    DOCS / "torch.md": 6,
}
# Packages of extras, by the pages whose examples import them.
NEEDED = {DOCS / "jax.md": "jax", DOCS / "onnx.md": "onnx", DOCS / "torch.md": "torch"}
# A table's words for a record, and for the others in it.
RECORDS = {
    "2 cores, AVX2": "cells-cpu-2",
    "2 cores, AVX-512": "cells-cpu-2-avx512",
    "16 cores, AVX-512": "cells-cpu-16",
}
GPU_RECORDS = {"float32, cuDNN with TF32": "gpu-h200", "float16": "gpu-h200-float16", "bfloat16": "gpu-h200-bfloat16"}
OTHERS = {"PyTorch": "torch", "onnxruntime": "onnxruntime", "NumPy": "numpy"}
CELLS = ("lstm", "gru", "single_gate_rnn")

Ratios = Mapping[tuple[str, str], float]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    """The examples give what they show."""
    if page in NEEDED:
        require(NEEDED[page])
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= WITH_EXAMPLES[page]
    assert results.failed == 0


def test_no_example_is_left_out() -> None:
    """Pages with examples that could run are in the list."""
    assert {page for page in PAGES if ">>> " in page.read_text()} == set(WITH_EXAMPLES)


def test_the_readme_is_short() -> None:
    """The README is two screens long at most; more belongs to docs/."""
    assert len(README.read_text().splitlines()) <= 120


def test_every_method_is_listed() -> None:
    """All of MPSGraph's methods, in the order of the documentation, each beside the function that does it."""
    listed = re.findall(r"^\| \d+ \| `([^`]+)` \| `(\w+)`", (DOCS / "mpsgraph.md").read_text(), re.MULTILINE)
    assert listed == [(method.swift, mpsgraph._NAMES[method.base].__name__) for method in mpsgraph.METHODS]


@pytest.mark.parametrize("label", GPU_RECORDS)
def test_rows_of_gpus_are_on_record(label: str) -> None:
    """Every ratio of the GPU's table, and their mean, as the benchmark printed them."""
    record = ROOT / "bench" / "results" / f"{GPU_RECORDS[label]}.txt"
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
    assert all(mean in " ".join(page.read_text().split()) for page in (PERFORMANCE, README))


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
