"""The rules of the operators `network` and `network_backward` for torch.vmap. Importing this module registers them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from vkrnn.torch._autograd import first_with_gradients
from vkrnn.torch._network import Inputs, keeps_outputs, network, network_backward

__all__ = ["one_by_one"]


def _network_vmap(info: Any, in_dims: Sequence[Any], *given: Any) -> tuple[Any, Any]:
    """Compute `network` for many inputs as one batch.

    Packed inputs, calls with resets, and layers with many weights are computed one after the other.
    """
    inputs = Inputs(*given)
    # Under torch.vmap, a module cannot see whether its parameters require gradients.
    inputs = inputs._replace(trained=min(inputs.trained, first_with_gradients(inputs)))
    in_dims = *in_dims, *[None] * (len(inputs) - len(in_dims))  # of resets, if torch has left them out
    if inputs.source.dim() - (in_dims[0] is not None) == 2 or inputs.reset is not None:
        found = one_by_one(network, info, in_dims, inputs)
        return found, pytree.tree_map(lambda _: 0, found)

    def in_front(tensor: Tensor | None, dim: int | None) -> Tensor | None:
        """Return a tensor with the axis of the examples in front."""
        if tensor is None:
            return None
        return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    layers, trained, each = inputs.layers, inputs.trained, inputs.each
    many = [any(dim is not None for dim in in_dims[1][each * layer : each * (layer + 1)]) for layer in range(layers)]
    x, h_0, c_0, lengths = (in_front(inputs[at], in_dims[at]) for at in (0, 2, 3, 6))
    masks = list(map(in_front, inputs.masks, in_dims[4]))
    between = list(map(in_front, inputs.between, in_dims[5]))
    outputs: dict[int, Tensor] = {}
    z_states, cells, h_n, c_n = [], [], [], []
    for is_many, group in itertools.groupby(range(layers), many.__getitem__):
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
            x, *ends, kept = one_by_one(network, info, dims, part)
        else:
            x, *ends, kept = _as_one_batch(part, info.batch_size)
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


def _network_backward_vmap(info: Any, in_dims: Sequence[Any], *inputs: Any) -> tuple[Any, Any]:
    """Compute `network_backward` many times: each has its own gradients of the weights."""
    found = one_by_one(network_backward, info, in_dims, inputs)
    return found, pytree.tree_map(lambda _: 0, found)


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
