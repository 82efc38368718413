"""Keras 3's LSTM, GRU and SimpleRNN, computed by vkrnn. Needs the package keras with PyTorch or JAX as its back end.

Each is a subclass of Keras's layer, with the same constructor, weights and results::

    import keras, vkrnn.keras
    model = keras.Sequential([keras.Input((None, 3)), vkrnn.keras.GRU(16, recurrent_dropout=0.2)])

`convert` makes the layers of a model these, and `revert` makes them Keras's again. `fallback` says why a layer is left
to Keras. `docs/keras.md` lists what is.
"""

from vkrnn._base.packages import missing

try:
    import keras as _keras  # noqa: F401
except ImportError as error:
    raise missing("vkrnn.keras", error, "keras") from error

from vkrnn.keras._convert import convert, revert
from vkrnn.keras._layers import GRU, LSTM, SimpleRNN, fallback

__all__ = ["GRU", "LSTM", "SimpleRNN", "convert", "fallback", "revert"]
