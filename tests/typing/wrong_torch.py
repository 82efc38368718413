"""Mistakes with vkrnn.torch that type checkers find: each line with a mark at its end, and no other."""

import vkrnn.torch


def names_of_options() -> None:
    """Each module has its own."""
    vkrnn.torch.LSTM(3, 16, peepholes=True)  # wrong
    vkrnn.torch.LSTM(3, 16, reset_after=True)  # wrong
    vkrnn.torch.LSTM(3, 16, recurent_dropout=0.5)  # wrong
    vkrnn.torch.GRU(3, 16, peephole=True)  # wrong
    vkrnn.torch.GRU(3, 16, reset_afer=True)  # wrong
    vkrnn.torch.RNN(3, 16, activations="relu")  # wrong
    vkrnn.torch.GRU(3, hiden_size=16)  # wrong


def values_of_options() -> None:
    """Activations have names, and flags are no numbers."""
    vkrnn.torch.LSTM(3, 16, input_gate_activation="tahn")  # wrong
    vkrnn.torch.GRU(3, 16, output_gate_activation=None)  # wrong
    vkrnn.torch.RNN(3, 16, nonlinearity="sigmoid")  # wrong
    vkrnn.torch.LSTM(3, 16, recurrent_dropout="half")  # wrong
    vkrnn.torch.GRU(3, 16, reset_after="no")  # wrong
    vkrnn.torch.LSTM("three", 16)  # wrong
