"""torch's layers as calls of vkrnn: the cell, the descriptor, and the weights as arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

__all__ = ["cell_of", "weights_of"]


def cell_of(kind: str, *, bidirectional: bool) -> tuple[str, Any]:
    """Return the cell and the descriptor of "RNN", "LSTM" or "GRU"."""
    return {
        "RNN": ("single_gate_rnn", SingleGateRNNDescriptor(bidirectional=bidirectional, activation="tanh")),
        "LSTM": ("lstm", LSTMDescriptor(bidirectional=bidirectional)),
        "GRU": ("gru", GRUDescriptor(bidirectional=bidirectional, reset_gate_first=True, reset_after=True)),
    }[kind]


def weights_of(layer: Any, *, grad: bool = False) -> dict[str, NDArray[Any]]:
    """Return the weights of a layer's one level as arguments of a call, or their gradients.

    torch has two biases. The gradient of either is that of their sum. A GRU's candidate has two biases here, too.
    """

    def parts(name: str) -> list[NDArray[Any]]:
        found = [getattr(layer, f"{name}_l0{suffix}") for suffix in ("", "_reverse")[: 1 + layer.bidirectional]]
        return [(part.grad if grad else part.detach()).numpy() for part in found]

    R, outside, inside = np.stack(parts("weight_hh")), parts("bias_ih"), parts("bias_hh")
    together = outside if grad else [one + other for one, other in zip(outside, inside, strict=True)]
    weights = {
        "recurrent_weight": R if layer.bidirectional else R[0],
        "input_weight": np.concatenate(parts("weight_ih")),
    }
    if layer.mode == "GRU":
        kept = 2 * layer.hidden_size
        together = [np.concatenate([b[:kept], own[kept:]]) for b, own in zip(together, outside, strict=True)]
        weights["secondary_bias"] = np.concatenate([b[kept:] for b in inside])
    return weights | {"bias": np.concatenate(together)}
