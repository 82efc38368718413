"""`_core.pyi` has the parameters of the built module. mypy's stubtest compares the rest (`make lint`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import vkrnn
from vkrnn import _core

STUB = ast.parse((Path(vkrnn.__file__).parent / "_core.pyi").read_text())


def declared(function: ast.FunctionDef) -> list[str]:
    """Return the parameters in the stub, each with whether it has a default."""
    positional = function.args.args
    first_default = len(positional) - len(function.args.defaults)
    return [f"{each.arg}{'=' * (index >= first_default)}" for index, each in enumerate(positional)]


def built(text: str) -> list[list[str]]:
    """Return the same from the signatures in a pybind11 docstring."""
    signatures = re.findall(r"^(?:\d+\. )?\w+(\(.*\)) -> ", text, re.MULTILINE)
    return [declared(_definition(re.sub(r"<[^>]*>", "...", signature))) for signature in signatures]


def _definition(parameters: str) -> ast.FunctionDef:
    definition = ast.parse(f"def f{parameters}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _functions(body: list[ast.stmt]) -> dict[str, list[ast.FunctionDef]]:
    found: dict[str, list[ast.FunctionDef]] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            found.setdefault(statement.name, []).append(statement)
    return found


CLASSES = [each for each in STUB.body if isinstance(each, ast.ClassDef) and hasattr(_core, each.name)]
CALLABLES = [
    pytest.param(getattr(owner, name), overloads, id=f"{getattr(owner, '__name__', '')}.{name}")
    for owner, body in ((_core, STUB.body), *((getattr(_core, each.name), each.body) for each in CLASSES))
    for name, overloads in _functions(body).items()
    if not isinstance(getattr(owner, name), property)
]


@pytest.mark.parametrize(("function", "overloads"), CALLABLES)
def test_parameters(function: Any, overloads: list[ast.FunctionDef]) -> None:
    """Stub and module agree on the names, order and defaults of all parameters of every overload."""
    assert [declared(overload) for overload in overloads] == built(function.__doc__)


def test_stub_covers_the_module() -> None:
    """The stub declares exactly the functions of the module."""
    functions = {name for name, value in vars(_core).items() if type(value).__name__ == "builtin_function_or_method"}
    assert functions == set(_functions(STUB.body))
