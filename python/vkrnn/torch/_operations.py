"""The torch operators `operation` and `operation_backward`: one of the functions, and its gradients.

They take all arguments of all functions by position, then the name of the cell and its options as numbers. Those of
resets and blends follow, which programs that were exported by older versions lack. Their gradients follow all others.
Cells with several states besides h have operators of their own, `states_operation` and `states_operation_backward`,
because exported programs contain the others with their schemas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from vkrnn import _core, descriptors
from vkrnn.descriptors import WORDS, Activation
from vkrnn.results import STATES
from vkrnn.torch._autograd import (
    connected,
    replaced,
    require_no_transform,
    saved_bias,
)
from vkrnn.torch._calls import Kind, keep_until_read, run
from vkrnn.torch._levels import at_lower_levels, differentiable, library
from vkrnn.torch._loops import operation_loop, pulled_back
from vkrnn.torch._network import register
from vkrnn.torch._onnx import refuse_function
from vkrnn.torch._tracing import unseen_by_dynamo
from vkrnn.torch._vmap import one_by_one

__all__ = ["CELLS", "FORMS", "RESETS", "Form", "options_of"]


@dataclass(frozen=True)
class _Cell:
    """A cell's row in the core's table, in the order of the operators."""

    gradients_name: str
    gates: int
    descriptor: type[Any]
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    kept: tuple[str, ...]  # the forward results that the gradients always take

    def kept_with(self, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the forward results that the gradients of a call with these arguments take."""
        return (*self.kept, "output") if any(given.get(name) is not None for name in BLENDS) else self.kept


MASKS = ("zoneout_mask", "zoneout_cell_mask")
BLENDS = (*MASKS, "leak")
CELLS = {
    cell.name: _Cell(
        cell.gradients_name,
        len(cell.gates),
        getattr(descriptors, cell.descriptor_name),
        tuple(name for name, _ in cell.forward),
        tuple(cell.outputs),
        tuple(
            name for name in cell.outputs if {name, f"{name}_fwd"} & {taken for taken, no in cell.gradients if not no}
        ),
    )
    for cell in _core.cells()
}


RESETS = ("reset", "reset_state", "reset_cell")


class Form:
    """The operators of some cells, with all arguments and results of these cells in the operators' order."""

    def __init__(self, name: str, differentiable: Sequence[str], outputs: Sequence[str]) -> None:
        self.name = name
        self.differentiable = tuple(differentiable)  # the first arguments, which have gradients
        self.arguments = (*differentiable, "mask", "lengths")
        self.outputs = tuple(outputs)  # h, the cell states, z_state
        self.later: tuple[str, ...] = ()  # arguments after all others
        self.operation: Any = None
        self.backward: Any = None

    @property
    def with_gradients(self) -> tuple[str, ...]:
        """The arguments that have gradients, in the order of the results."""
        return (*self.differentiable, *(name for name in self.later if name not in MASKS))

    def upstream(self) -> list[str]:
        """Return the names of the upstream gradients of the states in the operator's schema."""
        return ["d_" + {"cell_output": "cells"}.get(name, name) for name in self.outputs[:-1]]


_OPERATION = Form(
    "operation",
    (
        "source",
        "recurrent_weight",
        "input_weight",
        "bias",
        "secondary_bias",
        "init_state",
        "init_cell",
        "peephole",
    ),
    ("output", "cell_output", "z_state"),
)
_OPERATION.later = (*RESETS, *BLENDS)
_STATES_OPERATION = Form(
    "states_operation",
    ("source", "recurrent_weight", "input_weight", "bias", *(state.initial for state in STATES)),
    (*(state.sequence for state in STATES), "z_state"),
)
_STATES_OPERATION.later = (*RESETS, "zoneout_mask", "leak")
FORMS = {
    name: _OPERATION if set(cell.outputs) <= set(_OPERATION.outputs) else _STATES_OPERATION
    for name, cell in CELLS.items()
}


def _split(inputs: Sequence[Any], others: int) -> tuple[Form, Sequence[Any], dict[str, Tensor | None], Sequence[Any]]:
    """Return an operator's form, what precedes its arguments, these by name, and the `others`, from the cell's name on.

    The arguments include those of resets and blends, which follow the others.
    """
    place = next(number for number, value in enumerate(inputs) if isinstance(value, str))
    form = FORMS[inputs[place]]
    first = place - len(form.arguments)
    given = dict(zip(form.arguments, inputs[first:place], strict=True))
    later = dict.fromkeys(form.later) | dict(zip(form.later, inputs[place + others :], strict=False))  # or defaults
    return form, inputs[:first], given | later, inputs[place : place + others]


def options_of(descriptor: Any) -> list[float]:
    """Return the options as an operator takes them."""
    return [_number(name, getattr(descriptor, name)) for name in _OPTIONS[type(descriptor).__name__]]


def _number(name: str, value: Any) -> float:
    if isinstance(value, str):
        return float(WORDS[name].index(value))
    if value is None:
        return math.inf
    # torch.compile cannot convert a member of an enumeration to float.
    return float(value.value if isinstance(value, Activation) else value)


_OPTIONS = {cell.descriptor.__name__: tuple(field.name for field in fields(cell.descriptor)) for cell in CELLS.values()}


@functools.lru_cache(maxsize=256)
def _descriptor(cell: str, options: tuple[float, ...]) -> Any:
    """Return the descriptor that has these options."""
    kind = CELLS[cell].descriptor
    given: dict[str, Any] = {}
    for field, value in zip(fields(kind), options, strict=False):  # older programs lack the last ones
        is_of: Any = type(field.default)
        if is_of is str:
            given[field.name] = WORDS[field.name][int(value)]
        elif field.default is None:
            given[field.name] = None if math.isinf(value) else value
        else:
            given[field.name] = Activation(int(value)) if is_of is Activation else is_of(value)
    return kind(**given)


def _with(cell: str, options: Sequence[float], *, training: bool) -> Any:
    """Return the descriptor for a call that keeps what gradients need, or does not."""
    names = _OPTIONS[CELLS[cell].descriptor.__name__]
    changed = {"training": float(training)}
    return _descriptor(cell, tuple(changed.get(name, value) for name, value in zip(names, options, strict=False)))


@functools.lru_cache(maxsize=1024)
def _kind(cell: str, options: tuple[float, ...], names: tuple[str, ...], *, training: bool, gradients: bool) -> Kind:
    """Return the kind of a call with these arguments."""
    how = _with(cell, options, training=training)
    return Kind(cell, how, [(name, 0) for name in names if name != "lengths"], gradients=gradients)


def _call(
    cell: str, options: Sequence[float], given: Mapping[str, Tensor | None], *, training: bool, gradients: bool
) -> dict[str, Tensor]:
    """Call a function with the tensors that are not None, and return its results by name."""
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    kind = _kind(cell, tuple(options), tuple(tensors), training=training, gradients=gradients)
    lengths = tensors.pop("lengths", None)
    return {name: result for (name, _), result in run(kind, list(tensors.values()), lengths).items()}


@unseen_by_dynamo
def _compute(*given: Any) -> tuple[Tensor, ...]:
    """Return the output, the cell states and z_state. Absent outputs are empty tensors."""
    form, _, tensors, (cell, options, training) = _split(given, 3)
    found = _call(cell, options, tensors, training=training, gradients=False)
    return tuple(found[name] if name in found else given[0].new_empty(0) for name in form.outputs)


def _compute_shapes(*given: Any) -> tuple[Tensor, ...]:
    *_, tensors, (cell, options, training) = _split(given, 3)
    how = _with(cell, options, training=training)
    source, weight = given[0], tensors["recurrent_weight"]
    T, N, channels = source.shape
    D, gates = 2 if how.bidirectional else 1, CELLS[cell].gates
    if weight is not None:
        H = weight.shape[-2] // gates
    else:
        W = tensors["input_weight"]
        H = (channels if W is None else W.shape[0]) // (D * gates)
    has_cells = training or getattr(how, "produce_cell", False)
    there = [has_cells and name in CELLS[cell].outputs for name in FORMS[cell].outputs[1:-1]]
    return (
        source.new_empty(T, N, D * H),
        *(source.new_empty(T, N, D * H) if is_there else source.new_empty(0) for is_there in there),
        source.new_empty(T, N, D * gates * H) if training else source.new_empty(0),
    )


@unseen_by_dynamo
def _compute_backward(*given: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the differentiable arguments in their order; those of absent ones are empty."""
    form, before, arguments, (cell, options) = _split(given, 2)
    above, kept = before[: len(form.outputs) - 1], before[len(form.outputs) - 1 :]
    source, lengths = given[len(before)], arguments["lengths"]
    keep_until_read(*(tensor for name, tensor in arguments.items() if name != "lengths"))
    tensors = arguments | {"source_gradient": above[0], "z_state": kept[-1]}
    for state, forward in zip(STATES, kept[:-1], strict=False):
        tensors[state.forward] = forward
    for state, gradient in zip(STATES[1:], above[1:], strict=False):
        if gradient is not None and lengths is not None and len(source) == 1:
            # else a row without steps would pass it on to its initial state
            gradient = gradient.masked_fill((lengths == 0).to(gradient.device).unsqueeze(1), 0)  # noqa: PLW2901
        tensors[state.gradient] = gradient
    found = _call(cell, options, tensors, training=False, gradients=True)
    return tuple(
        found[name].view(tensor.shape) if name in found and tensor is not None else source.new_empty(0)
        for name, tensor in arguments.items()
        if name in form.with_gradients
    )


def _compute_backward_shapes(*given: Any) -> tuple[Tensor, ...]:
    form, before, arguments, _ = _split(given, 2)
    return tuple(
        given[len(before)].new_empty(0 if tensor is None or tensor.dtype == torch.bool else tensor.shape)
        for name, tensor in arguments.items()
        if name in form.with_gradients
    )


def _register(form: Form) -> None:
    tensors = "Tensor source, " + ", ".join(f"Tensor? {name}" for name in form.arguments[1:])
    later = "".join(f", Tensor? {name}=None" for name in form.later)
    results = ", ".join(["Tensor"] * len(form.outputs))
    form.operation = register(
        f"vkrnn::{form.name}({tensors}, str cell, float[] options, bool training{later}) -> ({results})",
        _compute,
        _compute_shapes,
    )
    refuse_function(form.name, len(form.arguments), _compute_shapes)
    kept = ", ".join(f"Tensor? {name}" for name in (*form.upstream(), *form.outputs[:-1]))
    results = ", ".join(["Tensor"] * len(form.with_gradients))
    given = f"{kept}, Tensor z_state, {tensors}, str cell, float[] options{later}"
    form.backward = register(
        f"vkrnn::{form.name}_backward({given}) -> ({results})", _compute_backward, _compute_backward_shapes
    )


for _form in (_OPERATION, _STATES_OPERATION):
    _register(_form)


class _Operation(torch.autograd.Function):
    """A form's `operation` with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Save what the gradients need."""
        form, _, given, (ctx.cell, ctx.options, ctx.trained) = _split(inputs, 3)
        ctx.count = len(inputs)
        outputs: tuple[Tensor, ...] = at_lower_levels(form.operation, inputs)
        needed = CELLS[ctx.cell].kept_with(given) if ctx.trained else ()
        kept = [result if name in needed else None for name, result in zip(form.outputs, outputs, strict=True)]
        # Biases may be changed before the backward pass: their numbers are not read, except for those of a GRU with
        # reset_after.
        ctx.biases = {name: given[name] for name in ("bias", "secondary_bias") if name in given}
        read = getattr(_with(ctx.cell, ctx.options, training=False), "reset_after", False)
        saved = given | dict.fromkeys(ctx.biases)
        if read and given["secondary_bias"] is not None:
            saved["secondary_bias"] = saved_bias(given["secondary_bias"])
        ctx.save_for_backward(*kept, *saved.values())
        ctx.mark_non_differentiable(outputs[-1])
        ctx.set_materialize_grads(False)  # saves zeros as large as the gates
        return outputs

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, *above: Tensor | None) -> Any:
        """Call the form's `backward`."""
        if not ctx.trained:
            raise RuntimeError(
                f"[vkrnn.torch.{ctx.cell}] gradients need a forward call with training=True, got training=False"
            )
        form, saved = FORMS[ctx.cell], ctx.saved_tensors
        kept, saved = saved[: len(form.outputs)], saved[len(form.outputs) :]
        given = dict(zip((*form.arguments, *form.later), saved, strict=True))
        inside = given.get("secondary_bias")
        given |= ctx.biases
        if inside is not None:
            given["secondary_bias"] = connected(inside, given["secondary_bias"])
        tensors, later = ([given[name] for name in names] for names in (form.arguments, form.later))
        # Gradients of empty tensors are left out.
        of_states = [
            gradient if name in CELLS[ctx.cell].outputs else None
            for name, gradient in zip(form.outputs, above[:-1], strict=False)
        ]
        found = form.backward(*of_states, *kept, *tensors, ctx.cell, ctx.options, *later)
        gradients = {
            name: gradient
            for name, gradient in zip(form.with_gradients, found, strict=True)
            if given[name] is not None and given[name].dtype != torch.bool
        }
        in_order = *map(gradients.get, form.arguments), None, None, None, *map(gradients.get, form.later)
        return in_order[: ctx.count]


def _operation_by_loop(*inputs: Any) -> tuple[Tensor, ...]:
    """Do what a form's `operation` does, by PyTorch's operations. z_state, which has no derivatives, is zeros."""
    form, _, given, (cell, options, training) = _split(inputs, 3)
    found = operation_loop(cell, _with(cell, options, training=training), given)
    like = _compute_shapes(*inputs)
    return tuple(
        found[name] if name in found and each.numel() == found[name].numel() else torch.zeros_like(each)
        for name, each in zip(form.outputs, like, strict=True)
    )


class _OperationBackward(torch.autograd.Function):
    """A form's `backward`, whose derivatives are those of a loop of PyTorch's operations."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Compute the gradients."""
        form, *_ = _split(inputs, 2)
        ctx.others = [None if isinstance(each, Tensor) else each for each in inputs]
        ctx.save_for_backward(*[each if isinstance(each, Tensor) else None for each in inputs])
        found: tuple[Tensor, ...] = at_lower_levels(form.backward, inputs)
        return found

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, *above: Tensor | None) -> Any:
        """Compute second derivatives: do the backward pass again, and differentiate it."""
        inputs = [own if tensor is None else tensor for own, tensor in zip(ctx.others, ctx.saved_tensors, strict=True)]
        places = _differentiable_places(inputs)
        gradients = pulled_back(
            lambda *given: _gradients_by_loop(*replaced(inputs, places, given)),
            [inputs[place] for place in places],
            above,
        )
        found: list[Tensor | None] = [None] * len(inputs)
        return tuple(replaced(found, places, gradients))


def _differentiable_places(inputs: Sequence[Any]) -> list[int]:
    """Return the inputs of a form's `backward` that its results depend on, apart from what the forward pass has kept.

    These are what is above, and the arguments with gradients.
    """
    form, before, _, _ = _split(inputs, 2)
    states, first = len(form.outputs) - 1, len(before)
    last = first + len(form.arguments) + 2
    places = [*range(states), *range(first, first + len(form.differentiable)), *range(last, len(inputs))]
    return [place for place in places if inputs[place] is not None and inputs[place].is_floating_point()]


def _gradients_by_loop(*inputs: Any) -> tuple[Tensor, ...]:
    """Return the results of a form's `backward`, computed by PyTorch's operations."""
    form, before, arguments, (cell, options) = _split(inputs, 2)
    how = _with(cell, options, training=True)
    names = [name for name in form.with_gradients if (each := arguments[name]) is not None and each.is_floating_point()]

    def loop(*given: Tensor) -> tuple[Tensor, ...]:
        found = operation_loop(cell, how, arguments | dict(zip(names, given, strict=True)))
        return tuple(found.get(name, found["output"]) for name in form.outputs[:-1])

    above = [up if name in CELLS[cell].outputs else None for name, up in zip(form.outputs, before, strict=False)][
        : len(form.outputs) - 1
    ]
    primals = [each for name in names if (each := arguments[name]) is not None]
    gradients = dict(zip(names, pulled_back(loop, primals, above), strict=True))
    empty = primals[0].new_zeros(0)
    return tuple(gradients.get(name, empty) for name in form.with_gradients)


def _backward_by_loop(*inputs: Any) -> tuple[Tensor, ...]:
    require_no_transform()
    return _gradients_by_loop(*inputs)


def _vmap(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator's rule for torch.vmap: each example is a call of its own."""

    def rule(info: Any, in_dims: Sequence[Any], *inputs: Any) -> tuple[Any, Any]:
        found = one_by_one(operator, info, in_dims, inputs)
        return found, (0,) * len(found)

    return rule


for _name, _operator, _function, _loop in (
    each
    for form in (_OPERATION, _STATES_OPERATION)
    for each in (
        (form.name, form.operation, _Operation, _operation_by_loop),
        (f"{form.name}_backward", form.backward, _OperationBackward, _backward_by_loop),
    )
):
    library.impl(_name, differentiable(_operator, super(torch.autograd.Function, _function).apply, _loop), "Autograd")
    torch.library.register_vmap(f"vkrnn::{_name}", _vmap(_operator))
