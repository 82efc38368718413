"""The README tells the truth: its example runs, its table is complete, its links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from vkrnn import mpsgraph

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "arrays.md"], ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    """The examples give what they show."""
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted >= 5
    assert results.failed == 0


def test_every_method_is_listed() -> None:
    """All of MPSGraph's methods, in the order of the documentation."""
    listed = re.findall(r"^\| \d+ \| `([^`]+)`", README.read_text(), re.MULTILINE)
    assert listed == [method.swift for method in mpsgraph.METHODS]


def test_links_lead_somewhere() -> None:
    """Every relative link of the Markdown files points to a file of the tree."""
    pages = [README, *ROOT.glob("docs/*.md"), ROOT / "bench" / "README.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
