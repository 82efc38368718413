"""The operations on torch tensors, with every option and with gradients by torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from vkrnn._base.warnings import warn_of_unused_bias
from vkrnn._ops.calls import REASONS
from vkrnn._ops.documentation import with_paragraphs
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.results import LSTMOutputs, Outputs, Results, SLSTMOutputs
from vkrnn.torch._operations import CELLS, FORMS, MASKS, options_of

__all__ = ["gru", "lstm", "single_gate_rnn", "slstm"]

Kind = TypeVar("Kind", bound=Results[Any])

_PARAGRAPHS = {
    "parameters": """
        Parameters are those of `vkrnn.{function}`, which has shapes, equations and warnings. Tensors are on the CPU or
        on a CUDA device. Gradients go through torch's autograd to every tensor but masks, `lengths` and a
        `reset` of bool.
        """,
    "raises": """
        Raises
        ------
        TypeError, ValueError, DeviceError
            As in `vkrnn.{function}`.
        NotImplementedError
            As there, and for a tensor on another kind of device and for gradients with respect to masks.
        """,
}


@with_paragraphs(_PARAGRAPHS)
def single_gate_rnn(
    source: Tensor,
    recurrent_weight: Tensor | None,
    *,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    init_state: Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    reset: Tensor | None = None,
    reset_state: Tensor | None = None,
    zoneout_mask: Tensor | None = None,
    leak: Tensor | float | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
) -> Outputs[Tensor]:
    """Run `vkrnn.single_gate_rnn` on tensors of torch.

    {parameters}

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; with ``training`` in the descriptor also ``z_state``, which has
        no gradient.

    {raises}
    """
    steps = reset, reset_state, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, lengths, *steps
    return _differentiable(Outputs, "single_gate_rnn", descriptor, arrays)


@with_paragraphs(_PARAGRAPHS)
def lstm(
    source: Tensor,
    recurrent_weight: Tensor | None,
    *,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    init_state: Tensor | None = None,
    init_cell: Tensor | None = None,
    mask: Tensor | None = None,
    peephole: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    reset: Tensor | None = None,
    reset_state: Tensor | None = None,
    reset_cell: Tensor | None = None,
    zoneout_mask: Tensor | None = None,
    zoneout_cell_mask: Tensor | None = None,
    leak: Tensor | float | None = None,
    descriptor: LSTMDescriptor | None = None,
) -> LSTMOutputs[Tensor]:
    """Run `vkrnn.lstm` on tensors of torch.

    {parameters}

    Returns
    -------
    LSTMOutputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; with ``produce_cell`` or ``training`` in the descriptor
        ``cell_output`` of the same shape; with ``training`` also ``z_state``, which has no gradient.

    {raises}

    Examples
    --------
    >>> import torch, vkrnn.torch
    >>> source = torch.ones(5, 3, 2)
    >>> weight, recurrent = torch.full((16, 2), 0.1, requires_grad=True), torch.full((16, 4), 0.1)
    >>> peephole = torch.zeros(16, requires_grad=True)
    >>> found = lstm(source, recurrent, input_weight=weight, peephole=peephole)
    >>> found.output.sum().backward()
    >>> peephole.grad.shape
    torch.Size([16])
    """
    steps = reset, reset_state, reset_cell, zoneout_mask, zoneout_cell_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, init_cell, mask, peephole, lengths, *steps
    return _differentiable(LSTMOutputs, "lstm", descriptor, arrays)


@with_paragraphs(_PARAGRAPHS)
def gru(
    source: Tensor,
    recurrent_weight: Tensor | None,
    *,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    init_state: Tensor | None = None,
    mask: Tensor | None = None,
    secondary_bias: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    reset: Tensor | None = None,
    reset_state: Tensor | None = None,
    zoneout_mask: Tensor | None = None,
    leak: Tensor | float | None = None,
    descriptor: GRUDescriptor | None = None,
) -> Outputs[Tensor]:
    """Run `vkrnn.gru` on tensors of torch.

    {parameters}

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; with ``training`` in the descriptor also ``z_state``, which has
        no gradient.

    {raises}
    """
    if not torch.compiler.is_dynamo_compiling():  # which cannot trace warnings
        warn_of_unused_bias("[vkrnn.torch.gru]", secondary_bias, descriptor)
    steps = reset, reset_state, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias, lengths, *steps
    return _differentiable(Outputs, "gru", descriptor, arrays)


@with_paragraphs(_PARAGRAPHS)
def slstm(
    source: Tensor,
    recurrent_weight: Tensor | None,
    *,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    init_state: Tensor | None = None,
    init_cell: Tensor | None = None,
    init_normalizer: Tensor | None = None,
    init_stabilizer: Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    reset: Tensor | None = None,
    reset_state: Tensor | None = None,
    reset_cell: Tensor | None = None,
    zoneout_mask: Tensor | None = None,
    leak: Tensor | float | None = None,
    descriptor: SLSTMDescriptor | None = None,
) -> SLSTMOutputs[Tensor]:
    """Run `vkrnn.slstm` on tensors of torch.

    {parameters}

    Returns
    -------
    SLSTMOutputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; with ``produce_cell`` or ``training`` in the descriptor
        ``cell_output``, ``normalizer_output`` and ``stabilizer_output`` of the same shape; with ``training`` also
        ``z_state``, which has no gradient.

    {raises}
    """
    states = init_state, init_cell, init_normalizer, init_stabilizer
    steps = lengths, reset, reset_state, reset_cell, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, *states, mask, *steps
    return _differentiable(SLSTMOutputs, "slstm", descriptor, arrays)


def _differentiable(kind: type[Kind], cell: str, descriptor: Any, arrays: tuple[Any, ...]) -> Kind:
    """Return the results of a call of `cell` with arrays, or None, in the order of the core's table."""
    arguments = dict(zip(CELLS[cell].arguments, arrays, strict=True))
    wanted = CELLS[cell].descriptor
    if descriptor is None:
        descriptor = wanted()
    if not isinstance(descriptor, wanted):
        raise TypeError(f"[vkrnn.torch.{cell}] descriptor: expected {wanted.__name__}, got {type(descriptor).__name__}")
    _check(cell, arguments)
    # Within torch.vmap, tensors do not show whether they require gradients.
    transformed = torch._C._are_functorch_transforms_active()  # noqa: SLF001
    requires = [value.requires_grad for value in arguments.values() if value is not None]
    keeps = torch.is_grad_enabled() and (transformed or any(requires))
    for name in ("mask", *MASKS):
        mask = arguments.get(name)
        if mask is not None and torch.is_grad_enabled() and mask.requires_grad:
            raise NotImplementedError(f"[vkrnn.torch.{cell}] {name}: vkrnn computes no gradient with respect to it")
    options = options_of(descriptor)
    form = FORMS[cell]
    tensors, later = ([arguments.get(name) for name in names] for names in (form.arguments, form.later))
    found = form.operation(*tensors, cell, options, keeps or descriptor.training, *later)
    outputs = CELLS[cell].outputs
    shown = {"output"}
    if descriptor.training:
        shown |= set(outputs)
    if getattr(descriptor, "produce_cell", False):
        shown |= set(outputs) - {"z_state"}
    names = [name for name in outputs if name in shown]
    by_name = dict(zip(form.outputs, found, strict=True))
    left_out = {name: REASONS[name] for name in outputs if name not in shown}
    return kind(cell, names, [by_name[name] for name in names], left_out)


def _check(cell: str, arguments: dict[str, Any]) -> None:
    """Make `lengths` and a number as `leak` tensors, and refuse what is no tensor on the CPU or a CUDA device."""
    if arguments["lengths"] is not None:
        arguments["lengths"] = torch.as_tensor(arguments["lengths"])
    leak, source = arguments["leak"], arguments["source"]
    if isinstance(leak, (float, int)) and not isinstance(leak, bool) and isinstance(source, Tensor):
        arguments["leak"] = source.new_full((), leak)
    for name, value in arguments.items():
        if value is None and name != "source":
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"[vkrnn.torch.{cell}] {name}: expected a torch.Tensor, got {type(value).__name__}")
        if value.device.type not in ("cpu", "cuda", "meta"):
            raise NotImplementedError(
                f"[vkrnn.torch.{cell}] {name}: expected a tensor on the CPU or a CUDA device, got one on {value.device}"
            )
