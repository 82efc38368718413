"""Whether heads divide the units and features of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["require_divisors"]


def require_divisors(where: str, descriptor: Any, hidden_size: int, widths: Mapping[str, int]) -> None:
    """Raise ValueError unless `heads` divides the hidden size, and `input_heads` that and the named widths."""
    units = {"hidden_size": hidden_size}
    for option, sizes in (("heads", units), ("input_heads", units | dict(widths))):
        count = getattr(descriptor, option)
        for name, size in sizes.items():
            if size % count:
                raise ValueError(f"{where} {option}: expected a divisor of {name} = {size}, got {count}")
