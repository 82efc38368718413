"""The six operations in NumPy, float64, written from the equations: what every other implementation is checked with.

Same names, arguments, layouts and results as the functions of `vkrnn` (less ``device``), for reading beside the
equations and for cross-checking. Inputs may have any float dtype and are converted to float64; float64 comes back.
"""

from ._gru import gru, gru_gradients
from ._lstm import lstm, lstm_gradients
from ._single_gate_rnn import single_gate_rnn, single_gate_rnn_gradients

__all__ = [
    "gru",
    "gru_gradients",
    "lstm",
    "lstm_gradients",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
]
