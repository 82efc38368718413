"""The public functions: signatures by the core's table, complete docstrings, examples that run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import pytest

import vkrnn
from vkrnn import _core

OPERATIONS = [
    pytest.param(getattr(vkrnn, name), parameters, id=name)
    for cell in _core.cells()
    for name, parameters in ((cell.name, cell.forward), (cell.gradients_name, cell.gradients))
]
MODULES = ["vkrnn", *(module.name for module in pkgutil.walk_packages(vkrnn.__path__, "vkrnn."))]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    """The examples of every docstring give what stands there."""
    failed, _ = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize(("function", "parameters"), OPERATIONS)
def test_signature(function: Callable[..., Any], parameters: list[tuple[str, bool]]) -> None:
    """Python's signatures and the core's table agree: names, order, what is optional."""
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


@pytest.mark.parametrize(("function", "parameters"), OPERATIONS)
def test_arguments_are_handed_over_by_name(
    function: Callable[..., Any], parameters: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each argument arrives under its own name, in the table's order, and none is forgotten."""
    handed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(inspect.getmodule(function), "run", lambda *args, **options: handed.append((*args, options)))
    given = {name: object() for name in inspect.signature(function).parameters}
    function(**given)
    arguments = {name: given.pop(name) for name, _ in parameters}
    assert handed == [(function.__name__, arguments, given)]
    assert list(handed[0][1]) == list(arguments)


@pytest.mark.parametrize(("function", "parameters"), OPERATIONS)
def test_docstring(function: Callable[..., Any], parameters: list[tuple[str, bool]]) -> None:
    """Every parameter has its shape, every section is there, and no placeholder was left."""
    text = inspect.getdoc(function) or ""
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert f"\n{section}\n{'-' * len(section)}\n" in text
    assert not re.search(r"\{\w+\}", text)
    assert "GH" not in text
    documented = re.findall(r"^(\w+) : (.*)$", text, flags=re.MULTILINE)
    assert [name for name, _ in documented] == [*inspect.signature(function).parameters]
    for (name, optional), (_, kind) in zip(parameters, documented, strict=False):
        assert re.match(r"(array, |numpy\.ndarray of integers, ).*\[", kind), name
        assert kind.endswith(", optional") == optional, name
    assert re.search(r"Mirrors MPSGraph's ``\w+\(_:recurrentWeight:", text)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
def test_descriptor(cell: _core.Cell) -> None:
    """Python's descriptors and the core's table agree: properties, order, defaults."""
    descriptor = getattr(vkrnn, cell.descriptor_name)()
    fields = {name: getattr(descriptor, name) for name in descriptor.__dataclass_fields__}
    shown = {
        name: value.name.lower() if isinstance(value, vkrnn.Activation) else value for name, value in fields.items()
    }
    assert list(shown.items()) == list(cell.properties.items())


@pytest.mark.parametrize("cell", _core.cells(), ids=lambda cell: cell.name)
def test_reference_has_the_same_signature(cell: _core.Cell) -> None:
    """The reference takes what the operation takes, less where to run and where to write."""
    for name in (cell.name, cell.gradients_name):
        own, other = (list(inspect.signature(getattr(m, name)).parameters) for m in (vkrnn, vkrnn.reference))
        assert other == [parameter for parameter in own if parameter not in {"device", "out"}]
