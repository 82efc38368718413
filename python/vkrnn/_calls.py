"""What the public functions share: a call is checked as a whole, only then a device is looked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vkrnn import _core
from vkrnn._out import checked_out
from vkrnn.arrays import Array
from vkrnn.devices import Device, resolve
from vkrnn.results import Results

__all__ = ["CheckedCall", "bind", "run"]

_MODULES = ("vkrnn.operations", "vkrnn.gradients")


@dataclass(frozen=True)
class _Operation:
    """One of the six, as the core's table has it; read once, for what every call asks."""

    cell: str
    gradients: bool
    parameters: tuple[tuple[str, bool], ...]  # name, and whether it is optional
    results: tuple[str, ...]

    def absent(self, names: tuple[str, ...]) -> dict[str, str]:
        """Say of each result that the operation has and `names` has not why that is so."""
        reasons = {
            "cell_output": "the descriptor has produce_cell=False and training=False",
            "z_state": "the descriptor has training=False",
        }
        left_out = (name for name in self.results if name not in names)
        return {name: f"no {name} was passed" if self.gradients else reasons[name] for name in left_out}


def _operations() -> Iterator[tuple[str, _Operation]]:
    for cell in _core.cells():
        yield (
            cell.name,
            _Operation(cell.name, gradients=False, parameters=tuple(cell.forward), results=tuple(cell.outputs)),
        )
        yield (
            cell.gradients_name,
            _Operation(cell.name, gradients=True, parameters=tuple(cell.gradients), results=tuple(cell.gradient_order)),
        )


_OPERATIONS = dict(_operations())


@dataclass(slots=True)
class CheckedCall:
    """A call of one of the six operations, its arguments checked by the core."""

    function: str
    call: _core.Call
    label: str
    device: Any
    out: Any

    @staticmethod
    def of(function: str, given: Mapping[str, Any]) -> CheckedCall:
        """Check the arguments of `function`, all of them, by name."""
        operation = _OPERATIONS[function]
        label = given["name"]
        if label is not None and not isinstance(label, str):
            raise TypeError(f"[{function}] name: expected a str, got {type(label).__name__}")
        arguments = {
            name: given[name] for name, optional in operation.parameters if not (optional and given[name] is None)
        }
        call = _core.check(operation.cell, operation.gradients, given["descriptor"], arguments, label or "")
        return CheckedCall(function, call, label or "", given["device"], given["out"])

    @property
    def prefix(self) -> str:
        """What messages about the call begin with."""
        return f"[{self.function} '{self.label}']" if self.label else f"[{self.function}]"

    def opened(self) -> _core.Device:
        """Return the device to run on."""
        return self.resolved(self.call.device).open(self.prefix)

    def resolved(self, owner: Device | None) -> Device:
        """Return the device to run on, which is the `owner` of the arrays if there are any on a device."""
        if owner is None:
            return resolve(self.device, self.prefix)
        if self.device is not None and resolve(self.device, self.prefix) is not owner:
            raise ValueError(f"{self.prefix} device: expected {owner!r}, where the arrays are, got {self.device!r}")
        return owner


def run(function: str, given: Mapping[str, Any]) -> Results:
    """Run `function` with the arguments `given`, all of them, by name."""
    checked = CheckedCall.of(function, given)
    call, prefix = checked.call, checked.prefix
    names = call.result_names
    out, owner = checked_out(call, checked.out, prefix)
    device = checked.resolved(owner)
    opened = device.open(prefix)
    dtype = given["source"].dtype.newbyteorder("=")
    make = partial(Array if owner else _core.result_array, device, opened, dtype)
    arrays = _core.run(opened, call, out, owner is None, make)
    if owner is None:
        arrays = [_core.view(array) if isinstance(array, _core.Array) else array for array in arrays]
    return Results(function, names, arrays, _OPERATIONS[function].absent(names))


def bind(user: str, function: Callable[..., Results], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedCall:
    """Check the call ``function(*args, **kwargs)`` without making it, for `user`, which is named in messages."""
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", "") not in _MODULES or name not in _OPERATIONS:
        known = ", ".join(f"vkrnn.{known}" for known in _OPERATIONS)
        raise TypeError(f"[{user}] function: expected one of {known}, got {function!r}")
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"[{name}] {error}") from None
    bound.apply_defaults()
    return CheckedCall.of(name, bound.arguments)
