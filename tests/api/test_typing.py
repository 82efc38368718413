"""Types of the public functions and classes can be evaluated, match the tables, and let checkers find mistakes."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import vkrnn
from oracles import require
from vkrnn import _core, mpsgraph
from vkrnn.descriptors import ActivationName

FOLDER = Path(__file__).resolve().parents[1] / "typing"
MODULES = (vkrnn, vkrnn.reference, vkrnn.mpsgraph, vkrnn.convert, vkrnn.results)
BASES = sorted({method.base for method in mpsgraph.METHODS})


def annotated() -> Iterator[Any]:
    """Yield the public functions and classes, and the methods of the classes."""
    for module in MODULES:
        selectors = (method.python for method in mpsgraph.METHODS if module is mpsgraph)
        for name in (*module.__all__, *selectors):
            value = getattr(module, name)
            if not (inspect.isfunction(value) or inspect.isclass(value)):
                continue
            yield pytest.param(value, id=f"{module.__name__}.{name}")
            for key, member in vars(value).items() if inspect.isclass(value) else ():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if inspect.isfunction(function):
                    yield pytest.param(function, id=f"{module.__name__}.{name}.{key}")


@pytest.mark.parametrize("value", list(annotated()))
def test_hints_can_be_evaluated(value: Any) -> None:
    """Annotations name nothing that is imported for type checkers only."""
    assert set(inspect.get_annotations(value)) <= set(typing.get_type_hints(value))


@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
@pytest.mark.parametrize("module", [vkrnn, vkrnn.reference], ids=lambda module: module.__name__)
def test_results_have_the_names_of_the_table(module: Any, cell: _core.Cell) -> None:
    """The type that an operation returns has the core's results as attributes, the last states, and no others."""
    for name, results in ((cell.name, cell.outputs), (cell.gradients_name, cell.gradient_order)):
        kind = typing.get_origin(typing.get_type_hints(getattr(module, name))["return"])
        known = {attribute for attribute in typing.get_type_hints(kind) if not attribute.startswith("_")}
        last = {sequence: last for *_, sequence, last in _core.state_tensors}
        assert known == {*results, *(last[result] for result in results if result in last)}


def test_names_of_activations() -> None:
    """The literal type lists exactly one name per activation."""
    found = {vkrnn.Activation(name) for name in typing.get_args(ActivationName)}
    assert found == set(vkrnn.Activation)
    assert {member.name.lower() for member in vkrnn.Activation} <= set(typing.get_args(ActivationName))


@pytest.mark.parametrize("base", BASES)
def test_labels(base: str) -> None:
    """A function with Swift's name accepts the labels of all its methods and requires those that all have."""
    forms = [method.labels for method in mpsgraph.METHODS if method.base == base]
    parameters = inspect.signature(getattr(mpsgraph, base)).parameters
    labels = {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    required = {name for name, each in labels.items() if each.default is inspect.Parameter.empty}
    assert set(labels) == {"descriptor", "name", "device"}.union(*forms)
    assert required == {"descriptor"}.union(set(forms[0]).intersection(*forms))
    optional = {
        name for name, each in inspect.signature(mpsgraph._NAMES[base]).parameters.items() if each.default is None
    }
    nil = {name for name, each in labels.items() if each.annotation.endswith(" | None")}
    assert nil == {name for name in labels if mpsgraph._snake_case(name) in optional}


def test_selectors() -> None:
    """Type checkers know the selectors of all methods, in order."""
    names = [name for name, kind in inspect.get_annotations(mpsgraph).items() if kind == "_Selector"]
    assert names == [method.python for method in mpsgraph.METHODS]


def test_py_typed_is_installed() -> None:
    """Type checkers read the annotations of packages that have the file py.typed."""
    assert (Path(vkrnn.__file__).parent / "py.typed").is_file()


def run(files: tuple[Path, Path], *arguments: str) -> str:
    """Run a checker with default settings on both files and return its output."""
    command = [sys.executable, "-m", *arguments, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr  # it found mistakes
    return done.stdout


def mypy(files: tuple[Path, Path]) -> dict[tuple[str, int], str]:
    """Return mypy's messages by file and line."""
    # Each pair has a cache of its own, because two processes that write the same cache break it.
    cache = FOLDER.parents[1] / ".cache" / f"mypy-{files[0].stem}"
    text = run(files, "mypy", "--strict", f"--config-file={FOLDER / 'mypy.ini'}", f"--cache-dir={cache}")
    found = re.findall(r"^(?:.*[/\\])?(\w+\.py):(\d+): error: (.*)$", text, re.MULTILINE)
    return {(name, int(line)): message for name, line, message in found}


def pyright(files: tuple[Path, Path]) -> dict[tuple[str, int], str]:
    """Return pyright's messages by file and line."""
    report = json.loads(run(files, "pyright", "--outputjson", "--pythonpath", sys.executable))
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"]
        for each in report["generalDiagnostics"]
    }


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
@pytest.mark.parametrize(("suffix", "package", "mistakes"), [("", "numpy", 30), ("_torch", "torch", 12)])
def test_checkers_find_the_marked_lines(checker: Any, suffix: str, package: str, mistakes: int) -> None:
    """They report every marked line and no other."""
    require(checker.__name__)
    require(package)
    right, wrong = (FOLDER / f"{name}{suffix}.py" for name in ("right", "wrong"))
    lines = wrong.read_text().splitlines()
    marked = {(wrong.name, number) for number, line in enumerate(lines, 1) if line.endswith("  # wrong")}
    found = checker((right, wrong))
    assert len(marked) > mistakes
    assert {place: message for place, message in found.items() if place not in marked} == {}
    assert marked - set(found) == set()


@pytest.mark.skipif(find_spec("typing_extensions") is None, reason="typing_extensions is not installed")
@pytest.mark.parametrize(("suffix", "package"), [("", "numpy"), ("_torch", "torch")])
def test_typed_code_runs(suffix: str, package: str) -> None:
    """The files that checkers accept run without errors."""
    require(package)
    runpy.run_path(str(FOLDER / f"right{suffix}.py"))
