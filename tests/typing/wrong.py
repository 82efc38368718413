"""Mistakes that type checkers find: every line that ends in a mark, and no other."""

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn import convert, mpsgraph, reference

Floats = npt.NDArray[np.float32]


def show(_: object) -> None:
    """Accept any object."""


def names_of_results(source: Floats, weight: Floats) -> None:
    """Each operation has its own results."""
    forward = vkrnn.lstm(source, weight)
    show(forward.outptu)  # wrong
    show(forward.output.shpae)  # wrong
    show(vkrnn.gru(source, weight).cell_output)  # wrong
    show(vkrnn.single_gate_rnn(source, weight).cell_output)  # wrong
    show(reference.gru(source, weight).outputs)  # wrong
    show(convert.Layer(vkrnn.lstm, {}, None)(source).otuput)  # wrong
    back = vkrnn.lstm_gradients(source, weight, source, source, source)
    show(back.secondary_bias)  # wrong
    show(vkrnn.gru_gradients(source, weight, source, source, source).peephole)  # wrong
    show(vkrnn.single_gate_rnn_gradients(source, weight, source, source).init_cell)  # wrong
    forward.loss = source  # wrong


def kinds_of_arrays(source: Floats, resident: vkrnn.Array) -> None:
    """Results are NumPy arrays, or device arrays if an argument is one."""
    vkrnn.gru(source, source).output.copy_from(source)  # wrong
    vkrnn.gru(source, resident).output.mean()  # wrong
    vkrnn.gru([1.0], source)  # wrong
    vkrnn.gru(source, source, lengths=5)  # wrong
    vkrnn.gru(source, source, out="output")  # wrong


def names_of_arguments(source: Floats, weight: Floats) -> None:
    """Arguments and properties of descriptors."""
    vkrnn.lstm(source)  # wrong
    vkrnn.lstm(source, weight, source)  # wrong
    vkrnn.lstm(source, weight, init_sate=source)  # wrong
    vkrnn.lstm(source, weight, descriptor=vkrnn.GRUDescriptor())  # wrong
    vkrnn.lstm(source, weight, device=0.5)  # wrong
    vkrnn.plan(vkrnn.lstm, source, weight, init_sate=source)  # wrong
    reference.lstm(source, weight, device=0)  # wrong
    vkrnn.LSTMDescriptor(inputGateActivation="tanh")  # wrong
    vkrnn.LSTMDescriptor(1)  # wrong
    vkrnn.LSTMDescriptor().training = True  # wrong


def activations() -> None:
    """Activations have names."""
    vkrnn.LSTMDescriptor(activation="tahn")  # wrong
    vkrnn.GRUDescriptor(update_gate_activation=None)  # wrong
    show(vkrnn.Activation.TAHN)  # wrong


def labels(source: Floats, weight: Floats) -> None:
    """Labels, selectors and properties of MPSGraph."""
    descriptor = mpsgraph.MPSGraphGRUDescriptor()
    descriptor.trainig = True  # wrong
    descriptor.training = "yes"  # wrong
    descriptor.resetGateActivation = "sigmoit"  # wrong
    mpsgraph.GRU(source, recurrentWeigth=weight, inputWeight=None, bias=None, descriptor=descriptor)  # wrong
    mpsgraph.GRU(source, recurrentWeight=weight, bias=None, descriptor=descriptor)  # wrong
    mpsgraph.GRU(source, recurrentWeight=None, inputWeight=None, bias=None, descriptor=descriptor)  # wrong
    mpsgraph.LSTM(source, recurrentWeight=weight, initState=None, initCell=None, descriptor=descriptor)  # wrong
    mpsgraph.GRUWithSourceTensor_recurrentWeight_descriptor_name_(source, weight, descriptor, None)  # wrong
