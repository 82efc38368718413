"""The rules of the operators `network` and `network_backward` for torch.vmap. Importing this module registers them.

Examples with weights of their own are the heads of one layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vkrnn.convert._torch_layout import GATES, descriptor, torch_mode, with_heads
from vkrnn.torch._autograd import first_with_gradients, requires_gradients
from vkrnn.torch._network import Inputs, keeps_outputs, network, network_backward

__all__ = ["one_by_one"]


@dataclass(frozen=True)
class _Examples:
    """Tensors of B examples with the axis of the examples in front, and those of a layer whose heads they are."""

    B: int
    D: int
    H: int

    def rows(self, weight: Tensor) -> Tensor:
        """[B, DGH, ...] -> [DGBH, ...]."""
        return weight.unflatten(1, (-1, self.H)).movedim(0, 1).flatten(0, 2)

    def of_rows(self, weight: Tensor) -> Tensor:
        """[DGBH, ...] -> [B, DGH, ...]."""
        return weight.unflatten(0, (-1, self.B, self.H)).movedim(1, 0).flatten(1, 2)

    def columns(self, sequence: Tensor) -> Tensor:
        """[B, ..., DGH] -> [..., DGBH]."""
        return sequence.unflatten(-1, (-1, self.H)).movedim(0, -2).flatten(-3)

    def of_columns(self, sequence: Tensor) -> Tensor:
        """[..., DGBH] -> [B, ..., DGH]."""
        return sequence.unflatten(-1, (-1, self.B, self.H)).movedim(-2, 0).flatten(-2)

    def features(self, source: Tensor) -> Tensor:
        """[B, T, N, I] -> [T, N, BI]."""
        return source.movedim(0, -2).flatten(-2)

    def of_features(self, source: Tensor) -> Tensor:
        """[T, N, BI] -> [B, T, N, I]."""
        return source.unflatten(-1, (self.B, -1)).movedim(-2, 0)


def _are_heads(inputs: Inputs, dims: Sequence[Any]) -> bool:
    """Return whether examples can be the heads of a layer. `dims` are the inputs' axes of the examples."""
    is_packed = inputs.source.dim() - (dims[0] is not None) == 2
    return not is_packed and inputs.reset is None and dims[6] is None


def _in_front(tensor: Tensor | None, dim: int | None, B: int) -> Tensor | None:
    """Return a tensor with the axis of the examples in front."""
    if tensor is None:
        return None
    return tensor.expand(B, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _form(inputs: Inputs, dims: Sequence[Any], B: int) -> tuple[_Examples, Any]:
    """Return how the examples' tensors become those of a layer, and the layers' descriptor."""
    how = descriptor(inputs.mode, bidirectional=False)
    of_rows, of_columns = (axis for axis in range(inputs.weights[1].dim()) if axis != dims[1][1])
    H = inputs.weights[1].shape[of_columns] * how.heads
    D = inputs.weights[1].shape[of_rows] // (GATES[torch_mode(inputs.mode)] * H)
    return _Examples(B, D, H), how


def _layer_as_heads(form: _Examples, how: Any, inputs: Inputs, dims: Sequence[Any], *, shares_source: bool) -> Inputs:
    """Return the call of one layer with the examples as its heads.

    `shares_source`: all heads read the same source, if that is possible.
    """
    B, (x, weights, h_0, c_0, masks, _, lengths, mode, *_) = form.B, inputs
    shares = shares_source and dims[0] is None and how.input_heads == 1
    source = x if shares else form.features(_require(_in_front(x, dims[0], B)))
    in_front = [_require(_in_front(weight, dim, B)) for weight, dim in zip(weights, dims[1], strict=True)]
    h_0, c_0 = (
        None if state is None else form.columns(_require(_in_front(state, dim, B)))
        for state, dim in ((h_0, dims[2]), (c_0, dims[3]))
    )
    return Inputs(
        source,
        list(map(form.rows, in_front)),
        h_0,
        c_0,
        [form.columns(_require(_in_front(mask, dim, B))) for mask, dim in zip(masks, dims[4], strict=True)],
        [],
        lengths,
        with_heads(mode, B * how.heads, 1 if shares else B * how.input_heads),
        1,
        inputs.trained,
    )


def _require(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # noqa: S101
    return tensor


def _as_heads(inputs: Inputs, dims: Sequence[Any], B: int) -> Any:
    """Call `network` once for the examples of a layer, each with weights of its own."""
    form, how = _form(inputs, dims, B)
    output, h_n, c_n, kept = network(*_layer_as_heads(form, how, inputs, dims, shares_source=True))
    ends = [state.expand(B, 0) if state.dim() == 1 else form.of_columns(state) for state in (h_n, c_n)]
    return form.of_columns(output), *ends, list(map(form.of_columns, kept))


def _network_vmap(info: Any, in_dims: Sequence[Any], *given: Any) -> tuple[Any, Any]:
    """Compute `network` for many inputs as one batch, or as the heads of a layer if there are many weights.

    Packed inputs and calls with resets or zoneout are computed one after the other.
    """
    inputs = Inputs(*given)
    # Under torch.vmap, a module cannot see whether its parameters require gradients.
    inputs = inputs._replace(trained=min(inputs.trained, first_with_gradients(inputs)))
    in_dims = *in_dims, *[None] * (len(inputs) - len(in_dims))  # if torch has left out the last ones
    if inputs.source.dim() - (in_dims[0] is not None) == 2 or inputs.reset is not None or inputs.zoneout:
        found = one_by_one(network, info, in_dims, inputs)
        return found, pytree.tree_map(lambda _: 0, found)

    layers, trained, each = inputs.layers, inputs.trained, inputs.each
    many = [any(dim is not None for dim in in_dims[1][each * layer : each * (layer + 1)]) for layer in range(layers)]
    B, are_heads = info.batch_size, _are_heads(inputs, in_dims)
    x, h_0, c_0 = (_in_front(inputs[at], in_dims[at], B) for at in (0, 2, 3))
    lengths = inputs.lengths if are_heads else _in_front(inputs.lengths, in_dims[6], B)
    masks = [_in_front(mask, dim, B) for mask, dim in zip(inputs.masks, in_dims[4], strict=True)]
    between = [_in_front(mask, dim, B) for mask, dim in zip(inputs.between, in_dims[5], strict=True)]
    outputs: dict[int, Tensor] = {}
    z_states, cells, h_n, c_n = [], [], [], []
    groups = itertools.groupby(range(layers), lambda layer: (many[layer], layer if many[layer] and are_heads else 0))
    for (is_many, _), group in groups:
        first, *more = group
        count = 1 + len(more)
        end = first + count
        part = Inputs(
            x,
            inputs.weights[first * each : end * each],
            _part(h_0, first, count, layers),
            _part(c_0, first, count, layers),
            masks[first:end],
            between[first : end - 1],
            lengths,
            inputs.mode,
            count,
            min(max(trained - first, 0), count),
        )
        if is_many:
            dims = pytree.tree_map(lambda value: 0 if isinstance(value, Tensor) else None, tuple(part))
            dims = dims[0], list(in_dims[1][first * each : end * each]), *dims[2:]
            if are_heads and first == 0:  # the examples may share the source
                part, dims = part._replace(source=inputs.source), (in_dims[0], *dims[1:])
            part_of = _as_heads(part, dims, B) if are_heads else one_by_one(network, info, dims, part)
            x, *ends, kept = part_of
        else:
            x, *ends, kept = _as_one_batch(part, B)
        h_n.append(ends[0])
        c_n.append(ends[1])
        inner = keeps_outputs(count, part.trained)
        outputs |= {first + layer: kept[at] for at, layer in enumerate(inner)}
        outputs[end - 1] = x
        z_states += kept[len(inner) : len(inner) + count - part.trained]
        cells += kept[len(inner) + count - part.trained :]
        if end < layers and between:
            x = x * between[end - 1]
    kept = [*(outputs[layer] for layer in keeps_outputs(layers, trained)), *z_states, *cells]
    found = outputs[layers - 1], torch.cat(h_n, 1), torch.cat(c_n, 1), kept
    return found, pytree.tree_map(lambda _: 0, found)


def _part(state: Tensor | None, first: int, count: int, layers: int) -> Tensor | None:
    """Return some layers' part of states [B, LD, N, H]."""
    return None if state is None else state.unflatten(1, (layers, -1))[:, first : first + count].flatten(1, 2)


def _as_one_batch(inputs: Inputs, B: int) -> Any:
    """Call `network` once for B examples, whose axis is in front of all tensors but the weights."""

    def folded(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.movedim(0, 1).flatten(1, 2)

    x, weights, h_0, c_0, masks, between, lengths, *numbers = inputs
    tensors = folded(x), weights, folded(h_0), folded(c_0), list(map(folded, masks)), list(map(folded, between))
    found = network(*tensors, None if lengths is None else lengths.flatten(), *numbers)
    return pytree.tree_map(  # an absent c_n has one axis
        lambda tensor: tensor.expand(B, 0) if tensor.dim() == 1 else tensor.unflatten(1, (B, -1)).movedim(1, 0), found
    )


def _network_backward_vmap(info: Any, in_dims: Sequence[Any], *given: Any) -> tuple[Any, Any]:
    """Compute `network_backward` many times: each example has its own gradients of the weights."""
    inputs, dims = Inputs(*given[5:]), in_dims[5:]
    # Layer by layer, the outputs that were kept would be constants. Second derivatives need them as functions.
    differentiated = inputs.layers - inputs.trained > 1 and torch.is_grad_enabled() and requires_gradients(given)
    if _are_heads(inputs, dims) and not differentiated:
        found = _backward_as_heads(info.batch_size, in_dims, *given)
    else:
        found = one_by_one(network_backward, info, in_dims, given)
    return found, pytree.tree_map(lambda _: 0, found)


def _backward_as_heads(B: int, in_dims: Sequence[Any], *given: Any) -> Any:
    """Call `network_backward` once for each layer, with the examples as its heads."""
    inputs, dims = Inputs(*given[5:]), in_dims[5:]
    form, how = _form(inputs, dims, B)
    layers, trained, each = inputs.layers, inputs.trained, inputs.each
    d_output, *ends, output = (_in_front(value, dim, B) for value, dim in zip(given[:4], in_dims[:4], strict=True))
    kept = [_require(_in_front(value, dim, B)) for value, dim in zip(given[4], in_dims[4], strict=True)]
    masks = [_require(_in_front(value, dim, B)) for value, dim in zip(inputs.between, dims[5], strict=True)]
    inner = keeps_outputs(layers, trained)
    outputs = dict(zip(inner, kept, strict=False)) | {layers - 1: output}
    z_states, cells = kept[len(inner) : len(inner) + layers - trained], kept[len(inner) + layers - trained :]
    h_0, c_0 = (_in_front(inputs[at], dims[at], B) for at in (2, 3))
    empty = inputs.source.new_empty(B, 0)
    d_weights: list[Tensor] = [empty] * len(inputs.weights)
    d_states: list[list[Tensor]] = [[], []]
    for layer in reversed(range(trained, layers)):
        source, dim = inputs.source, dims[0]
        if layer > 0:
            source, dim = _require(outputs[layer - 1]), 0
            if masks:
                source = source * masks[layer - 1]
        own = slice(each * layer, each * (layer + 1))
        part = Inputs(
            source,
            inputs.weights[own],
            _part(h_0, layer, 1, layers),
            _part(c_0, layer, 1, layers),
            inputs.masks[layer : layer + 1],
            [],
            inputs.lengths,
            inputs.mode,
            1,
            0,
        )
        of_part = dim, list(dims[1][own]), 0, 0, list(dims[4][layer : layer + 1])
        call = _layer_as_heads(form, how, part, of_part, shares_source=False)
        above = [None if state is None else form.columns(_require(_part(state, layer, 1, layers))) for state in ends]
        saved = [form.columns(states[layer - trained]) for states in (z_states, cells) if states]
        of_layer = None if output is None else outputs[layer]  # GRUs need it
        up, last = (None if value is None else form.columns(value) for value in (d_output, of_layer))
        d_source, d_own, *d_initial = network_backward(up, *above, last, saved, *call)
        d_weights[own] = map(form.of_rows, d_own)
        for states, state in zip(d_states, d_initial, strict=True):
            states.insert(0, state.expand(B, 0) if state.dim() == 1 else form.of_columns(state))
        d_output = form.of_features(d_source)
        if layer > 0 and masks:
            d_output = d_output * masks[layer - 1]
    d_h_0, d_c_0 = (torch.cat([*_zeros(states, trained), *states], 1) for states in d_states)
    return empty if trained else d_output, d_weights, d_h_0, d_c_0


def _zeros(states: list[Tensor], count: int) -> list[Tensor]:
    """Return the gradients of the initial states of layers without gradients."""
    return [torch.zeros_like(states[0])] * count if states else []


def one_by_one(operator: Callable[..., Any], info: Any, in_dims: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """Call an operator for each example, and stack the results."""
    flat, spec = pytree.tree_flatten(tuple(inputs))
    dims, _ = pytree.tree_flatten(tuple(in_dims))
    split = [
        [value] * info.batch_size if dim is None else value.unbind(dim) for value, dim in zip(flat, dims, strict=True)
    ]
    results = [operator(*pytree.tree_unflatten(each, spec)) for each in zip(*split, strict=True)]
    _, of_results = pytree.tree_flatten(results[0])
    leaves = [pytree.tree_flatten(each)[0] for each in results]
    return pytree.tree_unflatten([torch.stack(each) for each in zip(*leaves, strict=True)], of_results)


torch.library.register_vmap("vkrnn::network", _network_vmap)
torch.library.register_vmap("vkrnn::network_backward", _network_backward_vmap)
