"""Changing the layers of a model from Keras's to vkrnn's, and back."""

from __future__ import annotations

import logging
from typing import Any

import keras

from vkrnn.keras._layers import GRU, LSTM, SimpleRNN, fallback

__all__ = ["convert", "revert"]

_logger = logging.getLogger("vkrnn")
_OURS = {keras.layers.LSTM: LSTM, keras.layers.GRU: GRU, keras.layers.SimpleRNN: SimpleRNN}
_KERAS = {ours: theirs for theirs, ours in _OURS.items()}


def convert(model: Any) -> Any:
    """Make vkrnn compute every ``LSTM``, ``GRU`` and ``SimpleRNN`` of a model, in place, and return the model.

    Only the class of the layers changes. They keep weights, names and states, so a compiled model goes on with the same
    optimizer. Layers within other layers, such as ``Bidirectional``, are converted too. Your own subclasses are left to
    Keras, because they may compute something else, and so is ``keras.layers.RNN`` of a cell.

    Parameters
    ----------
    model : keras.Layer
        A model or a layer.

    Raises
    ------
    TypeError
        If it is neither.

    Notes
    -----
    The logger ``vkrnn`` says at level INFO how many layers were converted, and which of them Keras computes and why.

    Examples
    --------
    >>> import keras, vkrnn.keras  # doctest: +SKIP
    >>> vkrnn.keras.convert(keras.layers.Bidirectional(keras.layers.GRU(16))).forward_layer  # doctest: +SKIP
    <GRU name=forward_gru, built=False>
    """
    changed = _change(model, _OURS, "convert")
    reasons = [f"{layer.name}: {reason}" for layer in changed if (reason := fallback(layer))]
    left = "; ".join(reasons) or "none"
    _logger.info("[vkrnn.keras.convert] layers converted: %d, computed by Keras: %s", len(changed), left)
    return model


def revert(model: Any) -> Any:
    """Make Keras compute the layers of a model again, in place, and return the model.

    Parameters
    ----------
    model : keras.Layer
        A model or a layer.

    Raises
    ------
    TypeError
        If it is neither.
    """
    _change(model, _KERAS, "revert")
    return model


def _change(model: Any, classes: dict[Any, Any], function: str) -> list[Any]:
    """Change the class of the layers that have one of these classes, and return them."""
    if not isinstance(model, keras.Layer):
        raise TypeError(f"[vkrnn.keras.{function}] model: expected a keras.Layer, got {type(model).__name__}")
    layers = list(model._flatten_layers())  # noqa: SLF001 - Keras has no public walk through nested layers
    found = [layer for layer in layers if type(layer) in classes]
    for layer in found:
        layer.__class__ = classes[type(layer)]
    if found:
        for layer in layers:
            # Compiled programs of these would go on to compute as before. Models make them again when they are needed.
            for name in ("train_function", "test_function", "predict_function"):
                if getattr(layer, name, None) is not None:
                    setattr(layer, name, None)
    return found
