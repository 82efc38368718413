"""Recurrent layers on the CPU and on GPUs: MPSGraph's single-gate RNN, LSTM and GRU, with gradients.

Calls take and return NumPy arrays. They run on the first of `devices()`: a GPU if there is one, else the CPU.

>>> import numpy as np, vkrnn
>>> source = np.zeros((5, 3, 8), np.float32)             # 5 time steps, batch of 3, 4 gates of 2 hidden units
>>> recurrent_weight = np.ones((8, 2), np.float32)
>>> vkrnn.lstm(source, recurrent_weight)
Results(lstm: output [5, 3, 2] float32)

``vkrnn.reference`` has the same functions in float64 NumPy, ``vkrnn.mpsgraph`` has MPSGraph's methods under their own
names, and ``vkrnn.convert`` reads weights from other libraries. ``help(vkrnn.lstm)`` has shapes and equations.
"""

import sys

from vkrnn import convert, mpsgraph, reference
from vkrnn._core import DeviceError, Plan, __version__
from vkrnn.arrays import Array, asarray, empty, zeros
from vkrnn.checks import Report, check
from vkrnn.checks._self_check import require_right_results
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.devices import Device, compiler_checks, default_device, devices
from vkrnn.gradients import gru_gradients, lstm_gradients, single_gate_rnn_gradients, slstm_gradients
from vkrnn.networks import Network, NetworkGradients, NetworkResult, network
from vkrnn.operations import gru, lstm, single_gate_rnn, slstm
from vkrnn.plans import plan
from vkrnn.precision import fp32_precision
from vkrnn.results import Results
from vkrnn.streams import Stream, stream

__all__ = [
    "Activation",
    "Array",
    "Device",
    "DeviceError",
    "GRUDescriptor",
    "LSTMDescriptor",
    "Network",
    "NetworkGradients",
    "NetworkResult",
    "Plan",
    "Report",
    "Results",
    "SLSTMDescriptor",
    "SingleGateRNNDescriptor",
    "Stream",
    "__version__",
    "asarray",
    "check",
    "convert",
    "default_device",
    "devices",
    "empty",
    "fp32_precision",
    "gru",
    "gru_gradients",
    "lstm",
    "lstm_gradients",
    "mpsgraph",
    "network",
    "plan",
    "reference",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
    "slstm",
    "slstm_gradients",
    "stream",
    "zeros",
]

compiler_checks.append(require_right_results)
# Where pickles of older versions look for these modules' classes.
sys.modules.update({"vkrnn._layer": convert, "vkrnn._mpsgraph_descriptors": mpsgraph})


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return __all__
