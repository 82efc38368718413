"""README and docs/: examples run, the list of methods is complete, links work."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vkrnn
from jax_ways import require_ffi
from oracles import require
from vkrnn import devices, mpsgraph

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "bench" / "README.md"]
WITH_EXAMPLES = {
    DOCS / "arrays.md": 5,
    DOCS / "devices.md": 5,
    DOCS / "eval-mode.md": 5,
    DOCS / "jax.md": 5,
    DOCS / "mpsgraph.md": 5,
    DOCS / "onnx.md": 5,
    DOCS / "torch.md": 6,
}
# Packages of extras that the examples of a page import.
NEEDED = {
    DOCS / "eval-mode.md": "torch",
    DOCS / "jax.md": "jax",
    DOCS / "onnx.md": "onnx",
    DOCS / "torch.md": "torch",
}
# Pages whose other Python blocks are scripts, and the packages that these import. Those of two more pages need a GPU.
SCRIPTS = {
    DOCS / "command-line.md": (),
    DOCS / "conventions.md": (),
    DOCS / "jax.md": ("jax", "flax"),
    DOCS / "keras.md": ("torch", "keras"),
    DOCS / "networks.md": (),
    DOCS / "numerics.md": (),
    DOCS / "streaming.md": ("torch",),
}
NEED_A_GPU = {DOCS / "cuda.md", DOCS / "devices.md"}


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
    """Every page with doctests is in `WITH_EXAMPLES`."""
    assert {page for page in PAGES if ">>> " in page.read_text()} == set(WITH_EXAMPLES)


def scripts(page: Path) -> list[str]:
    """Return a page's Python blocks that are no doctests."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if not block.startswith(">>> ")]


@pytest.mark.parametrize("page", SCRIPTS, ids=lambda page: page.name)
def test_scripts_run(page: Path) -> None:
    """The blocks of a page run as written, one after the other. Examples for several processes run in a single one."""
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
    """The blocks about CUDA run if PyTorch and vkrnn have a CUDA device."""
    torch = require("torch")
    if not torch.cuda.is_available() or all(device.backend != "cuda" for device in devices()):
        pytest.skip("needs a CUDA device")
    run_scripts(DOCS / "cuda.md")


def test_no_script_is_left_out() -> None:
    """Every page with Python blocks that are no doctests is in `SCRIPTS` or `NEED_A_GPU`."""
    assert {page for page in PAGES if scripts(page)} == {README, *SCRIPTS, *NEED_A_GPU}


@pytest.mark.parametrize(("number", "package"), list(enumerate(["numpy", "torch", "jax", "vkrnn"])))
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


def test_every_method_is_listed() -> None:
    """The page has all MPSGraph methods in the documented order."""
    listed = re.findall(r"^\w+\(_:[\w:]+\)$", (DOCS / "mpsgraph.md").read_text(), re.MULTILINE)
    assert listed == [method.swift for method in mpsgraph.METHODS]


@pytest.mark.parametrize(
    ("cell", "gates", "own"),
    [
        ("singleGateRNN", 1, {}),
        ("LSTM", 4, {"init_cell": (1, 1), "peephole": (4,)}),
        ("GRU", 3, {"secondary_bias": (1,)}),
    ],
)
def test_gradients_are_listed_in_their_order(cell: str, gates: int, own: dict[str, tuple[int, ...]]) -> None:
    """The page has the order in which a call with all of the method's arguments returns them."""
    shapes = {"recurrent_weight": (gates, 1), "input_weight": (gates, 1), "bias": (gates,), "init_state": (1, 1), **own}
    given = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    source = np.ones((2, 1, 1), np.float32)
    kind = getattr(vkrnn, f"{cell[0].upper()}{cell[1:]}Descriptor")
    descriptor = kind(training=True, **({"reset_after": True} if cell == "GRU" else {}))
    forward, backward = mpsgraph._NAMES[cell], mpsgraph._NAMES[f"{cell}Gradients"]
    result = forward(source, descriptor=descriptor, **given)
    saved = {"LSTM": {"cell_output_fwd": "cell_output"}, "GRU": {"output_fwd": "output"}}.get(cell, {})
    more = {"z_state": result.z_state, **{name: getattr(result, of) for name, of in saved.items()}}
    found = backward(source, source_gradient=result.output, descriptor=descriptor, **given, **more)
    (row,) = re.findall(rf"^\| `{cell}Gradients` \| (.*) \|$", (DOCS / "mpsgraph.md").read_text(), re.MULTILINE)
    assert row.split(", ") == [re.sub("_(.)", lambda each: each[1].upper(), name) for name in found._asdict()]


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
