"""Typed code with vkrnn.torch: type checkers accept it, and infer what `assert_type` says."""

import torch
from typing_extensions import assert_type

import vkrnn
import vkrnn.torch

lstm = vkrnn.torch.LSTM(
    3,
    16,
    2,
    bidirectional=True,
    peephole=True,
    recurrent_dropout=0.25,
    input_gate_activation="hard_sigmoid",
    activation=vkrnn.Activation.RELU,
    hard_sigmoid_alpha=1 / 6,
)
gru = vkrnn.torch.GRU(3, 16, reset_after=False, flip_z=True, update_gate_activation=4, dtype=torch.float64)
rnn = vkrnn.torch.RNN(3, 16, 1, "relu", clip=3.0)
module: torch.nn.LSTM = lstm
assert_type(lstm.recurrent_dropout, float)
assert_type(lstm.peephole, bool)
found = vkrnn.torch.lstm(torch.zeros(5, 1, 64), torch.zeros(64, 16))
assert_type(found.output, torch.Tensor)
