"""Tables in plain text, and paragraphs that docstrings share."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

__all__ = ["Function", "clean", "table", "with_paragraphs"]

Function = TypeVar("Function", bound=Callable[..., object])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines of text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def with_paragraphs(paragraphs: Mapping[str, str]) -> Callable[[Function], Function]:
    """Insert paragraphs into the docstring of a function or class, which names each on a line of its own: ``{bias}``.

    In them, ``{function}`` stands for its name.
    """

    def complete(function: Function) -> Function:
        def paragraph(match: re.Match[str]) -> str:
            return clean(paragraphs[match[1]]).replace("{function}", function.__name__)

        if function.__doc__ is not None:  # it is None under python -OO
            function.__doc__ = re.sub(r"^\{(\w+)\}$", paragraph, inspect.cleandoc(function.__doc__), flags=re.MULTILINE)
        return function

    return complete


def clean(text: str) -> str:
    """Return a paragraph without indentation and blank lines around it."""
    return textwrap.dedent(text).strip()
