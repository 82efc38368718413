"""One call of a layer: Keras's layouts, masks and dropout, in terms of vkrnn's functions.

Axes are [N, T, ...] as in Keras, unless a name says `rows` (of time): [T, N, ...].
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from vkrnn.convert._keras import keras_descriptor

__all__ = ["NAMES", "Call"]

NAMES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "single_gate_rnn"}


class Call:
    """What a call of a layer needs besides its inputs."""

    def __init__(self, layer: Any, *, training: bool) -> None:
        self.layer, self.cell, self.training = layer, layer.cell, training
        self.kind = next(name for name in NAMES if isinstance(layer, getattr(keras.layers, name)))
        self.backend = keras.backend.backend()
        self.weights = [self._cast(weight) for weight in (self.cell.kernel, self.cell.recurrent_kernel)]
        self.bias = self._cast(self.cell.bias) if self.cell.use_bias else None

    def run(self, source: Any, states: list[Any], mask: Any) -> tuple[Any, Any, list[Any]]:
        """Return the last output, all outputs, and the last states.

        A mask may hide any steps. The steps that it shows are moved to the front of their row, and the layer runs over
        as many; then each step takes the output of the last one shown.
        """
        input_masks, state_masks = self._dropout_masks(source, states[0])
        source = self._cast(source)
        # Keras assigns the last states to the variables of stateful layers, while autograd may need the first ones.
        states = [ops.copy(state) if self.layer.stateful else state for state in states]
        reverse = self.layer.go_backwards
        if reverse and mask is not None:
            source, mask, reverse = ops.flip(source, axis=1), ops.flip(mask, axis=1), False
        if mask is None:
            outputs, cells = self._compute(source, states, input_masks, state_masks, None, reverse=reverse)
            last = [rows[-1] for rows in (outputs, cells) if rows is not None]
            outputs = ops.swapaxes(outputs, 0, 1)
            return last[0], outputs, last
        shown = ops.cast(mask, "bool")
        until = ops.cumsum(ops.cast(shown, "int32"), axis=1)  # steps shown up to and with each one
        count = until[:, -1]
        steps = ops.arange(source.shape[1], dtype="int32")[None]
        place = ops.where(shown, until - 1, count[:, None] + steps - until)
        source = ops.take_along_axis(source, ops.argsort(place, axis=1)[..., None], axis=1)
        found = self._compute(source, states, input_masks, state_masks, count, reverse=reverse)
        sequences = [ops.swapaxes(rows, 0, 1) for rows in found if rows is not None]
        pairs = list(zip(states, sequences, strict=True))
        last = [_take(state, sequence, count[:, None])[:, 0] for state, sequence in pairs]
        # Before the first step shown, Keras's outputs are zeros on PyTorch, and the initial state on JAX.
        first = ops.zeros_like(states[0]) if self.backend == "torch" else states[0]
        outputs = _take(first, sequences[0], until)
        if self.layer.zero_output_for_mask:
            outputs = ops.where(shown[..., None], outputs, ops.zeros_like(outputs))
        return outputs[:, -1], outputs, last

    def _cast(self, value: Any) -> Any:
        return ops.cast(ops.convert_to_tensor(value), self.cell.compute_dtype)

    def _swapped(self, tensor: Any) -> Any:
        """Return a tensor with its first two axes swapped, copied now and not again by the gradients' call."""
        swapped = ops.swapaxes(tensor, 0, 1)
        return swapped.contiguous() if self.backend == "torch" else swapped

    def _dropout_masks(self, source: Any, state: Any) -> tuple[Any, Any]:
        """Return the masks of the inputs and of the states, each a tensor, a list with one for each gate, or None.

        Keras draws them once for all steps.
        """
        cell = self.cell
        below = 1 if self.kind != "SimpleRNN" else 2  # the other cells drop nothing with a probability of 1
        inputs = cell.get_dropout_mask(source[:, 0]) if self.training and 0 < cell.dropout < below else None
        drops = self.training and 0 < cell.recurrent_dropout < below
        return inputs, cell.get_recurrent_dropout_mask(state) if drops else None

    def _compute(
        self, source: Any, states: list[Any], input_masks: Any, state_masks: Any, lengths: Any, *, reverse: bool
    ) -> tuple[Any, Any]:
        """Return the rows of outputs, and of an LSTM's cells or None."""
        kernel, recurrent = self.weights
        if isinstance(input_masks, list):
            parts = zip(input_masks, ops.split(kernel, len(input_masks), axis=1), strict=True)
            source = ops.concatenate([ops.matmul(source * each[:, None], part) for each, part in parts], axis=-1)
            kernel = None
        elif input_masks is not None:
            source = source * input_masks[:, None]
        rows = self._swapped(source)
        bias, second = self._biases()
        function = getattr(importlib.import_module(f"vkrnn.{self.backend}"), NAMES[self.kind])
        descriptor = keras_descriptor(keras, self.kind, self.cell, reverse=reverse)
        given: dict[str, Any] = {"input_weight": kernel if kernel is None else self._swapped(kernel), "bias": bias}
        if self.kind == "LSTM":
            descriptor = replace(descriptor, produce_cell=True)
            given["init_cell"] = states[1]
        if second is not None:
            given["secondary_bias"] = second
        if state_masks is not None:
            of_gates = isinstance(state_masks, list)
            given["mask"] = (ops.concatenate(state_masks, axis=-1) if of_gates else state_masks)[None]
        found = function(
            rows, self._swapped(recurrent), init_state=states[0], lengths=lengths, descriptor=descriptor, **given
        )
        return found.output, found.cell_output if self.kind == "LSTM" else None

    def _biases(self) -> tuple[Any, Any]:
        """Return the bias and the secondary bias, or None for each that there is not."""
        if self.bias is None or self.kind != "GRU" or not self.cell.reset_after:
            return self.bias, None
        (outside, inside), H = self.bias, self.cell.units
        return ops.concatenate([outside[: 2 * H] + inside[: 2 * H], outside[2 * H :]]), inside[2 * H :]


def _take(first: Any, sequence: Any, until: Any) -> Any:
    """Return the rows of a sequence [N, T, H] after as many steps as `until` [N, S] says.

    `first` [N, H] is the row after none.
    """
    return ops.take_along_axis(ops.concatenate([first[:, None], sequence], axis=1), until[..., None], axis=1)
