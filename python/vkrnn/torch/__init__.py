"""PyTorch's LSTM, GRU and RNN, computed by vkrnn. Needs the package torch.

Each is a subclass of PyTorch's module, with the same arguments, results and state_dict. The constructors take options
of vkrnn as further keyword arguments::

    from vkrnn.torch import LSTM
    output, (h_n, c_n) = LSTM(input_size=3, hidden_size=16)(torch.zeros(5, 1, 3))

`SLSTM` is a module of its own, which PyTorch does not have.

`convert` makes the modules of a model these, and `revert` makes them PyTorch's again. `frozen` is the promise that a
model's parameters do not change. `single_gate_rnn`, `lstm`, `gru` and `slstm` are the functions of vkrnn on tensors,
with every option and with gradients. Tensors are on the CPU or on a CUDA device. `docs/torch.md` says what does not
work.
"""

from vkrnn._base.packages import missing

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise missing("vkrnn.torch", error, "torch") from error

from vkrnn.torch import _compiling, _layer  # noqa: F401 - for torch.compile, and operators of earlier versions
from vkrnn.torch._cells import GRUCell, LSTMCell, RNNCell
from vkrnn.torch._choice import choices
from vkrnn.torch._convert import convert, frozen, revert
from vkrnn.torch._functions import gru, lstm, single_gate_rnn, slstm
from vkrnn.torch._modules import GRU, LSTM, RNN
from vkrnn.torch._slstm import SLSTM

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "SLSTM",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "choices",
    "convert",
    "frozen",
    "gru",
    "lstm",
    "revert",
    "single_gate_rnn",
    "slstm",
]
