"""Messages and pages that say what to install name packages that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vkrnn._base.packages import import_package, missing

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
SOURCES = [
    path
    for folder, kinds in {"": "md", "docs/**/": "md rst", "cmake/": "cmake", "cpp/**/": "cpp h"}.items()
    for kind in kinds.split()
    for path in ROOT.glob(f"{folder}*.{kind}")
] + [path for path in (ROOT / "python").rglob("*.*") if path.suffix in {".py", ".cpp", ".h", ".txt"}]
# What messages and pages recommend. All of it is on PyPI, where vkrnn is not.
KNOWN = {
    *(
        "torch",
        "jax",
        "jaxlib",
        "keras",
        "onnx",
        "ml_dtypes",
        "onnxruntime",
        "matplotlib",
        "statsmodels",
        "tqdm",
        "pybind11",
        "pre-commit",
    ),
    *("nvidia-cublas", "nvidia-cuda-nvrtc"),
}
WITH_VALUE = {"-C", "--index-url"}  # options


def recommended(path: Path) -> Iterator[str]:
    """Yield each package or path after ``pip install`` in a file."""
    for command in re.findall(r"pip install ([^\n`\"#&|;){]+)", path.read_text().replace("\\\n", " ")):
        words = iter(re.split(r" for |, | and ", command.replace("'", ""))[0].split())
        for word in words:
            if word in WITH_VALUE:
                next(words)
            elif not word.startswith("-"):
                yield word


def test_recommended_packages_exist() -> None:
    """`pip install` names the sources, with extras that they have, or a known package. Python has one such message."""
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    found: set[str] = set()
    for word in {word for path in SOURCES for word in recommended(path)}:
        own = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
        if own:
            assert set((own[1] or "").split(",")) - {""} <= extras, word
        else:
            found.add(re.split(r"[=<>]", word)[0])
    assert found == KNOWN
    messages = [path for path in (ROOT / "python" / "vkrnn").rglob("*.py") if "pip install {" in path.read_text()]
    assert messages == [ROOT / "python" / "vkrnn" / "_base" / "packages.py"]


def test_the_readme_installs_what_it_uses() -> None:
    """Its command has the extras for every package that its blocks import, and for the demonstration."""
    text = (ROOT / "README.md").read_text()
    (extras,) = re.findall(r"pip install '\.\[([\w,]+)\]'", text)
    used = set(re.findall(r"^import (\w+)", text, re.MULTILINE)) - {"numpy", "vkrnn"}
    assert used | set(re.findall(r"-m vkrnn (demo)", text)) == set(extras.split(","))


@pytest.mark.parametrize(
    ("package", "program", "message"),
    [
        ("torch", "import vkrnn.torch", "vkrnn.torch needs the package torch: pip install torch"),
        ("jax", "import vkrnn.jax", "vkrnn.jax needs the package jax: pip install jax"),
        ("onnx", "import vkrnn.onnx", "vkrnn.onnx needs the package onnx: pip install onnx"),
        (
            "ml_dtypes",
            "import vkrnn; vkrnn.empty(3, 'bfloat16')",
            "[empty] dtype: bfloat16 needs the package ml_dtypes: pip install ml_dtypes",
        ),
        (
            "torch",
            "import numpy, vkrnn; w = {'recurrent_weight': numpy.ones((2, 2), 'f4')}; "
            "vkrnn.convert.to_torch(vkrnn.convert.Layer(vkrnn.single_gate_rnn, w, None))",
            "[to_torch] needs the package torch: pip install torch",
        ),
        (
            "keras",
            "import vkrnn; vkrnn.convert.from_keras(None)",
            "[from_keras] needs the package keras: pip install keras",
        ),
    ],
)
def test_a_package_is_missing(package: str, program: str, message: str) -> None:
    """The message says how to install it."""
    program = f"import sys; sys.modules[{package!r}] = None; {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"ImportError: {message}"


def test_a_package_that_cannot_be_imported() -> None:
    """The message has the reason, if that is another one than that the package is missing."""
    broken = ImportError("cannot import name 'x' from 'torch'")
    assert str(missing("This", broken, "torch")) == f"This needs the package torch ({broken}): pip install torch"
    assert str(missing("This", broken, "tqdm", "torch")) == (
        f"This needs the packages tqdm and torch ({broken}): pip install tqdm torch"
    )
    assert import_package("re", "This") is re


def test_the_citation_names_the_version() -> None:
    """CITATION.cff and pyproject.toml agree."""
    versions = [
        re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        for name, pattern in (("CITATION.cff", r"^version: (.*)$"), ("pyproject.toml", r'^version = "(.*)"$'))
    ]
    assert versions[0] == versions[1]
