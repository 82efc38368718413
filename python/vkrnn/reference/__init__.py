"""The operations in float64 NumPy, written from the equations. Every other implementation is checked against them.

Names, arguments, layouts and results are those of the functions of `vkrnn`, without ``device`` and ``out``. Arguments
of any float dtype are converted to float64, and results are float64.
"""

from vkrnn.reference._gru import gru, gru_gradients
from vkrnn.reference._lstm import lstm, lstm_gradients
from vkrnn.reference._single_gate_rnn import single_gate_rnn, single_gate_rnn_gradients
from vkrnn.reference._slstm import slstm, slstm_gradients

__all__ = [
    "gru",
    "gru_gradients",
    "lstm",
    "lstm_gradients",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
    "slstm",
    "slstm_gradients",
]
