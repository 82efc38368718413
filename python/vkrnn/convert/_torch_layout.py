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
    "options_beyond_torch",
    "torch_mode",
    "with_heads",
]

Array = npt.NDArray[Any]
Weights = tuple[Array, Array, Array | None, Array | None, Array | None]
"""weight_ih [DGH, I], weight_hh [DGH, H], bias_ih and bias_hh [DGH] of torch, and vkrnn's peephole [DGH].

Each has the rows of both directions. With heads, the matrices are their blocks."""

FORWARD: Mapping[str, Callable[..., Outputs[Any]]] = {
    "LSTM": operations.lstm,
    "GRU": operations.gru,
    "RNN_TANH": operations.single_gate_rnn,
    "RNN_RELU": operations.single_gate_rnn,
}
"""The function for each `mode` of a torch module."""

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


@functools.cache
def descriptor(mode: str, *, bidirectional: bool) -> Any:
    """Return the descriptor of a mode."""
    name, *options = mode.split()
    found: Any
    if name == "LSTM":
        found = LSTMDescriptor(bidirectional=bidirectional)
    elif name == "GRU":
        found = GRUDescriptor(bidirectional=bidirectional, reset_gate_first=True, reset_after=True)
    else:
        activation = Activation(name.removeprefix("RNN_"))
        found = SingleGateRNNDescriptor(bidirectional=bidirectional, activation=activation)
    return replace(found, **dict(_option(found, option) for option in options))


def _option(given: Any, option: str) -> tuple[str, Any]:
    """Return the name and the value of an option as `options_beyond_torch` writes it."""
    name, _, text = option.partition("=")
    default = getattr(given, name)
    kind = float if default is None else type(default)
    value: Any = text == "True" if kind is bool else kind(text) if kind in (int, float) else text
    return name, value


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


def with_heads(mode: str, heads: int, input_heads: int) -> str:
    """Return a mode with other numbers of heads."""
    name, *options = mode.split()
    kept = [option for option in options if option.partition("=")[0] not in ("heads", "input_heads")]
    return " ".join([name, *kept, f"heads={heads}", f"input_heads={input_heads}"])


def from_torch_layout(weights: Weights, how: Any) -> dict[str, Any]:
    """Return torch's weights as keyword arguments of a call with the descriptor `how`.

    The matrices are views of torch's. torch has two biases. They are added, except for a GRU's candidate if the reset
    gate is applied between them.
    """
    weight_ih, weight_hh, bias_ih, bias_hh, peephole = weights
    D, columns = 1 + how.bidirectional, weight_hh.shape[1]
    H = columns * how.heads
    given = {"recurrent_weight": weight_hh if D == 1 else weight_hh.reshape(D, -1, columns), "input_weight": weight_ih}
    if peephole is not None:
        given["peephole"] = peephole
    if bias_ih is None or bias_hh is None:
        return given
    given["bias"] = bias_ih + bias_hh
    if getattr(how, "reset_after", False):
        given["bias"].reshape(D, 3, H)[:, 2] = bias_ih.reshape(D, 3, H)[:, 2]
        given["secondary_bias"] = bias_hh.reshape(D, 3, H)[:, 2].flatten()
    return given
