"""PyTorch's autograd in float64 as an oracle: outputs, last states and all gradients that torch has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from comparison import assert_close
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

Array = NDArray[Any]
Arrays = dict[str, Array]

SIZES = [(5, 3, 7, 4), (1, 1, 1, 1), (16, 2, 3, 17), (4, 13, 9, 8)]
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


def draw(T: int, N: int, I: int, H: int, G: int, D: int) -> tuple[Arrays, Arrays]:
    """Return a torch layer's weights by torch's names (without the layer's number), and its inputs."""
    rng = np.random.default_rng([T, N, I, H, G, D])

    def some(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    weights = {}
    for suffix in ["", "_reverse"][:D]:
        weights[f"weight_ih_l0{suffix}"] = some(G * H, I) / np.float32(np.sqrt(I))
        weights[f"weight_hh_l0{suffix}"] = some(G * H, H) / np.float32(np.sqrt(H))
        weights[f"bias_ih_l0{suffix}"], weights[f"bias_hh_l0{suffix}"] = some(G * H), some(G * H)
    fed = {"source": some(T, N, I), "h0": some(D, N, H), "c0": some(D, N, H)}
    above = {"d_output": some(T, N, D * H), "d_h": some(D, N, H), "d_c": some(D, N, H)}
    return weights, fed | above


def side_by_side(state: Array) -> Array:
    """Return torch's [D, N, H] as [N, DH]."""
    return np.concatenate(list(state), axis=-1)


class Oracle:
    """A torch layer with these weights, run forward and backward on the given arrays."""

    def __init__(self, torch: Any, kind: str, weights: Arrays, fed: Arrays) -> None:
        """Run the layer forward and backward."""
        D, _, H = fed["h0"].shape
        features = fed["source"].shape[-1]
        layer_class = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(kind, torch.nn.RNN)
        options = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
        layer = layer_class(features, H, bidirectional=D == 2, **options).double()
        tensors = {name: torch.tensor(array, dtype=torch.float64) for name, array in fed.items()}
        for name in ("source", "h0", "c0"):
            tensors[name].requires_grad_()
        with torch.no_grad():
            for name, array in weights.items():
                getattr(layer, name).copy_(torch.tensor(array))
        h0, c0 = tensors["h0"], tensors["c0"]
        output, last = layer(tensors["source"], (h0, c0) if kind == "lstm" else h0)
        h, c = last if kind == "lstm" else (last, None)
        loss = (output * tensors["d_output"]).sum() + (h * tensors["d_h"]).sum()
        if c is not None:
            loss = loss + (c * tensors["d_c"]).sum()
        loss.backward()
        self.output = output.detach().numpy()
        self.h, self.c = (side_by_side(state.detach().numpy()) if state is not None else None for state in (h, c))
        self.source, self.h0 = (tensors[name].grad.numpy() for name in ("source", "h0"))
        self.c0 = tensors["c0"].grad.numpy() if kind == "lstm" else None
        self.weights = {name: parameter.grad.numpy() for name, parameter in layer.named_parameters()}


def joined(weights: Arrays, name: str) -> Array:
    """Return a weight of both directions, concatenated."""
    return np.concatenate([weights[f"{name}{suffix}"] for suffix in ("", "_reverse") if f"{name}{suffix}" in weights])


def recurrent(weights: Arrays) -> Array:
    """Return the recurrent weight as [GH, H] or [2, GH, H]."""
    both = [weights[f"weight_hh_l0{suffix}"] for suffix in ("", "_reverse") if f"weight_hh_l0{suffix}" in weights]
    return np.stack(both) if len(both) == 2 else both[0]


every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
both_ways = pytest.mark.parametrize("D", [1, 2], ids=["one way", "bidirectional"])


@every_size
@both_ways
def test_lstm(torch: Any, sizes: tuple[int, int, int, int], D: int) -> None:
    """The defaults are torch's LSTM, with the sum of torch's two biases."""
    weights, fed = draw(*sizes, GATES["lstm"], D)
    oracle = Oracle(torch, "lstm", weights, fed)
    H = sizes[3]
    arguments = {
        "source": fed["source"],
        "recurrent_weight": recurrent(weights),
        "input_weight": joined(weights, "weight_ih_l0"),
        "bias": joined(weights, "bias_ih_l0") + joined(weights, "bias_hh_l0"),
        "init_state": side_by_side(fed["h0"]),
        "init_cell": side_by_side(fed["c0"]),
    }
    descriptor = LSTMDescriptor(bidirectional=D == 2, training=True)
    forward = vkrnn.lstm(**arguments, descriptor=descriptor)
    cells = forward.cell_output
    last_cell = np.concatenate([cells[-1, :, :H], cells[0, :, H:]], axis=-1)
    assert_close({"output": forward.output, "c": last_cell}, {"output": oracle.output, "c": oracle.c})
    gradients = vkrnn.lstm_gradients(
        **arguments,
        source_gradient=fed["d_output"],
        z_state=forward.z_state,
        cell_output_fwd=forward.cell_output,
        state_gradient=side_by_side(fed["d_h"]),
        cell_gradient=side_by_side(fed["d_c"]),
        descriptor=descriptor,
    )
    wanted = {
        "source": oracle.source,
        "recurrent_weight": recurrent(oracle.weights),
        "input_weight": joined(oracle.weights, "weight_ih_l0"),
        "bias": joined(oracle.weights, "bias_ih_l0"),
        "init_state": side_by_side(oracle.h0),
        "init_cell": side_by_side(oracle.c0),
    }
    assert_close(gradients._asdict(), wanted)


@every_size
@both_ways
def test_gru(torch: Any, sizes: tuple[int, int, int, int], D: int) -> None:
    """The GRU of torch is reset_gate_first and reset_after; only its candidate needs both biases."""
    weights, fed = draw(*sizes, GATES["gru"], D)
    oracle = Oracle(torch, "gru", weights, fed)
    H = sizes[3]
    outside, inside = (joined(weights, f"bias_{which}_l0").reshape(D, 3, H) for which in ("ih", "hh"))
    bias = outside.copy()
    bias[:, :2] += inside[:, :2]
    arguments = {
        "source": fed["source"],
        "recurrent_weight": recurrent(weights),
        "input_weight": joined(weights, "weight_ih_l0"),
        "bias": bias.ravel(),
        "init_state": side_by_side(fed["h0"]),
        "secondary_bias": inside[:, 2].ravel(),
    }
    descriptor = GRUDescriptor(bidirectional=D == 2, training=True, reset_gate_first=True, reset_after=True)
    forward = vkrnn.gru(**arguments, descriptor=descriptor)
    assert_close({"output": forward.output}, {"output": oracle.output})
    gradients = vkrnn.gru_gradients(
        **arguments,
        source_gradient=fed["d_output"],
        z_state=forward.z_state,
        output_fwd=forward.output,
        state_gradient=side_by_side(fed["d_h"]),
        descriptor=descriptor,
    )
    wanted = {
        "source": oracle.source,
        "recurrent_weight": recurrent(oracle.weights),
        "input_weight": joined(oracle.weights, "weight_ih_l0"),
        "bias": joined(oracle.weights, "bias_ih_l0"),
        "init_state": side_by_side(oracle.h0),
        "secondary_bias": joined(oracle.weights, "bias_hh_l0").reshape(D, 3, H)[:, 2].ravel(),
    }
    assert_close(gradients._asdict(), wanted)


@every_size
@both_ways
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_single_gate_rnn(torch: Any, sizes: tuple[int, int, int, int], D: int, activation: str) -> None:
    """It is torch's RNN, with the sum of torch's two biases."""
    weights, fed = draw(*sizes, GATES[activation], D)
    oracle = Oracle(torch, activation, weights, fed)
    arguments = {
        "source": fed["source"],
        "recurrent_weight": recurrent(weights),
        "input_weight": joined(weights, "weight_ih_l0"),
        "bias": joined(weights, "bias_ih_l0") + joined(weights, "bias_hh_l0"),
        "init_state": side_by_side(fed["h0"]),
    }
    descriptor = SingleGateRNNDescriptor(bidirectional=D == 2, training=True, activation=activation)
    forward = vkrnn.single_gate_rnn(**arguments, descriptor=descriptor)
    assert_close({"output": forward.output}, {"output": oracle.output})
    gradients = vkrnn.single_gate_rnn_gradients(
        **arguments,
        source_gradient=fed["d_output"],
        z_state=forward.z_state,
        state_gradient=side_by_side(fed["d_h"]),
        descriptor=descriptor,
    )
    wanted = {
        "source": oracle.source,
        "recurrent_weight": recurrent(oracle.weights),
        "input_weight": joined(oracle.weights, "weight_ih_l0"),
        "bias": joined(oracle.weights, "bias_ih_l0"),
        "init_state": side_by_side(oracle.h0),
    }
    assert_close(gradients._asdict(), wanted)
