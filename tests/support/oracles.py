"""Libraries that tests compare with. Tests of missing ones are skipped, or fail if VKRNN_REQUIRE_ORACLES=1."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest

__all__ = ["require"]


def require(name: str) -> Any:
    """Return the module, or skip the test or the test file that needs it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        if os.environ.get("VKRNN_REQUIRE_ORACLES") == "1":
            raise
        pytest.skip(f"{name} is not installed", allow_module_level=True)
