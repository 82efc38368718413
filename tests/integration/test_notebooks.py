"""The notebooks run from top to bottom, and are committed with their outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from oracles import require

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

import nbformat

from notebooks.run import PROGRESS_BAR, run
from scale import distinct

FOLDER = Path(__file__).parents[2] / "notebooks"
NEEDED: dict[str, tuple[str, ...]] = {  # notebooks, with the extra packages that they import
    "01_quickstart": (),
    "02_cells": (),
    "03_resident_training": (),
    "04_torch": ("torch",),
    "05_onnx": ("torch", "onnx", "onnxscript"),
    "06_mpsgraph": (),
    "07_streaming": ("torch",),
    "08_state_tracking": ("torch",),
    "09_resets": ("torch",),
}
ABSOLUTE_PATH = re.compile(r"(?<![\w.~:/)<])(?:/[\w.+-]+){2,}|\b[A-Z]:\\")


@pytest.mark.parametrize("name", distinct(list(NEEDED), len(NEEDED)))
@pytest.mark.filterwarnings("default")  # warnings of the notebook packages are not errors
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs without an error in another folder."""
    for package in NEEDED[name]:
        require(package)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # spinning threads would slow down other tests
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    run(FOLDER / f"{name}.ipynb")


def committed(name: str) -> Any:
    """Return the committed notebook."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NEEDED)
def test_has_outputs(name: str) -> None:
    """Outputs, pictures included, are in the file, and nothing about the person who ran it."""
    notebook = committed(name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} <= {"stdout"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(PROGRESS_BAR in output.get("data", {}) for output in outputs)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert not any(cell.metadata for cell in notebook.cells)


@pytest.mark.parametrize("name", NEEDED)
def test_has_no_paths(name: str) -> None:
    """No output contains a path of the machine that ran it."""
    for cell in committed(name).cells:
        for output in cell.get("outputs", []):
            texts = [text for kind, text in output.get("data", {}).items() if kind != "image/png"]
            assert not ABSOLUTE_PATH.findall("\n".join([output.get("text", ""), *texts]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("in /home/somebody/x.py:3", True),
        ("<frozen '/usr/lib/python3'>", True),
        ("C:\\Users\\somebody", True),
        ("33.5 GiB/s, a/b/c, https://example.org/a/b", False),
        ("</td></tr></table>", False),
    ],
)
def test_paths_are_recognized(text: str, *, found: bool) -> None:
    """The pattern matches absolute paths and nothing else."""
    assert bool(ABSOLUTE_PATH.search(text)) == found


def test_no_notebook_is_left_out() -> None:
    """Every notebook of the folder is tested."""
    assert [path.stem for path in sorted(FOLDER.glob("*.ipynb"))] == list(NEEDED)
