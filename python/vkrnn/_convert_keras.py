"""The function `from_keras` of `vkrnn.convert`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._layer import Layer
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

__all__ = ["from_keras"]

Array = npt.NDArray[Any]


def from_keras(layer: Any) -> Layer:
    """Return a Keras 3 ``LSTM``, ``GRU`` or ``SimpleRNN``, or a ``Bidirectional`` of one, with copies of its weights.

    Keras's input is [N, T, I]; the layer's source is [T, N, I]. With ``go_backwards`` results stand in the order in
    which they were computed, as Keras has them. Dropout, which Keras applies in training alone, is left out.

    Parameters
    ----------
    layer : keras.layers.LSTM or GRU or SimpleRNN or Bidirectional
        Built, so that it has weights.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If it has not been built.
    NotImplementedError
        If vkrnn has no equivalent; the message names it. Such is Keras's ``hard_sigmoid``, relu6(x + 3) / 6.
    """
    keras = importlib.import_module("keras")
    if isinstance(layer, keras.layers.Bidirectional):
        return _from_keras_bidirectional(keras, layer)
    return _from_keras_layer(keras, layer)


def _from_keras_layer(keras: Any, layer: Any) -> Layer:
    kinds = {keras.layers.LSTM: "LSTM", keras.layers.GRU: "GRU", keras.layers.SimpleRNN: "SimpleRNN"}
    kind = next((kinds[known] for known in kinds if isinstance(layer, known)), None)
    if kind is None:
        raise TypeError(
            "[from_keras] layer: expected a keras.layers.LSTM, GRU, SimpleRNN or Bidirectional, got "
            f"{type(layer).__name__}"
        )
    weights = layer.get_weights()
    if not weights:
        raise ValueError(f"[from_keras] layer '{layer.name}': expected one that was built, got one without weights")
    kernel, recurrent_kernel, *bias = weights
    arguments = {"recurrent_weight": _transposed(recurrent_kernel), "input_weight": _transposed(kernel)}
    activation = _from_keras_activation(keras, layer, "activation")
    if kind == "SimpleRNN":
        descriptor: Any = SingleGateRNNDescriptor(reverse=layer.go_backwards, activation=activation)
        arguments |= zip(("bias",), bias, strict=False)
        return Layer(operations.single_gate_rnn, arguments, descriptor)
    gate = _from_keras_activation(keras, layer, "recurrent_activation")
    if kind == "LSTM":
        descriptor = LSTMDescriptor(
            reverse=layer.go_backwards,
            input_gate_activation=gate,
            forget_gate_activation=gate,
            output_gate_activation=gate,
            cell_gate_activation=activation,
            activation=activation,
        )
        arguments |= zip(("bias",), bias, strict=False)
        return Layer(operations.lstm, arguments, descriptor)
    descriptor = GRUDescriptor(
        reverse=layer.go_backwards,
        reset_after=layer.reset_after,
        update_gate_activation=gate,
        reset_gate_activation=gate,
        output_gate_activation=activation,
    )
    if bias and layer.reset_after:
        (outside, inside), H = bias[0], layer.units
        arguments["bias"] = np.concatenate([outside[: 2 * H] + inside[: 2 * H], outside[2 * H :]])
        arguments["secondary_bias"] = inside[2 * H :].copy()
    elif bias:
        arguments["bias"] = bias[0]
    return Layer(operations.gru, arguments, descriptor)


def _from_keras_bidirectional(keras: Any, layer: Any) -> Layer:
    if layer.merge_mode != "concat":
        raise NotImplementedError(f"[from_keras] merge_mode: expected 'concat', got {layer.merge_mode!r}")
    forward, backward = (_from_keras_layer(keras, part) for part in (layer.forward_layer, layer.backward_layer))
    if forward.descriptor.reverse or not backward.descriptor.reverse:
        raise NotImplementedError(
            "[from_keras] go_backwards: expected a forward layer without, a backward layer with it"
        )
    descriptor = replace(forward.descriptor, bidirectional=True)
    if descriptor != replace(backward.descriptor, reverse=False, bidirectional=True):
        raise NotImplementedError(
            f"[from_keras] backward_layer: expected the forward layer's options, {forward.descriptor!r}, got "
            f"{backward.descriptor!r}"
        )
    arguments = {}
    for name, array in forward.arguments.items():
        both = [array, backward.arguments[name]]
        arguments[name] = np.stack(both) if name == "recurrent_weight" else np.concatenate(both)
    return Layer(forward.function, arguments, descriptor)


def _from_keras_activation(keras: Any, layer: Any, name: str) -> Activation:
    function = getattr(layer, name)
    known = keras.activations
    table: dict[Any, Activation] = {
        known.linear: Activation.NONE,
        known.relu: Activation.RELU,
        known.tanh: Activation.TANH,
        known.sigmoid: Activation.SIGMOID,
    }
    if function not in table:
        listed = ", ".join(equivalent.__name__ for equivalent in table)
        got = getattr(function, "__name__", repr(function))
        raise NotImplementedError(f"[from_keras] {name}: expected one of {listed}, got {got}")
    return table[function]


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.T)
