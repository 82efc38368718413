"""Runs notebooks and stores their outputs in them: ``python notebooks/run.py notebooks/*.ipynb``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbclient
import nbformat

SECONDS_PER_CELL = 300  # a cell that takes longer is assumed to hang
PROGRESS_BAR = "application/vnd.jupyter.widget-view+json"  # not shown outside of the session that drew it


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with its outputs, without cell times, versions and progress bars, which differ between runs.

    It runs in an empty folder, so that it cannot depend on its own path.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    with TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook,
            timeout=SECONDS_PER_CELL,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,
        ).execute()
    notebook.metadata = metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if PROGRESS_BAR not in output.get("data", {})]
    return notebook


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        nbformat.write(run(Path(argument)), argument)
