"""The torch operators `layer` and `layer_backward`, which exported programs of earlier versions call.

They are networks of one layer. Absent tensors are None or empty. Importing this module registers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vkrnn.torch._levels import library

__all__: list[str] = []

_LAYER = (
    "Tensor source, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? peephole, "
    "Tensor? h_0, Tensor? c_0, Tensor? mask, Tensor? lengths, str mode"
)


def _layer(*given: Any) -> tuple[Tensor, ...]:
    *tensors, mode, training = given
    output, h_n, c_n, kept = torch.ops.vkrnn.network(*_network_of_one(tensors), mode, 1, int(not training))
    z_state, cells = [*kept, *[output.new_empty(0)] * 2][:2]
    return output, h_n, c_n, z_state, cells


def _layer_backward(*given: Any) -> tuple[Tensor, ...]:
    d_output, d_h_n, d_c_n, z_state, states, *tensors, mode = given
    gru, lstm = mode.startswith("GRU"), mode.startswith("LSTM")
    kept = [z_state, states] if lstm else [z_state]
    above = d_output, d_h_n, d_c_n if lstm else None
    inputs = _network_of_one(tensors)
    d_source, d_weights, *d_states = torch.ops.vkrnn.network_backward(
        *above, states if gru else None, kept, *inputs, mode, 1, 0
    )
    gradients = iter(d_weights)
    each = [d_source.new_empty(0) if weight is None else next(gradients) for weight in tensors[1:6]]
    return d_source, *each, *d_states


def _network_of_one(tensors: Sequence[Any]) -> tuple[Any, ...]:
    source, *weights, h_0, c_0, mask, lengths = tensors
    return source, [each for each in weights if each is not None], h_0, c_0, [] if mask is None else [mask], [], lengths


library.define(f"layer({_LAYER}, bool training) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
library.define(
    f"layer_backward(Tensor? d_output, Tensor? d_h_n, Tensor? d_c_n, Tensor z_state, Tensor states, {_LAYER}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
library.impl("layer", _layer, "CompositeImplicitAutograd")
library.impl("layer_backward", _layer_backward, "CompositeImplicitAutograd")
