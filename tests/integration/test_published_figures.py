"""Figures in README.md and docs/performance.md match the records in bench/results/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tqdm")  # bench needs it

from bench.publish import CPU_RECORDS, PAGES, RESULTS, ROOT, TABLES, cpu_ratios, gpu_ratios, published, with_column

PUBLISHED = ROOT / "bench" / "publish.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_as_the_records_have_them(page: Path) -> None:
    """Each table has the figures of its record."""
    assert page.read_text() == published(page)


def test_every_table_is_on_the_page() -> None:
    """Each is published once."""
    text = "".join(page.read_text() for page in PAGES)
    assert sorted(re.findall(r"<!-- bench\.publish (\w+) -->", text)) == sorted(TABLES)


@pytest.mark.parametrize("record", CPU_RECORDS.values())
def test_records_of_cpus_have_every_row(record: str) -> None:
    """Three cells on seven sizes, forward and with gradients. onnxruntime has no RNN among them and no gradients."""
    assert [len(cpu_ratios(record, other)) for other in ("torch", "onnxruntime", "numpy")] == [42, 14, 42]


def test_a_summary_is_that_of_its_rows() -> None:
    """The mean and the worst ratio of a printed summary follow from the rows above it."""
    contender = "vkrnn, cuda tf32"
    ratios = [float(row[f"ratio of {contender}"]) for row in with_column("gpu-h200-tf32", f"ratio of {contender}")]
    found = gpu_ratios("gpu-h200-tf32", contender)
    assert (found.rows, found.worst) == (len(ratios), f"{min(ratios):.2f}")


def test_figures_of_the_text_are_on_record() -> None:
    """bench/README.md says how many answers are beyond the benchmark's limits."""
    kinds = ("gpu-h200", "gpu-h200-tf32", "gpu-h200-float16", "gpu-h200-bfloat16", "gpu-h200-plain")
    lines = [line for kind in kinds for line in (RESULTS / f"{kind}.txt").read_text().splitlines()]
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert f"{len(wrong)} of 982 answers" in (ROOT / "bench" / "README.md").read_text()


def test_every_record_is_quoted() -> None:
    """The documentation, the program that writes its tables or the table of costs names it; a list has all of them."""
    pages = [*(ROOT / "docs").glob("*.md"), PUBLISHED, ROOT / "cpp" / "src" / "plan" / "cost_table.cpp"]
    text = "".join(page.read_text() for page in pages)
    listed = (RESULTS / "README.md").read_text()
    for record in RESULTS.iterdir():
        if record.name != "README.md":
            assert record.stem in text, record.name
            assert record.name in listed, record.name


def test_the_readme_is_one_page() -> None:
    """It has at most 600 words."""
    assert len((ROOT / "README.md").read_text().split()) <= 600
