"""The function `from_keras` of `vkrnn.convert`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._base.packages import import_package
from vkrnn._ops.layer import Layer
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

__all__ = ["from_keras", "keras_descriptor"]

Array = npt.NDArray[Any]

_ACTIVATIONS = {
    "LSTM": ("activation", "recurrent_activation"),
    "GRU": ("activation", "recurrent_activation"),
    "SimpleRNN": ("activation",),
}
_KERAS_2_HARD_SIGMOID = "keras.src.legacy.backend.hard_sigmoid"  # tf.keras.backend.hard_sigmoid
_KINDS = tuple(_ACTIVATIONS)
# Both layers of a Bidirectional must agree in these, because one call has one descriptor and one set of shapes.
_SHARED = ("units", "use_bias", "reset_after", "recurrent_dropout")


def from_keras(layer: Any) -> Layer:
    """Convert a Keras 3 ``LSTM``, ``GRU`` or ``SimpleRNN``, or a ``Bidirectional`` of one, with copies of its weights.

    The source and the results have the batch axis first, as in Keras. The layer returns the whole sequence;
    ``return_sequences`` and ``return_state`` are ignored. With ``go_backwards``, results are in the order in which they
    were computed, as in Keras. Options that act in training only are ignored (dropout, regularizers, constraints), and
    so are options that do not change results (``unroll``, ``implementation``, ``use_cudnn``, ``seed``). The layer keeps
    ``recurrent_dropout`` for `to_torch`.

    Parameters
    ----------
    layer : keras.layers.LSTM or GRU or SimpleRNN or Bidirectional
        It must be built, so that it has weights. ``keras.layers.RNN`` of an ``LSTMCell``, ``GRUCell`` or
        ``SimpleRNNCell`` works too.

    Raises
    ------
    TypeError
        If it is another layer, or a subclass, which may compute something else.
    ValueError
        If it has not been built.
    NotImplementedError
        If vkrnn has no equivalent. The message names the option and its value.

    Notes
    -----
    ``hard_sigmoid`` is min(1, max(0, x / 6 + 0.5)) in Keras 3, and was min(1, max(0, 0.2 x + 0.5)) in Keras 2. If Keras
    3 loads a model that Keras 2 saved, it uses its own. For the results of Keras 2, set ``hard_sigmoid_alpha`` of the
    layer's descriptor to 0.2.

    For ``recurrent_dropout``, an ``LSTM`` or ``GRU`` of Keras draws a mask for each gate. vkrnn draws one for all
    gates, which are the tied weights of Gal and Ghahramani (2016). With the same masks, both compute the same.
    """
    keras = import_package("keras", "[from_keras]")
    if type(layer) is keras.layers.Bidirectional:
        return _from_keras_bidirectional(keras, layer)
    return _from_keras_layer(keras, layer)


def _from_keras_layer(keras: Any, layer: Any) -> Layer:
    kind, cell = _cell_of(keras, layer)
    if layer.stateful:
        raise NotImplementedError(
            f"[from_keras] stateful: expected False, got {layer.stateful!r}; pass the last state as init_state instead"
        )
    if not cell.built:
        raise ValueError(f"[from_keras] layer '{layer.name}': expected one that was built, got one without weights")
    arguments = {
        "recurrent_weight": _transposed(keras, cell.recurrent_kernel),
        "input_weight": _transposed(keras, cell.kernel),
    }
    bias = np.array(keras.ops.convert_to_numpy(cell.bias)) if cell.use_bias else None
    descriptor = keras_descriptor(keras, kind, cell, reverse=layer.go_backwards)
    operation: Any = {"LSTM": operations.lstm, "GRU": operations.gru, "SimpleRNN": operations.single_gate_rnn}[kind]
    if bias is not None and kind == "GRU" and cell.reset_after:
        (outside, inside), H = bias, cell.units
        arguments["bias"] = np.concatenate([outside[: 2 * H] + inside[: 2 * H], outside[2 * H :]])
        arguments["secondary_bias"] = inside[2 * H :].copy()
    else:
        arguments |= _bias(bias)
    return Layer(operation, arguments, descriptor, _recurrent_dropout(kind, cell), batch_first=True)


def keras_descriptor(keras: Any, kind: str, cell: Any, *, reverse: bool) -> Any:
    """Return the descriptor for a cell of Keras; `kind` is "LSTM", "GRU" or "SimpleRNN".

    Raises
    ------
    NotImplementedError
        If vkrnn lacks one of the activations.
    """
    activations, hard_sigmoid = _from_keras_activations(keras, kind, cell)
    activation = activations["activation"]
    if kind == "SimpleRNN":
        return SingleGateRNNDescriptor(reverse=reverse, activation=activation, **hard_sigmoid)
    gate = activations["recurrent_activation"]
    if kind == "LSTM":
        return LSTMDescriptor(
            reverse=reverse,
            input_gate_activation=gate,
            forget_gate_activation=gate,
            output_gate_activation=gate,
            cell_gate_activation=activation,
            activation=activation,
            **hard_sigmoid,
        )
    return GRUDescriptor(
        reverse=reverse,
        reset_after=cell.reset_after,
        update_gate_activation=gate,
        reset_gate_activation=gate,
        output_gate_activation=activation,
        **hard_sigmoid,
    )


def _cell_of(keras: Any, layer: Any) -> tuple[str, Any]:
    """Return the kind of a layer and its cell, after a check of both classes.

    Subclasses are refused, because a method of theirs may compute something else.
    """
    classes = {name: getattr(keras.layers, name) for name in (*_KINDS, "Bidirectional", "RNN")}
    exact = next((name for name, known in classes.items() if type(layer) is known), None)
    if exact is None or exact == "Bidirectional":
        base = next((name for name, known in classes.items() if isinstance(layer, known) and exact is None), "")
        raise TypeError(
            "[from_keras] layer: expected a keras.layers.LSTM, GRU, SimpleRNN or Bidirectional, got "
            f"{type(layer).__name__}" + (f", a subclass of {base}" if base else "")
        )
    kinds = _KINDS if exact == "RNN" else (exact,)
    kind = next((kind for kind in kinds if type(layer.cell) is getattr(keras.layers, f"{kind}Cell")), None)
    if kind is None:
        *others, last = [f"{kind}Cell" for kind in kinds]
        expected = f"{', '.join(others)} or {last}" if others else last
        raise NotImplementedError(
            f"[from_keras] cell: expected a keras.layers.{expected}, got {type(layer.cell).__name__}"
        )
    return kind, layer.cell


def _from_keras_bidirectional(keras: Any, layer: Any) -> Layer:
    if layer.merge_mode != "concat":
        raise NotImplementedError(f"[from_keras] merge_mode: expected 'concat', got {layer.merge_mode!r}")
    pair = layer.forward_layer, layer.backward_layer
    (kind, one), (other_kind, other) = (_cell_of(keras, part) for part in pair)
    if kind != other_kind:
        raise NotImplementedError(f"[from_keras] backward_layer: expected {kind}, as forward_layer, got {other_kind}")
    if pair[0].go_backwards or not pair[1].go_backwards:
        raise NotImplementedError(
            "[from_keras] go_backwards: expected False in forward_layer and True in backward_layer, got "
            f"{pair[0].go_backwards!r} and {pair[1].go_backwards!r}"
        )
    for option in _SHARED:
        if getattr(one, option, None) != getattr(other, option, None):
            _refuse_to_differ(option, repr(getattr(one, option)), repr(getattr(other, option)))
    for option in _ACTIVATIONS[kind]:
        if _from_keras_activation(keras, one, option) != _from_keras_activation(keras, other, option):
            _refuse_to_differ(option, _name(getattr(one, option)), _name(getattr(other, option)))
    forward, backward = (_from_keras_layer(keras, part) for part in pair)
    arguments = {}
    for name, array in forward.arguments.items():
        both = [array, backward.arguments[name]]
        if both[0].dtype != both[1].dtype:
            _refuse_to_differ("dtype", *(str(array.dtype) for array in both))
        arguments[name] = np.stack(both) if name == "recurrent_weight" else np.concatenate(both)
    return replace(forward, arguments=arguments, descriptor=replace(forward.descriptor, bidirectional=True))


def _refuse_to_differ(option: str, forward: str, backward: str) -> None:
    raise NotImplementedError(
        f"[from_keras] {option}: expected the same in both layers of a Bidirectional, got {forward} in forward_layer "
        f"and {backward} in backward_layer"
    )


def _from_keras_activations(keras: Any, kind: str, cell: Any) -> tuple[dict[str, Activation], dict[str, Any]]:
    """Return the activations by Keras's options, and the descriptor's options for the hard sigmoid if it is one."""
    found = {option: _from_keras_activation(keras, cell, option) for option in _ACTIVATIONS[kind]}
    slopes = {slope for _, slope in found.values() if slope is not None}
    if len(slopes) > 1:
        raise NotImplementedError(
            "[from_keras] recurrent_activation: expected the same hard sigmoid as activation, "
            f"{_name(cell.activation)}, got {_name(cell.recurrent_activation)}"
        )
    hard_sigmoid = {"hard_sigmoid_alpha": slopes.pop()} if slopes else {}
    return {option: activation for option, (activation, _) in found.items()}, hard_sigmoid


def _from_keras_activation(keras: Any, cell: Any, option: str) -> tuple[Activation, float | None]:
    """Return an activation, and a hard sigmoid's slope."""
    function = getattr(cell, option)
    known = keras.activations, keras.ops
    table = {"relu": Activation.RELU, "tanh": Activation.TANH, "sigmoid": Activation.SIGMOID}
    if function is keras.activations.linear:
        return Activation.NONE, None
    for name, activation in table.items():
        if any(function is getattr(module, name) for module in known):
            return activation, None
    if any(function is module.hard_sigmoid for module in known):
        return Activation.HARD_SIGMOID, 1 / 6
    if _name(function) == _KERAS_2_HARD_SIGMOID:
        return Activation.HARD_SIGMOID, 0.2
    raise NotImplementedError(
        f"[from_keras] {option}: expected linear, relu, tanh, sigmoid or hard_sigmoid of keras.activations, got "
        f"{_name(function)}"
    )


def _name(function: Any) -> str:
    """Return a function's name with its module, so that it differs from the name of a function of Keras."""
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{function.__module__}.{name}"


def _recurrent_dropout(kind: str, cell: Any) -> float:
    """Return the probability with which Keras drops; its LSTM and GRU drop nothing if it is 1."""
    p = float(cell.recurrent_dropout)
    return 0.0 if p == 1 and kind != "SimpleRNN" else p


def _bias(bias: Array | None) -> dict[str, Array]:
    return {} if bias is None else {"bias": bias}


def _transposed(keras: Any, variable: Any) -> Array:
    return np.array(keras.ops.convert_to_numpy(variable).T, order="C")
