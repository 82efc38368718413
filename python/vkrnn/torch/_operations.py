"""The torch operators `operation` and `operation_backward`: one of the three functions, and its gradients.

They take all arguments of all functions by position, then the name of the cell and its options as numbers. Those of
resets follow, which programs that were exported by older versions lack. The gradients of resets follow all others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import torch
from torch import Tensor

from vkrnn import _core, descriptors
from vkrnn.descriptors import Activation
from vkrnn.torch._autograd import (
    ReverseModeOnly,
    at_lower_levels,
    connected,
    differentiable,
    library,
    saved_bias,
)
from vkrnn.torch._calls import Kind, keep_until_read, run
from vkrnn.torch._network import register
from vkrnn.torch._tracing import unseen_by_dynamo
from vkrnn.torch._vmap import one_by_one

__all__ = ["ARGUMENTS", "CELLS", "OUTPUTS", "RESETS", "operation", "options_of"]


@dataclass(frozen=True)
class _Cell:
    """A cell's row in the core's table, in the order of the operators."""

    gradients_name: str
    descriptor: type[Any]
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    kept: tuple[str, ...]  # the forward results that the gradients take


OUTPUTS = ("output", "cell_output", "z_state")
CELLS = {
    cell.name: _Cell(
        cell.gradients_name,
        getattr(descriptors, cell.descriptor_name),
        tuple(name for name, _ in cell.forward),
        tuple(cell.outputs),
        tuple(name for name in OUTPUTS if {name, f"{name}_fwd"} & {taken for taken, _ in cell.gradients}),
    )
    for cell in _core.cells()
}
# The arguments of all cells in the order of the operators. The first ones have gradients.
_DIFFERENTIABLE = (
    "source",
    "recurrent_weight",
    "input_weight",
    "bias",
    "secondary_bias",
    "init_state",
    "init_cell",
    "peephole",
)
ARGUMENTS = (*_DIFFERENTIABLE, "mask", "lengths")
RESETS = ("reset", "reset_state", "reset_cell")


def _split(inputs: Sequence[Any], others: int) -> tuple[dict[str, Tensor | None], Sequence[Any]]:
    """Return an operator's tensors by name, and the `others`, so many, that follow all but the resets."""
    count = len(ARGUMENTS)
    resets = dict.fromkeys(RESETS) | dict(zip(RESETS, inputs[count + others :], strict=False))  # torch drops defaults
    return dict(zip(ARGUMENTS, inputs[:count], strict=True)) | resets, inputs[count : count + others]


def options_of(descriptor: Any) -> list[float]:
    """Return the options as an operator takes them."""
    values = [getattr(descriptor, name) for name in _OPTIONS[type(descriptor).__name__]]
    # torch.compile cannot convert a member of an enumeration to float.
    return [float(value.value if isinstance(value, Activation) else value) for value in values]


_OPTIONS = {cell.descriptor.__name__: tuple(field.name for field in fields(cell.descriptor)) for cell in CELLS.values()}


@functools.lru_cache(maxsize=256)
def _descriptor(cell: str, options: tuple[float, ...]) -> Any:
    """Return the descriptor that has these options."""
    kind = CELLS[cell].descriptor
    given: dict[str, Any] = {}
    for field, value in zip(fields(kind), options, strict=False):  # older programs lack the last ones
        is_of: Any = type(field.default)
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
def _compute(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the cells and z_state. Absent outputs are empty tensors."""
    tensors, (cell, options, training) = _split(given, 3)
    found = _call(cell, options, tensors, training=training, gradients=False)
    first, second, third = (found[name] if name in found else given[0].new_empty(0) for name in OUTPUTS)
    return first, second, third


def _compute_shapes(source: Tensor, recurrent_weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _, (cell, options, training) = _split([source, recurrent_weight, *rest], 3)
    how = _with(cell, options, training=training)
    T, N, _ = source.shape
    rows, H = recurrent_weight.shape[-2], recurrent_weight.shape[-1] * how.heads
    D = 2 if how.bidirectional else 1
    has_cells = "cell_output" in CELLS[cell].outputs and (training or how.produce_cell)
    return (
        source.new_empty(T, N, D * H),
        source.new_empty(T, N, D * H) if has_cells else source.new_empty(0),
        source.new_empty(T, N, D * rows) if training else source.new_empty(0),
    )


@unseen_by_dynamo
def _compute_backward(*given: Any) -> tuple[Tensor, ...]:
    """Return the gradients of the differentiable arguments in their order; those of absent ones are empty."""
    d_output, d_cells, output, cells, z_state, *rest = given
    arguments, (cell, options) = _split(rest, 2)
    source, lengths = rest[0], arguments["lengths"]
    keep_until_read(*(tensor for name, tensor in arguments.items() if name != "lengths"))
    if d_cells is not None and lengths is not None and len(source) == 1:
        # else a row without steps would pass it on to its initial cell
        d_cells = d_cells.masked_fill((lengths == 0).to(d_cells.device).unsqueeze(1), 0)
    tensors = arguments | {
        "z_state": z_state,
        "source_gradient": d_output,
        "output_fwd": output,
        "cell_output_fwd": cells,
        "cell_gradient": d_cells,
    }
    found = _call(cell, options, tensors, training=False, gradients=True)
    return tuple(
        found[name].view(tensor.shape) if name in found and tensor is not None else source.new_empty(0)
        for name, tensor in arguments.items()
        if name in _WITH_GRADIENTS
    )


def _compute_backward_shapes(*given: Any) -> tuple[Tensor, ...]:
    arguments, _ = _split(given[5:], 2)
    return tuple(
        given[5].new_empty(0 if tensor is None or tensor.dtype == torch.bool else tensor.shape)
        for name, tensor in arguments.items()
        if name in _WITH_GRADIENTS
    )


_WITH_GRADIENTS = (*_DIFFERENTIABLE, *RESETS)
_TENSORS = "Tensor source, Tensor recurrent_weight, " + ", ".join(f"Tensor? {name}" for name in ARGUMENTS[2:])
_RESETS = ", ".join(f"Tensor? {name}=None" for name in RESETS)
operation = register(
    f"vkrnn::operation({_TENSORS}, str cell, float[] options, bool training, {_RESETS}) -> (Tensor, Tensor, Tensor)",
    _compute,
    _compute_shapes,
)
_backward = register(
    "vkrnn::operation_backward(Tensor? d_output, Tensor? d_cells, Tensor? output, Tensor? cell_output, Tensor z_state, "
    f"{_TENSORS}, str cell, float[] options, {_RESETS}) -> ({', '.join(['Tensor'] * len(_WITH_GRADIENTS))})",
    _compute_backward,
    _compute_backward_shapes,
)


class _Operation(ReverseModeOnly):
    """`vkrnn::operation` with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Save what the gradients need."""
        given, (ctx.cell, ctx.options, ctx.trained) = _split(inputs, 3)
        ctx.count = len(inputs)
        outputs: tuple[Tensor, ...] = at_lower_levels(operation, inputs)
        kept = [
            result if ctx.trained and name in CELLS[ctx.cell].kept else None
            for name, result in zip(OUTPUTS, outputs, strict=True)
        ]
        # Biases may be changed before the backward pass: their numbers are not read, except for those of a GRU with
        # reset_after.
        ctx.biases = {name: given[name] for name in ("bias", "secondary_bias")}
        read = getattr(_with(ctx.cell, ctx.options, training=False), "reset_after", False)
        inside = saved_bias(given["secondary_bias"]) if read and given["secondary_bias"] is not None else None
        ctx.save_for_backward(*kept, *(given | {"bias": None, "secondary_bias": inside}).values())
        ctx.mark_non_differentiable(outputs[2])
        ctx.set_materialize_grads(False)  # saves zeros as large as the gates
        return outputs

    @staticmethod
    @unseen_by_dynamo
    def backward(ctx: Any, d_output: Tensor | None, d_cells: Tensor | None, _: Tensor | None) -> Any:
        """Call `vkrnn::operation_backward`."""
        if not ctx.trained:
            raise RuntimeError(
                f"[vkrnn.torch.{ctx.cell}] gradients need a forward call with training=True, got training=False"
            )
        output, cells, z_state, *saved = ctx.saved_tensors
        given = dict(zip((*ARGUMENTS, *RESETS), saved, strict=True))
        inside = given["secondary_bias"]
        given |= ctx.biases
        if inside is not None:
            given["secondary_bias"] = connected(inside, given["secondary_bias"])
        tensors, resets = ([given[name] for name in names] for names in (ARGUMENTS, RESETS))
        if cells is None:
            d_cells = None  # that of an empty tensor
        found = _backward(d_output, d_cells, output, cells, z_state, *tensors, ctx.cell, ctx.options, *resets)
        gradients = {
            name: gradient
            for name, gradient in zip(_WITH_GRADIENTS, found, strict=True)
            if given[name] is not None and given[name].dtype != torch.bool
        }
        in_order = *map(gradients.get, ARGUMENTS), None, None, None, *map(gradients.get, RESETS)
        return in_order[: ctx.count]


class _OperationBackward(ReverseModeOnly):
    """`vkrnn::operation_backward`, whose derivatives raise an error."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Compute the gradients."""
        _, (ctx.cell, _) = _split(inputs[5:], 2)
        found: tuple[Tensor, ...] = at_lower_levels(_backward, inputs)
        return found

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> NoReturn:
        """Refuse second derivatives."""
        raise NotImplementedError(f"[vkrnn.torch.{ctx.cell}] gradients of gradients: vkrnn has first derivatives only")


def _vmap(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator's rule for torch.vmap: each example is a call of its own."""

    def rule(info: Any, in_dims: Sequence[Any], *inputs: Any) -> tuple[Any, Any]:
        found = one_by_one(operator, info, in_dims, inputs)
        return found, (0,) * len(found)

    return rule


for _name, _operator, _function in (
    ("operation", operation, _Operation),
    ("operation_backward", _backward, _OperationBackward),
):
    library.impl(_name, differentiable(_operator, super(torch.autograd.Function, _function).apply), "Autograd")
    torch.library.register_vmap(f"vkrnn::{_name}", _vmap(_operator))
