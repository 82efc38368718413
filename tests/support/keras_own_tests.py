"""A plugin for pytest that gives vkrnn's layers to the tests that come with Keras."""

from __future__ import annotations

import keras.src.layers

import vkrnn.keras

for _name in ("LSTM", "GRU", "SimpleRNN"):
    setattr(keras.src.layers, _name, getattr(vkrnn.keras, _name))
