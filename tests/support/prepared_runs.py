"""Records calls with kept weights."""

from __future__ import annotations

from typing import Any

import pytest

from vkrnn._ops.prepared import Prepared

__all__ = ["record_runs"]


def record_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each finished call with kept weights adds the object that ran it."""
    found: list[Any] = []

    def count(name: str) -> None:
        run = getattr(Prepared, name)

        def counted(self: Any, *given: Any, **options: Any) -> Any:
            results = run(self, *given, **options)
            if results is not None:
                found.append(self)
            return results

        monkeypatch.setattr(Prepared, name, counted)

    count("run")
    count("run_unless_changed")
    count("run_node")
    return found
