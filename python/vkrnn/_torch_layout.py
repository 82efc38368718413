"""The operations of vkrnn for torch's RNN, LSTM and GRU, with descriptors and weights in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import gradients, operations
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.results import Gradients, Outputs

__all__ = ["BACKWARD", "FORWARD", "GATES", "descriptor", "from_torch_layout", "gradients_to_torch_layout"]

Array = npt.NDArray[Any]
Weights = tuple[Array, Array, Array | None, Array | None]
"""torch's weight_ih [DGH, I], weight_hh [DGH, H], bias_ih and bias_hh [DGH]; the rows of both directions."""

FORWARD: Mapping[str, Callable[..., Outputs[Any]]] = {
    "LSTM": operations.lstm,
    "GRU": operations.gru,
    "RNN_TANH": operations.single_gate_rnn,
    "RNN_RELU": operations.single_gate_rnn,
}
"""The function for each `mode` of a torch module."""

BACKWARD: Mapping[str, Callable[..., Gradients[Any]]] = {
    "LSTM": gradients.lstm_gradients,
    "GRU": gradients.gru_gradients,
    "RNN_TANH": gradients.single_gate_rnn_gradients,
    "RNN_RELU": gradients.single_gate_rnn_gradients,
}

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@functools.cache
def descriptor(mode: str, *, bidirectional: bool, training: bool = False, produce_cell: bool = False) -> Any:
    """Return the descriptor of a torch module's `mode`; `produce_cell` is the LSTM's."""
    if mode == "LSTM":
        return LSTMDescriptor(bidirectional=bidirectional, training=training, produce_cell=produce_cell)
    if mode == "GRU":
        return GRUDescriptor(bidirectional=bidirectional, training=training, reset_gate_first=True, reset_after=True)
    activation = Activation(mode.removeprefix("RNN_"))
    return SingleGateRNNDescriptor(bidirectional=bidirectional, training=training, activation=activation)


def from_torch_layout(mode: str, weights: Weights) -> dict[str, Array]:
    """Return torch's weights as keyword arguments. The two matrices are views of torch's, the biases are not.

    torch has two biases. They are added, except for a GRU's candidate, where the reset gate is applied between them.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = weights
    rows, H = weight_hh.shape
    G = GATES[mode]
    D = rows // (G * H)
    given = {"recurrent_weight": weight_hh if D == 1 else weight_hh.reshape(D, G * H, H), "input_weight": weight_ih}
    if bias_ih is None or bias_hh is None:
        return given
    given["bias"] = bias_ih + bias_hh
    if mode == "GRU":
        candidate = np.s_[:, 2]
        given["bias"].reshape(D, G, H)[candidate] = bias_ih.reshape(D, G, H)[candidate]
        given["secondary_bias"] = bias_hh.reshape(D, G, H)[candidate].flatten()
    return given


def gradients_to_torch_layout(mode: str, given: Mapping[str, Array]) -> list[Array]:
    """Return gradients with respect to the keyword arguments as those with respect to torch's weights.

    There is one for each weight, and the gradients of the two biases share no memory.
    """
    R = given["recurrent_weight"]
    H = R.shape[-1]
    weights = [given["input_weight"], R.reshape(-1, H)]
    if "bias" not in given:
        return weights
    inside = given["bias"].copy()
    if mode == "GRU":
        inside.reshape(-1, GATES[mode], H)[:, 2] = given["secondary_bias"].reshape(-1, H)
    return [*weights, given["bias"], inside]
