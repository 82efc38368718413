"""The error about an optional package that is missing, which says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["import_package", "missing"]


def missing(user: str, error: ImportError, *packages: str) -> ImportError:
    """Return the error for a `user` that needs the `packages`, of which `error` says why one cannot be imported.

    It names packages of PyPI and none of vkrnn's extras: vkrnn is not on PyPI, and an extra would compile it again.
    """
    if len(packages) > 1:
        needed = f"the packages {', '.join(packages[:-1])} and {packages[-1]} ({error})"
    elif isinstance(error, ModuleNotFoundError) and error.name in packages:
        needed = f"the package {packages[0]}"
    else:
        needed = f"the package {packages[0]} ({error})"
    return ImportError(f"{user} needs {needed}: pip install {' '.join(packages)}")


def import_package(name: str, user: str) -> Any:
    """Return the package of this name. Raises the error of `missing`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing(user, error, name) from error
