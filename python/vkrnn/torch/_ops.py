"""The torch operators `layer` and `layer_backward`: a layer in one or two directions, and its gradients.

Arguments are in torch's layout, with the rows of both directions of a weight one after the other: G gates, D
directions, weights [DGH, I] and [DGH, H], biases and peepholes [DGH], states [D, N, H]. The recurrent mask is
[1, N, DH]. The source is [T, N, I], or packed: [S, I] with the `lengths` of its batch rows, longest first (see
`vkrnn._ops.packed`). Then all sequences are packed. The mode says which options there are: see
`vkrnn.convert._torch_layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vkrnn._interop.torch_tensors import to_array
from vkrnn._ops import packed as _packed
from vkrnn.convert._torch_layout import (
    FORWARD,
    GATES,
    descriptor,
    from_torch_layout,
    gradients_to_torch_layout,
    torch_mode,
)
from vkrnn.torch._calls import KEYS, call
from vkrnn.torch._cuda_calls import keep_until_read, on_device
from vkrnn.torch._cuda_layers import Operands, backward_on_cuda, forward_on_cuda
from vkrnn.torch._repeated_layer import RepeatedLayer
from vkrnn.torch._tracing import unseen_by_dynamo

__all__ = ["compute_layer", "compute_layer_backward", "layer", "layer_backward", "register"]


@unseen_by_dynamo
def compute_layer(
    source: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    peephole: Tensor | None,
    h_0: Tensor | None,
    c_0: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
    mode: str,
    training: bool,  # noqa: FBT001 - operators take all arguments by position
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the output [T, N, DH], h_n and c_n [D, N, H], and what the gradients need: the gates and the cells.

    Absent outputs are None: c_n unless the cell is an LSTM, and the last two without `training`. The operator returns
    empty tensors instead.
    """
    name, H = torch_mode(mode), weight_hh.shape[1]
    D = weight_hh.shape[0] // (GATES[name] * H)
    how = descriptor(mode, bidirectional=D == 2, training=training, produce_cell=True)
    weights = weight_ih, weight_hh, bias_ih, bias_hh, peephole
    if _is_short(source, D, lengths):
        return forward_on_cuda(FORWARD[name].__name__, how, Operands(source, *weights, h_0, c_0, mask))
    given = _arguments(how, source, weights, (h_0, c_0), mask, lengths)
    results = call(FORWARD[name].__name__, given, how, packed=source.dim() == 2)
    cells = results.get("cell_output")
    ends = _last_steps(source, lengths)
    return (
        results["output"],
        _last_state(results["output"], D, ends),
        None if cells is None else _last_state(cells, D, ends),
        results["z_state"] if training else None,
        cells if training else None,
    )


def _compute_shapes(source: Tensor, weight_ih: Tensor, weight_hh: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, lengths, mode, training = rest
    H = weight_hh.shape[1]
    *rows, _ = source.shape  # T and N, or the sum of the lengths
    N = rows[-1] if len(rows) == 2 else lengths.shape[0]
    name = torch_mode(mode)
    D = weight_hh.shape[0] // (GATES[name] * H)
    lstm = name == "LSTM"
    return (
        source.new_empty(*rows, D * H),
        source.new_empty(D, N, H),
        source.new_empty(D, N, H) if lstm else source.new_empty(0),
        source.new_empty(*rows, weight_ih.shape[0]) if training else source.new_empty(0),
        source.new_empty(*rows, D * H) if lstm and training else source.new_empty(0),
    )


@unseen_by_dynamo
def compute_layer_backward(
    d_output: Tensor | None,
    d_h_n: Tensor | None,
    d_c_n: Tensor | None,
    z_state: Tensor,
    states: Tensor,
    source: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    peephole: Tensor | None,
    h_0: Tensor | None,
    c_0: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
    mode: str,
    repeated: RepeatedLayer | None = None,
) -> list[Tensor | None]:
    """Return the gradients of the source, the five weights, h_0 and c_0; None for absent arguments.

    `states` are the cells of an LSTM or the output of a GRU, as `layer` returned them. An RNN does not read them.
    `repeated` is the kept layer that computed the forward pass, if there is one.
    """
    name, H = torch_mode(mode), weight_hh.shape[1]
    D = weight_hh.shape[0] // (GATES[name] * H)
    how = descriptor(mode, bidirectional=D == 2)
    weights = weight_ih, weight_hh, bias_ih, bias_hh, peephole
    if source.is_cuda:
        keep_until_read(source, *weights, h_0, c_0, mask)
    kept = {"z_state": z_state}
    if name in ("LSTM", "GRU"):
        kept["cell_output_fwd" if name == "LSTM" else "output_fwd"] = states
    if _is_short(source, D, lengths):
        function = FORWARD[name].__name__ + "_gradients"
        all_above, operands = (d_output, d_h_n, d_c_n), Operands(source, *weights, h_0, c_0, mask)
        gradients = None if repeated is None else repeated.differentiate(all_above, kept, operands)
        return gradients or backward_on_cuda(function, how, all_above, kept, operands)
    given = _arguments(how, source, weights, (h_0, c_0), mask, lengths, gradients=True)
    given |= {"source_gradient": d_output, **kept}
    if d_h_n is not None:
        given["state_gradient"] = _side_by_side(d_h_n)
    if d_c_n is not None:
        given["cell_gradient"] = _side_by_side(d_c_n)
    found = call(FORWARD[name].__name__ + "_gradients", given, how, packed=source.dim() == 2)
    last = [_one_by_one(found[name], D) if name in found else None for name in ("init_state", "init_cell")]
    return [found["source"], *gradients_to_torch_layout(found), *last]


def _is_short(source: Tensor, D: int, lengths: Tensor | None) -> bool:
    """Return whether a layer is of the kind that `_cuda_layers` computes."""
    return source.is_cuda and D == 1 and lengths is None and source.shape[0] > 0


def _compute_backward_shapes(*given: Any) -> tuple[Tensor, ...]:
    source, *others, _mask, _lengths, _mode = given[5:]  # as `compute_layer_backward` takes them
    return tuple(source.new_empty(0 if tensor is None else tensor.shape) for tensor in (source, *others))


def _arguments(
    how: Any,
    source: Tensor,
    weights: Sequence[Tensor | None],
    states: tuple[Tensor | None, Tensor | None],
    mask: Tensor | None,
    lengths: Tensor | None,
    *,
    gradients: bool = False,
) -> dict[str, Tensor | None]:
    """Return the keyword arguments that forward and gradient calls have in common."""
    h_0, c_0 = states
    return {
        "source": source,
        **from_torch_layout(weights, how, gradients=gradients),
        "init_state": None if h_0 is None else _side_by_side(h_0),
        "init_cell": None if c_0 is None else _side_by_side(c_0),
        "mask": mask,
        "lengths": lengths,
    }


def _side_by_side(state: Tensor) -> Tensor:
    """Return [D, N, H] as [N, DH]."""
    return state[0] if len(state) == 1 else torch.cat([state[0], state[1]], dim=1)


def _one_by_one(state: Tensor, D: int) -> Tensor:
    """Return [N, DH] as [D, N, H]."""
    return state.unsqueeze(0) if D == 1 else torch.stack(state.chunk(D, dim=1))


def _last_steps(source: Tensor, lengths: Tensor | None) -> tuple[Any, ...]:
    """Return the index of each batch row's last step in sequences [T, N, ...], or packed."""
    if lengths is None:
        return (-1,)
    if source.dim() == 2:
        return (on_device(torch.from_numpy(_packed.last_rows(to_array(lengths.cpu()))), source.device),)
    return on_device(lengths, source.device).long() - 1, torch.arange(len(lengths), device=source.device)


def _last_state(states: Tensor, D: int, ends: tuple[Any, ...]) -> Tensor:
    """Return a copy [D, N, H] of the states [T, N, DH], or packed, after each direction's last step."""
    last = states[ends]
    if D == 1:
        return last.unsqueeze(0).clone()
    first, H = states[: len(last)] if states.dim() == 2 else states[0], states.shape[-1] // D
    return torch.stack([last[:, :H], first[:, H:]])


def _without_none(compute: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function with empty tensors in place of None, which an operator cannot return."""

    @unseen_by_dynamo
    def operator(*given: Any) -> tuple[Tensor, ...]:
        found = compute(*given)
        return tuple(found[0].new_empty(0) if each is None else each for each in found)

    return operator


def _on_one_device(name: str, shapes: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that raises RuntimeError if only some tensors are on the meta device."""

    def checked(*given: Any) -> tuple[Tensor, ...]:
        devices = {str(each.device) for each in given if isinstance(each, Tensor) and each.is_floating_point()}
        if len(devices) > 1:  # `lengths`, which are integers, may be on another one
            raise RuntimeError(f"[{name}] expected tensors on one device, got some on {' and '.join(sorted(devices))}")
        return shapes(*given)

    return checked


def register(schema: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Make an operator. torch.library.custom_op would do the same, and add tens of microseconds to each call."""
    name, _, signature = schema.partition("(")
    torch.library.define(name, f"({signature}", tags=torch.Tag.pt2_compliant_tag)
    for key in KEYS:
        torch.library.impl(name, key)(compute)
    torch.library.register_fake(name, _on_one_device(name, shapes))
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator).default


_LAYER = (
    "Tensor source, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? peephole, "
    "Tensor? h_0, Tensor? c_0, Tensor? mask, Tensor? lengths, str mode"
)
layer = register(
    f"vkrnn::layer({_LAYER}, bool training) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _without_none(compute_layer),
    _compute_shapes,
)
layer_backward = register(
    f"vkrnn::layer_backward(Tensor? d_output, Tensor? d_h_n, Tensor? d_c_n, Tensor z_state, Tensor states, {_LAYER}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _without_none(compute_layer_backward),
    _compute_backward_shapes,
)
