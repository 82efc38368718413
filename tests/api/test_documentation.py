"""The public functions: signatures that match the core's table, complete docstrings, examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

import vkrnn
from oracles import require
from vkrnn import _core
from vkrnn._ops import calls

GIVEN = {"recurrent_weight", "source_gradient"}  # may be None, but have no default
OPERATIONS = [
    pytest.param(getattr(vkrnn, name), [(each, opt and each not in GIVEN) for each, opt in parameters], id=name)
    for cell in _core.cells()
    for name, parameters in ((cell.name, cell.forward), (cell.gradients_name, cell.gradients))
]
ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
DEVICES_PAGE = ROOT / "docs" / "devices.md"
MODULES = ["vkrnn", *(module.name for module in pkgutil.walk_packages(vkrnn.__path__, "vkrnn."))]


EXTRAS = {
    "vkrnn.jax": "jax",
    "vkrnn.keras": "keras",
    "vkrnn.onnx": "onnx",
    "vkrnn.torch": "torch",
    "vkrnn._interop.torch_tensors": "torch",
}  # modules, and the packages without which they cannot be imported


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    """The examples in every docstring print what the docstring says."""
    for name, package in EXTRAS.items():
        if module == name or module.startswith(f"{name}."):
            require(package)
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize(("function", "parameters"), OPERATIONS)
def test_signature(function: Callable[..., Any], parameters: list[tuple[str, bool]]) -> None:
    """Python's signatures and the core's table have the same names, order and optional arguments."""
    found = inspect.signature(function).parameters
    assert [(name, parameter.default is None) for name, parameter in found.items()] == [
        *parameters,
        ("descriptor", True),
        ("name", True),
        ("device", True),
        ("out", True),
    ]
    kinds = {parameter.default is None: set[object]() for parameter in found.values()}
    for parameter in found.values():
        kinds[parameter.default is None].add(parameter.kind)
    assert kinds == {False: {inspect.Parameter.POSITIONAL_OR_KEYWORD}, True: {inspect.Parameter.KEYWORD_ONLY}}


@pytest.mark.parametrize("function", [operation.values[0] for operation in OPERATIONS])
def test_arguments_are_passed_by_name(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument arrives under its own name, in the signature's order. Results are as annotated."""
    handed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(calls.BoundCall, "of_arrays", lambda *args: args)
    monkeypatch.setattr(calls, "_run", lambda *args: handed.append(args))
    given = {name: object() for name in inspect.signature(function).parameters}
    function(**given)
    [(kind, name, (bound, names, arrays, *options))] = handed
    assert kind is get_origin(get_type_hints(function)["return"])
    assert name == bound == function.__name__
    assert (*names, "descriptor", "name", "device", "out") == tuple(given)
    assert (*arrays, *options) == tuple(given.values())


@pytest.mark.parametrize(("function", "parameters"), OPERATIONS)
def test_docstring(function: Callable[..., Any], parameters: list[tuple[str, bool]]) -> None:
    """Every parameter has its shape, every section exists, and every shared paragraph is inserted."""
    text = inspect.getdoc(function) or ""
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert f"\n{section}\n{'-' * len(section)}\n" in text
    assert not re.search(r"\{\w+\}", text)
    assert "GH" not in text
    documented = re.findall(r"^(\w+) : (.*)\n    \S", text, flags=re.MULTILINE)
    assert [name for name, _ in documented] == [*inspect.signature(function).parameters]
    for (name, optional), (_, kind) in zip(parameters, documented, strict=False):
        assert re.match(r"(array, |array or None, |array or list of integers, ).*\[", kind), name
        assert kind.endswith(", optional") == optional, name
    in_mpsgraph = not function.__name__.startswith("slstm")
    assert bool(re.search(r"Mirrors MPSGraph's ``\w+\(_:recurrentWeight:", text)) == in_mpsgraph
    warnings = text.split("\nWarnings\n--------\n")[1].split("\nSee Also\n")[0]
    assert "Time is the first axis." in warnings
    assert "Results are a named tuple" in warnings
    assert ("those of the forward call" in warnings) == function.__name__.endswith("_gradients")
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("module", ["jax", "torch"])
@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
def test_docstring_of_other_arrays(cell: _core.Cell, module: str) -> None:
    """The functions for PyTorch and JAX name the function that they call, and have every shared paragraph."""
    require(module)
    text = inspect.getdoc(getattr(importlib.import_module(f"vkrnn.{module}"), cell.name)) or ""
    assert f"Parameters are those of `vkrnn.{cell.name}`" in text
    assert f"\n    As in `vkrnn.{cell.name}`" in text
    assert not re.search(r"\{\w+\}", text)


@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
def test_descriptor(cell: _core.Cell) -> None:
    """Python's descriptors and the core's table have the same properties, order and defaults."""
    descriptor = getattr(vkrnn, cell.descriptor_name)()
    fields = {name: getattr(descriptor, name) for name in descriptor.__dataclass_fields__}
    shown = {
        name: value.name.lower() if isinstance(value, vkrnn.Activation) else value for name, value in fields.items()
    }
    assert list(shown.items()) == list(cell.properties.items())


@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
@pytest.mark.parametrize(
    ("module", "absent"),
    [("reference", {"device", "out"}), ("jax", {"name", "out"}), ("torch", {"name", "device", "out"})],
)
def test_other_modules_have_the_same_signatures(cell: _core.Cell, module: str, absent: set[str]) -> None:
    """Their functions take the operation's arguments, in its order, except some options."""
    if module != "reference":
        require(module)
    functions = importlib.import_module(f"vkrnn.{module}")
    for name in (cell.name, *([cell.gradients_name] if module == "reference" else [])):
        own, other = (list(inspect.signature(getattr(each, name)).parameters) for each in (vkrnn, functions))
        assert other == [parameter for parameter in own if parameter not in absent]


def section(heading: str) -> str:
    """Return the text of docs/devices.md under a heading."""
    return DEVICES_PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def first_column(table: str) -> list[str]:
    """Return the names in backquotes in the first column of a table, in order."""
    return [
        name for cell in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    ]


def test_counters() -> None:
    """The docstring explains every counter once."""
    counters = list(vkrnn.Device("cpu (").statistics())
    explained = re.findall(r"``(\w+)``", inspect.getdoc(vkrnn.Device.statistics) or "")
    assert sorted(explained) == sorted(counters)


def test_strategies() -> None:
    """docs/devices.md explains every strategy that a device here can run, and every tuning parameter."""
    text = section("Strategies")
    tables = {part: first_column(text.split(f"| `{part}` |")[1].split("\n\n")[0]) for part in ("schedule", "gemm")}
    parameters = set(re.findall(r"`(\w+)`", text.split("### Fix a strategy")[1].split("\n### ")[0]))
    sources = "".join(path.read_text() for path in (ROOT / "cpp/src/plan").rglob("*.cpp"))
    declared = set(re.findall(r'\{"(\w+)",\s*&\w+::', sources))  # rows of tuning_parameters.h's tables
    assert "matrix_rows" in declared
    assert declared <= parameters
    for device in vkrnn.devices():
        for part, names in device.strategies.items():
            assert set(names) <= set(tables[part])
        with pytest.raises(TypeError) as caught:
            vkrnn.Device(device.index, no_such_size=1)
        known = str(caught.value).split("the options are ")[1].split(", ")
        assert set(known) <= declared | {"float32", "schedule", "gemm", "wavefront"}


def test_environment_variables() -> None:
    """The documentation explains every variable that the sources read."""
    sources = [path for folder in ("cpp/src", "python/vkrnn") for path in (ROOT / folder).rglob("*") if path.is_file()]
    read = {
        name
        for path in sources
        if path.suffix in {".cpp", ".h", ".py"}
        for name in re.findall(r"\"(VKRNN_[A-Z_]+)\"", path.read_text())
    }
    table = section("Environment variables")
    assert read
    assert read <= set(re.findall(r"`(VKRNN_[A-Z_]+)", table))
