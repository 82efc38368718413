"""A recurrent layer with its weights, as converted from another library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from vkrnn.results import Outputs

__all__ = ["Layer"]


@dataclass(frozen=True, eq=False)
class Layer:
    """One recurrent layer: a function of `vkrnn`, its keyword arguments and its descriptor. Can be called.

    Attributes
    ----------
    function : callable
        `vkrnn.lstm`, `vkrnn.gru` or `vkrnn.single_gate_rnn`.
    arguments : dict of str to numpy.ndarray
        The weights, by the names of the function's parameters.
    descriptor : LSTMDescriptor or GRUDescriptor or SingleGateRNNDescriptor
    recurrent_dropout : float, default 0.0
        Probability of zeroing a unit of the state in training, for `to_torch`. A call of the layer drops nothing.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> weights = {"recurrent_weight": np.zeros((8, 2), np.float32), "input_weight": np.ones((8, 3), np.float32)}
    >>> layer = vkrnn.convert.Layer(vkrnn.lstm, weights, vkrnn.LSTMDescriptor())
    >>> layer(np.ones((5, 1, 3), np.float32))
    Results(lstm: output [5, 1, 2] float32)
    """

    function: Callable[..., Outputs[Any]]
    arguments: dict[str, npt.NDArray[Any]]
    descriptor: Any
    recurrent_dropout: float = 0.0

    def __call__(self, source: Any, **more: Any) -> Outputs[Any]:
        """Call the function. `more` adds arguments or replaces the layer's own."""
        return self.function(source, **{**self.arguments, "descriptor": self.descriptor, **more})

    def __repr__(self) -> str:
        """Return names, shapes and the descriptor."""
        shapes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in self.arguments.items())
        dropout = f"; recurrent_dropout={self.recurrent_dropout}" if self.recurrent_dropout else ""
        return f"Layer({self.function.__name__}: {shapes}; {self.descriptor!r}{dropout})"
