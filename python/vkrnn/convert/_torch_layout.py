"""The operations of vkrnn for torch's RNN, LSTM and GRU, with descriptors and weights in NumPy.

A `mode` is that of torch's module, such as "GRU". Options that torch's module lacks follow: "GRU reset_after=False".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy.typing as npt

from vkrnn import operations
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.results import Outputs

__all__ = [
    "FORWARD",
    "GATES",
    "descriptor",
    "from_torch_layout",
    "gradients_to_torch_layout",
    "options_beyond_torch",
    "torch_mode",
]

Array = npt.NDArray[Any]
Weights = tuple[Array, Array, Array | None, Array | None, Array | None]
"""weight_ih [DGH, I], weight_hh [DGH, H], bias_ih and bias_hh [DGH] of torch, and vkrnn's peephole [DGH].

Each has the rows of both directions."""

FORWARD: Mapping[str, Callable[..., Outputs[Any]]] = {
    "LSTM": operations.lstm,
    "GRU": operations.gru,
    "RNN_TANH": operations.single_gate_rnn,
    "RNN_RELU": operations.single_gate_rnn,
}
"""The function for each `mode` of a torch module."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@functools.cache
def descriptor(mode: str, *, bidirectional: bool, training: bool = False, produce_cell: bool = False) -> Any:
    """Return the descriptor of a mode; `produce_cell` is the LSTM's."""
    name, *options = mode.split()
    found: Any
    if name == "LSTM":
        found = LSTMDescriptor(bidirectional=bidirectional, training=training, produce_cell=produce_cell)
    elif name == "GRU":
        found = GRUDescriptor(bidirectional=bidirectional, training=training, reset_gate_first=True, reset_after=True)
    else:
        activation = Activation(name.removeprefix("RNN_"))
        found = SingleGateRNNDescriptor(bidirectional=bidirectional, training=training, activation=activation)
    return replace(found, **dict(_option(found, option) for option in options))


def _option(given: Any, option: str) -> tuple[str, Any]:
    """Return the name and the value of an option as `options_beyond_torch` writes it."""
    name, _, text = option.partition("=")
    default = getattr(given, name)
    return name, text == "True" if isinstance(default, bool) else float(text) if isinstance(default, float) else text


def options_beyond_torch(mode: str, chosen: Any) -> dict[str, tuple[Any, Any]]:
    """Return the options in which a descriptor differs from that of torch's module: both values by name."""
    torchs = descriptor(torch_mode(mode), bidirectional=chosen.bidirectional)
    found = {}
    for field in fields(chosen):
        both = [getattr(each, field.name) for each in (torchs, chosen)]
        if both[0] != both[1]:
            only, own = (value.name.lower() if isinstance(value, Activation) else value for value in both)
            found[field.name] = only, own
    return found


def torch_mode(mode: str) -> str:
    """Return a mode without options."""
    return mode.partition(" ")[0]


def from_torch_layout(weights: Any, how: Any, *, gradients: bool = False) -> dict[str, Any]:
    """Return torch's `Weights`, tensors or NumPy arrays, as keyword arguments of a call with the descriptor `how`.

    The two matrices are views of torch's. torch has two biases. They are added, except for a GRU's candidate if the
    reset gate is applied between them. Calls of `gradients`, with tensors, read no numbers of the bias. So it
    is just the first one, in the type that the sum has.
    """
    weight_ih, weight_hh, bias_ih, bias_hh, peephole = weights
    D, H = 1 + how.bidirectional, weight_hh.shape[1]
    given = {"recurrent_weight": weight_hh if D == 1 else weight_hh.reshape(D, -1, H), "input_weight": weight_ih}
    if peephole is not None:
        given["peephole"] = peephole
    if bias_ih is None or bias_hh is None:
        return given
    given["bias"] = bias_ih.to(weight_hh.dtype) if gradients else bias_ih + bias_hh
    if getattr(how, "reset_after", False):
        if not gradients:
            for rows in _candidates(D, H):
                given["bias"][rows] = bias_ih[rows]
        (first, *_) = _candidates(D, H)
        given["secondary_bias"] = bias_hh[first] if D == 1 else bias_hh.reshape(D, 3, H)[:, 2].flatten()
    return given


def _candidates(D: int, H: int) -> list[slice]:
    """Return where the candidate of each direction is in a bias of torch's GRU.

    A slice of a CUDA tensor takes a fraction of the host's time for the same in a reshaped one.
    """
    return [slice((3 * d + 2) * H, (3 * d + 3) * H) for d in range(D)]


def gradients_to_torch_layout(given: Mapping[str, Any]) -> list[Any]:
    """Return gradients with respect to the keyword arguments, tensors, as those with respect to `Weights`.

    There is one for each weight, and the gradients of the two biases share no memory.
    """
    R = given["recurrent_weight"]
    H = R.shape[-1]
    outside, inside = given.get("bias"), None
    if outside is not None:
        inside = outside.clone()
        if "secondary_bias" in given:
            D = outside.shape[0] // (3 * H)
            for d, rows in enumerate(_candidates(D, H)):
                inside[rows] = given["secondary_bias"][d * H : (d + 1) * H]
    return [given["input_weight"], R.reshape(-1, H), outside, inside, given.get("peephole")]
