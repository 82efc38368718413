"""Subclasses of Keras's layers that replace the loop over the time steps."""

from __future__ import annotations

from typing import Any

import keras

from vkrnn.convert._keras import keras_descriptor
from vkrnn.keras._calls import Call

__all__ = ["GRU", "LSTM", "SimpleRNN", "fallback"]

_CELLS = {"LSTM": keras.layers.LSTMCell, "GRU": keras.layers.GRUCell, "SimpleRNN": keras.layers.SimpleRNNCell}
_BACKENDS = {"torch": "PyTorch", "jax": "JAX"}


class _Recurrent:
    """The loop of a layer, for classes that also derive from the layer."""

    def inner_loop(self: Any, sequences: Any, initial_state: Any, mask: Any, training: Any = None) -> Any:
        """Return the last output, the outputs [N, T, H] and the last states, as Keras's ``inner_loop`` does."""
        # An unrolled loop of Keras on JAX has other outputs for masked steps than its scan, which vkrnn follows.
        unrolled = self.unroll and mask is not None and keras.backend.backend() == "jax"
        if unrolled or fallback(self) or _elsewhere(sequences):
            return super().inner_loop(sequences, initial_state, mask=mask, training=training)  # type: ignore[misc]
        if keras.tree.is_nested(mask):
            mask = mask[0]
        return Call(self, training=bool(training)).run(sequences, list(initial_state), mask)


@keras.saving.register_keras_serializable(package="vkrnn")
class LSTM(_Recurrent, keras.layers.LSTM):
    """``keras.layers.LSTM``, computed by vkrnn.

    Constructor, weights, masks, states and results are those of ``keras.layers.LSTM``. ``unroll`` and
    ``implementation`` do not change how vkrnn computes. A model with this layer loads if ``vkrnn.keras`` has been
    imported.

    Examples
    --------
    >>> import numpy as np, vkrnn.keras  # doctest: +SKIP
    >>> layer = vkrnn.keras.LSTM(16, return_sequences=True)  # doctest: +SKIP
    >>> layer(np.ones((4, 50, 3), np.float32)).shape  # doctest: +SKIP
    torch.Size([4, 50, 16])
    """


@keras.saving.register_keras_serializable(package="vkrnn")
class GRU(_Recurrent, keras.layers.GRU):
    """``keras.layers.GRU``, computed by vkrnn. As `LSTM`."""


@keras.saving.register_keras_serializable(package="vkrnn")
class SimpleRNN(_Recurrent, keras.layers.SimpleRNN):
    """``keras.layers.SimpleRNN``, computed by vkrnn. As `LSTM`."""


def fallback(layer: Any) -> str:
    """Return why Keras computes a layer, or an empty text if vkrnn does.

    Parameters
    ----------
    layer : LSTM, GRU or SimpleRNN
        A layer of this module.

    Raises
    ------
    TypeError
        If it is another layer.

    Examples
    --------
    >>> import vkrnn.keras  # doctest: +SKIP
    >>> vkrnn.keras.fallback(vkrnn.keras.GRU(16, activation="gelu"))  # doctest: +SKIP
    'activation: expected linear, relu, tanh, sigmoid or hard_sigmoid of keras.activations, got ...gelu'
    """
    if not isinstance(layer, _Recurrent):
        raise TypeError(f"[vkrnn.keras.fallback] layer: expected one of vkrnn.keras, got {type(layer).__name__}")
    own: Any = layer
    kind = next(name for name, cell in _CELLS.items() if isinstance(own, getattr(keras.layers, name)))
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        return f"the back end of Keras is {backend}"
    if type(own.cell) is not _CELLS[kind]:
        return f"cell: expected a {kind}Cell, got {type(own.cell).__name__}"
    if getattr(own, "use_cudnn", False) is True:
        return "use_cudnn is True"
    try:
        keras_descriptor(keras, kind, own.cell, reverse=False)
    except NotImplementedError as error:
        return str(error).removeprefix("[from_keras] ")
    return ""


def _elsewhere(sequences: Any) -> bool:
    """Return true for a tensor of PyTorch on a device that vkrnn.torch does not serve."""
    return keras.backend.backend() == "torch" and sequences.device.type not in ("cpu", "cuda", "meta")
