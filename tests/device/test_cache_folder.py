"""The folder of compiled shaders is where platformdirs puts caches."""

from __future__ import annotations

import pytest

from oracles import require
from vkrnn import _core

platformdirs = require("platformdirs")


@pytest.mark.parametrize("given", [None, "", "relative", "~/caches", "/var/cache"])
def test_the_folder_follows_the_environment(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME counts if it is an absolute path, and is ignored otherwise."""
    monkeypatch.delenv("VKRNN_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    if given is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert _core.cache_directory() == platformdirs.user_cache_dir("vkrnn", appauthor=False)


def test_vkrnns_variable_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the folder itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    monkeypatch.setenv("VKRNN_CACHE_DIR", "/somewhere")
    assert _core.cache_directory() == "/somewhere"
