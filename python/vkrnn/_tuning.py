"""The strategies that were measured on a device: a file in the cache folder, which a device reads as it opens."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vkrnn import _core

__all__ = ["Entry", "forget", "load", "path_of", "read", "save"]

Entry = dict[str, Any]
"""What `_core.tuned_call` returns, with ``strategy``, as a plan has it, and ``milliseconds``, by the rules and so."""

_FORMAT = 1  # of the file; a file of another is ignored
_logger = logging.getLogger("vkrnn")
_told: set[str] = set()


def path_of(profile: _core.Profile) -> Path | None:
    """Return where the device's table is, or would be; None where no cache folder is known."""
    folder = _core.cache_directory()
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{profile.name} {profile.driver} {profile.driver_version}").strip("-")
    return Path(folder) / f"{name}.tuning.json" if folder else None


def load(profile: _core.Profile) -> _core.Tuning:
    """Return what a device that is opened is to use: nothing where ``VKRNN_TUNING`` is 0."""
    wanted = os.environ.get("VKRNN_TUNING") != "0"
    return _core.make_tuning(read(profile) if wanted else [])


def read(profile: _core.Profile) -> list[Entry]:
    """Return the table, empty if there is none. One that cannot be used is told of once in the log, and is as none."""
    path = path_of(profile)
    if path is None:
        return []
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return _ignore(path, error)
    try:
        table = json.loads(text)
        if {**table, "calls": None} != {**_head(profile), "calls": None}:
            return _ignore(path, "it is of another device, driver or version of vkrnn")
        entries: list[Entry] = [dict(entry) for entry in table["calls"]]
        _core.make_tuning(entries)
        for entry in entries:
            by_rules, tuned = entry["milliseconds"]
            float(by_rules), float(tuned)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return _ignore(path, error)
    return entries


def save(profile: _core.Profile, entries: Sequence[Entry]) -> Path | None:
    """Replace the table, and return where it is; None where no cache folder is known. Raises OSError."""
    path = path_of(profile)
    if path is None:
        return None
    head = json.dumps(_head(profile), indent=1, ensure_ascii=False).removesuffix("\n}")
    calls = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(f'{head},\n "calls": [\n{calls}\n ]\n}}\n', "utf-8")
    temporary.replace(path)
    return path


def forget(profile: _core.Profile) -> bool:
    """Remove the table, and return whether there was one. Raises OSError."""
    path = path_of(profile)
    if path is None or not path.exists():
        return False
    path.unlink()
    return True


def _head(profile: _core.Profile) -> dict[str, Any]:
    return {
        "vkrnn_tuning": _FORMAT,
        "device": profile.name,
        "driver": profile.driver,
        "driver_version": profile.driver_version,
    }


def _ignore(path: Path, reason: object) -> list[Entry]:
    text = f"{path} is ignored: {reason}"
    if text not in _told:
        _told.add(text)
        _logger.warning("%s", text)
    return []
