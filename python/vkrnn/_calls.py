"""What the public functions share: a call is checked as a whole, only then a device is looked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vkrnn import _core
from vkrnn._out import checked_out
from vkrnn.arrays import on_device
from vkrnn.devices import Device, resolve
from vkrnn.results import Results

__all__ = ["CheckedCall", "bind", "run"]

_CELLS = {cell.name: cell for cell in _core.cells()}
_MODULES = ("vkrnn.operations", "vkrnn.gradients")
_GRADIENTS = {cell.gradients_name: cell for cell in _core.cells()}


@dataclass(frozen=True)
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
        gradients = function in _GRADIENTS
        cell = _GRADIENTS[function] if gradients else _CELLS[function]
        label = given["name"]
        if label is not None and not isinstance(label, str):
            raise TypeError(f"[{function}] name: expected a str, got {type(label).__name__}")
        arguments = {
            name: given[name]
            for name, optional in (cell.gradients if gradients else cell.forward)
            if not (optional and given[name] is None)
        }
        call = _core.check(cell.name, gradients, given["descriptor"], arguments, label or "")
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

    def absent(self) -> dict[str, str]:
        """Say of each result that the operation has but not this time why that is so."""
        there = {name for name, _ in self.call.results}
        if self.function in _GRADIENTS:
            order = _GRADIENTS[self.function].gradient_order
            return {name: f"no {name} was passed" for name in order if name not in there}
        reasons = {
            "cell_output": "the descriptor has produce_cell=False and training=False",
            "z_state": "the descriptor has training=False",
        }
        return {name: reasons[name] for name in _CELLS[self.function].outputs if name not in there}


def run(function: str, given: Mapping[str, Any]) -> Results:
    """Run `function` with the arguments `given`, all of them, by name."""
    checked = CheckedCall.of(function, given)
    call = checked.call
    out, owner = checked_out(call, checked.out, checked.prefix)
    device = checked.resolved(owner)
    opened = device.open(checked.prefix)
    dtype = given["source"].dtype.newbyteorder("=")

    def make(shape: tuple[int, ...]) -> Any:
        return on_device(device, dtype, shape) if owner else _core.result_array(device, opened, dtype, shape)

    arrays = _core.run(opened, call, out, owner is None, make)
    if owner is None:
        arrays = [_core.view(array) if isinstance(array, _core.Array) else array for array in arrays]
    return Results(function, [name for name, _ in call.results], arrays, checked.absent())


def bind(user: str, function: Callable[..., Results], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CheckedCall:
    """Check the call ``function(*args, **kwargs)`` without making it, for `user`, which is named in messages."""
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", "") not in _MODULES or name not in {*_CELLS, *_GRADIENTS}:
        known = ", ".join(f"vkrnn.{known}" for known in (*_CELLS, *_GRADIENTS))
        raise TypeError(f"[{user}] function: expected one of {known}, got {function!r}")
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"[{name}] {error}") from None
    bound.apply_defaults()
    return CheckedCall.of(name, bound.arguments)
