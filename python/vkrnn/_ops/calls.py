"""Common part of all public functions: a call is checked before a device is selected."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from vkrnn import _core
from vkrnn._interop.foreign import as_numpy_integers
from vkrnn._ops.cuda import as_operand
from vkrnn._ops.out import checked_out
from vkrnn.arrays import Array
from vkrnn.devices import Device, require_device, resolve
from vkrnn.results import STATES, Results

__all__ = ["REASONS", "BoundCall", "bind", "call", "run", "saved_results"]

Kind = TypeVar("Kind", bound=Results[Any])

_MODULES = ("vkrnn.operations", "vkrnn.gradients")


@dataclass(frozen=True)
class _Operation:
    """One of the operations, read once from the core's table."""

    cell: str
    gradients: bool
    parameters: tuple[str, ...]  # the arrays, in the function's order
    required: frozenset[str]  # names of the parameters that are not optional
    results: tuple[str, ...]


def _operations() -> Iterator[tuple[str, _Operation]]:
    for cell in _core.cells():
        for name, parameters, results in (
            (cell.name, cell.forward, cell.outputs),
            (cell.gradients_name, cell.gradients, cell.gradient_order),
        ):
            required = frozenset(parameter for parameter, optional in parameters if not optional)
            names = tuple(parameter for parameter, _ in parameters)
            yield name, _Operation(cell.name, name == cell.gradients_name, names, required, tuple(results))


_OPERATIONS = dict(_operations())
REASONS = {  # why a result of a forward call is absent
    **{state.sequence: "the descriptor has produce_cell=False and training=False" for state in STATES[1:]},
    "z_state": "the descriptor has training=False",
}
_AS_THEY_ARE = frozenset({np.ndarray, Array})


def saved_results(cell: _core.Cell, given: Collection[str] = ()) -> dict[str, str]:
    """Return the arguments of the cell's gradients that are results of its forward call, and the results' names.

    `given` are the names of the call's arguments. Optional ones among them decide what the gradients need.
    """
    blends = {"zoneout_mask", "zoneout_cell_mask", "leak"}.intersection(given)
    names = {name: name.removesuffix("_fwd") for name, optional in cell.gradients if blends or not optional}
    return {name: result for name, result in names.items() if result in cell.outputs}


@functools.cache
def _absent(function: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the reason for each of the operation's results that is not in `names`."""
    operation = _OPERATIONS[function]
    left_out = (name for name in operation.results if name not in names)
    return {name: f"no {name} was passed" if operation.gradients else REASONS[name] for name in left_out}


def _checked_label(function: str, name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"[{function}] name: expected a str, got {type(name).__name__}")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ValueError(f"[{function}] name: expected a str without lone surrogates, got {name!a}")
    return name


@dataclass(slots=True)
class BoundCall:
    """A call of an operation, checked by the core, with its Python options."""

    call: _core.CheckedCall
    prefix: str  # of error messages
    device: Any
    out: Any
    ends: tuple[Any, ...] | None  # of a forward call: the parts of `vkrnn.results.Ends`

    @staticmethod
    def of(function: str, arguments: dict[str, Any]) -> BoundCall:
        """Check all `arguments` of `function` by name, in its order. None stands for an absent optional argument.

        The dict is changed.
        """
        options = [arguments.pop(option, None) for option in ("descriptor", "name", "device", "out")]
        return BoundCall.of_arrays(function, arguments, arguments.values(), *options)

    @staticmethod
    def of_arrays(
        function: str,
        names: Iterable[str],
        arrays: Collection[Any],
        descriptor: Any,
        name: Any,
        device: Any,
        out: Any,
    ) -> BoundCall:
        """Do the same with the names of the arrays, the arrays, and the other arguments."""
        operation = _OPERATIONS[function]
        label = "" if name is None else _checked_label(function, name)
        prefix = f"[{function} '{label}']" if label else f"[{function}]"
        given, leak = {}, None
        for key, value in zip(names, arrays, strict=True):
            if type(value) in _AS_THEY_ARE:
                given[key] = value
            elif key == "lengths" and value is not None:
                given[key] = as_numpy_integers(value, f"{prefix} {key}:")
            elif key == "leak" and isinstance(value, (float, np.generic)):
                leak = value
            elif value is not None or key in operation.required:
                preferred = device or next((each.device for each in arrays if type(each) is Array), None)
                given[key] = as_operand(value, f"{prefix} {key}:", preferred)
        if leak is not None:
            of_source = str(getattr(given["source"], "dtype", "float32"))  # a wrong source has none
            given["leak"] = np.asarray(leak, leak.dtype if isinstance(leak, np.generic) else of_source)
        checked = _core.check(operation.cell, operation.gradients, descriptor, given, label)
        ends: tuple[Any, ...] | None = None
        if not operation.gradients:
            ends = descriptor, given.get("lengths"), given.get("init_state"), given.get("init_cell")
            if "init_normalizer" in operation.parameters:
                ends = *ends, False, given.get("init_normalizer"), given.get("init_stabilizer")
        return BoundCall(checked, prefix, device, out, ends)

    def plan(self, device: Device | None = None) -> _core.Plan:
        """Return the plan of the call on the given device, or on the one that it would run on."""
        chosen = device or self.resolved(self.call.device)
        return _core.plan(chosen._open(self.prefix), self.call, chosen._rounds())

    def resolved(self, owner: Device | None) -> Device:
        """Return the device to run on, which is the `owner` of the arrays if there are any on a device."""
        if owner is None:
            return resolve(self.device, self.prefix)
        require_device(self.device, owner, self.prefix, "where the arrays are")
        return owner


def call(
    kind: type[Kind], function: str, arrays: tuple[Any, ...], descriptor: Any, name: Any, device: Any, out: Any
) -> Kind:
    """Run `function` and return its `kind` of results. `arrays` are in the order of its parameters."""
    names = _OPERATIONS[function].parameters
    return _run(kind, function, BoundCall.of_arrays(function, names, arrays, descriptor, name, device, out))


def run(kind: type[Kind], function: str, arguments: dict[str, Any]) -> Kind:
    """Run `function` and return its `kind` of results. Arguments are as in `BoundCall.of`."""
    return _run(kind, function, BoundCall.of(function, arguments))


def _run(kind: type[Kind], function: str, bound: BoundCall) -> Kind:
    given, owner = checked_out(bound.call, bound.out, bound.prefix)
    chosen = bound.resolved(owner)
    opened = chosen._open(bound.prefix)
    results = _core.run(opened, bound.call, given, chosen, owner is not None, chosen._rounds())
    if owner is not None:
        results = [result if isinstance(result, Array) else Array(result) for result in results]
    names = bound.call.result_names
    return kind._of(function, names, results, _absent(function, names), bound.ends)  # noqa: SLF001 - for this package


def bind(user: str, function: Callable[..., Results[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
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
    return BoundCall.of(name, dict(bound.arguments))
