"""Tuned strategies: a file in the cache folder that a device reads when it is opened."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vkrnn import _core

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Entry", "forget", "key_of", "load", "merge", "path_of", "read", "save"]

Entry = dict[str, Any]
"""The keys of `_core.tuned_call`, a plan's ``strategy``, and ``milliseconds`` of the default and of this strategy."""

_FORMAT = 1  # of the file; files of another format are ignored
_logger = logging.getLogger("vkrnn")
_logged: set[str] = set()


def path_of(profile: _core.Profile) -> Path | None:
    """Return the path of the device's table, which may not exist, or None if no cache folder is known."""
    folder = _core.cache_directory()
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{profile.name} {profile.driver} {profile.driver_version}").strip("-")
    return Path(folder) / f"{name}.tuning.json" if folder else None


def load(profile: _core.Profile) -> _core.Tuning:
    """Return the tuned strategies for a device to be opened, none if ``VKRNN_TUNING`` is 0."""
    wanted = os.environ.get("VKRNN_TUNING") != "0"
    return _core.make_tuning(read(profile) if wanted else [])


def read(profile: _core.Profile) -> list[Entry]:
    """Return the table, empty if there is none. A table that cannot be used is logged once and ignored."""
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
        # Older tables have no precision.
        entries: list[Entry] = [{"float32": "ieee", **entry} for entry in table["calls"]]
        _core.make_tuning(entries)
        for entry in entries:
            default, tuned = entry["milliseconds"]
            float(default), float(tuned)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return _ignore(path, error)
    return entries


def key_of(entry: Entry) -> tuple[Any, ...]:
    """Return the key of the entry's call. A table has one entry per key."""
    return tuple(sorted(item for item in entry.items() if item[0] not in {"strategy", "milliseconds"}))


def merge(profile: _core.Profile, faster: Sequence[Entry], as_fast: Sequence[Entry]) -> tuple[int, Path | None]:
    """Enter `faster` into the current table and remove the calls in `as_fast`. Raises OSError.

    Processes take turns, so each keeps the entries of the others.

    Returns
    -------
    entries : int
        The number of entries in the table.
    path : Path or None
        The path of the table, or None if no cache folder is known.
    """
    with _alone(profile):
        table = {key_of(entry): entry for entry in read(profile)}
        for entry in (*faster, *as_fast):
            table.pop(key_of(entry), None)
        table |= {key_of(entry): entry for entry in faster}
        return len(table), save(profile, list(table.values()))


def save(profile: _core.Profile, entries: Sequence[Entry]) -> Path | None:
    """Replace the table. Return its path, or None if no cache folder is known. Raises OSError."""
    path = path_of(profile)
    if path is None:
        return None
    head = json.dumps(_head(profile), indent=1, ensure_ascii=False).removesuffix("\n}")
    calls = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(f'{head},\n "calls": [\n{calls}\n ]\n}}\n', "utf-8")
        temporary.replace(path)
    except BaseException:  # such as a full disk or an interrupt
        temporary.unlink(missing_ok=True)
        raise
    return path


def forget(profile: _core.Profile) -> bool:
    """Remove the table, and return whether there was one. Raises OSError."""
    path = path_of(profile)
    if path is None or not path.exists():
        return False
    path.unlink()
    return True


@contextlib.contextmanager
def _alone(profile: _core.Profile) -> Iterator[None]:
    """Hold a lock on the table's folder, where the system has such locks."""
    path = path_of(profile)
    if path is None or fcntl is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _head(profile: _core.Profile) -> dict[str, Any]:
    return {
        "vkrnn_tuning": _FORMAT,
        "device": profile.name,
        "driver": profile.driver,
        "driver_version": profile.driver_version,
    }


def _ignore(path: Path, reason: object) -> list[Entry]:
    text = f"{path} is ignored: {reason}"
    if text not in _logged:
        _logged.add(text)
        _logger.warning("%s", text)
    return []
