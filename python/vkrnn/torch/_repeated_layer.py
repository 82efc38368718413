"""A layer in place on a CUDA device whose calls were checked and planned once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vkrnn.convert._torch_layout import FORWARD, descriptor, torch_mode
from vkrnn.devices import Device
from vkrnn.torch._cuda_calls import Temporary, current_stream, may_round, submit
from vkrnn.torch._cuda_layers import Gradients, Operands, backward_call, forward_call, sum_of_biases

__all__ = ["Place", "RepeatedLayer", "infer_layers", "place"]

Place = tuple[int, bool, torch.Size, torch.dtype]
"""Address, contiguity, shape and dtype of a tensor: all that kernels know of it besides the elements."""


class RepeatedLayer:
    """A layer without lengths and in one direction, for sources and states of the same shapes.

    The weights keep their addresses. All tensors are contiguous and have the same dtype. Their elements may differ from
    call to call.
    """

    def __init__(self, mode: str, given: Operands, *, training: bool) -> None:
        (T, N, _), H = given.source.shape, given.weight_hh.shape[1]
        self.mode, self.training = mode, training
        self.weights = given[1:6]
        self._function = FORWARD[torch_mode(mode)].__name__
        self._how = descriptor(mode, bidirectional=False, training=training, produce_cell=True)
        call = forward_call(self._function, self._how, given, given.bias_ih)
        self._shapes = [shape for _, shape in call.prepare(self._how)]  # of output, cells if there are any, and z_state
        self._core, self._addresses = call.core, call.addresses
        self._bias = call.names.index("bias") if "bias" in call.names else None
        self._states = [call.names.index(name) for name in ("init_state", "init_cell") if name in call.names]
        self._end_bytes = N * H * given.source.itemsize
        self._end = (T - 1) * self._end_bytes
        self._ordinal = given.source.get_device()
        self._read = [0 if each is None else each.data_ptr() for each in self.weights]
        self._bytes = self._core.layer_bytes  # of memory that calls need: this, and the plan's once it is known
        self._places = [place(each) for each in self.weights]
        # By precision and by which upstream gradients are given: the device, the results and the call.
        self._backward: dict[tuple[bool, ...], tuple[Device, Any, Any]] = {}

    def infer(self, source: Tensor, starts: Sequence[int], ends: Sequence[int]) -> Tensor | None:
        """Return the output; None if the device was closed or lost.

        The addresses are those of the initial states, if any, and of memory for the last ones.
        """
        output = source.new_empty(self._shapes[0])
        count = self._bytes  # which a call of another thread may set
        memory = source.new_empty(count, dtype=torch.uint8)
        core, stream, temporary = self._core, current_stream(self._ordinal), Temporary(source)
        taken = core.run_layer(
            source.data_ptr(),
            self._read,
            starts,
            output.data_ptr(),
            ends,
            stream,
            memory.data_ptr(),
            count,
            temporary.allocate,
        )
        if taken is None:
            return None
        self._bytes = core.layer_bytes + taken
        return output

    def train(
        self, source: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Compute a training call. Return what `compute_layer` returns."""
        _, N, H = self._shapes[0]
        tensors = [source.new_empty(shape) for shape in self._shapes]
        ends = [source.new_empty((1, N, H)) for _ in tensors[1:]]
        results, ends_at = [each.data_ptr() for each in tensors], [each.data_ptr() for each in ends]
        self._run(source, [each.data_ptr() for each in states], results, ends_at)
        output, *cells, z_state = tensors
        return output, ends[0], ends[1] if cells else None, z_state, cells[0] if cells else None

    def _run(
        self,
        source: Tensor,
        starts: Sequence[int],
        results: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        addresses = self._addresses.copy()
        addresses[0] = source.data_ptr()
        for place, start in zip(self._states, starts, strict=True):
            addresses[place] = start
        bias, biases = sum_of_biases(self._how, *self.weights[2:4])
        if bias is not None and self._bias is not None:
            addresses[self._bias] = bias.data_ptr()
        after = [(end, at + self._end, self._end_bytes) for end, at in zip(ends, results, strict=False)]
        submit(self._core, source, addresses, results, after, biases)

    def differentiate(
        self, above: tuple[Tensor | None, Tensor | None, Tensor | None], kept: dict[str, Tensor], given: Operands
    ) -> list[Tensor | None] | None:
        """Compute the gradients. Return what `backward_on_cuda` returns, or None if the weights have moved."""
        if [place(each) for each in given[1:6]] != self._places:
            return None
        planned = self._backward.get(key := (may_round(), *[each is not None for each in above]))
        how = descriptor(self.mode, bidirectional=False)
        if planned is None or planned[0].closed or planned[0].lost:
            call = backward_call(f"{self._function}_gradients", how, above, kept, given)
            results = call.prepare(how)
            planned = self._backward[key] = call.runs_on, results, call.core
        _, results, core = planned
        source, weight_ih, weight_hh, bias_ih, bias_hh, peephole, h_0, c_0, _ = given
        d_output, *d_last = above
        order = source, weight_hh, weight_ih, h_0, c_0, peephole, d_output, *kept.values(), *d_last, bias_ih
        tensors = [each if each.is_contiguous() else each.contiguous() for each in order if each is not None]
        addresses = [each.data_ptr() for each in tensors]
        if bias_hh is not None and getattr(how, "reset_after", False):
            addresses.append(bias_hh.data_ptr() + bias_hh.nbytes // 3 * 2)
        found = Gradients(how, given, results)
        submit(core, source, addresses, found.addresses, after=found.after)
        return found.tensors


def infer_layers(
    layers: Sequence[RepeatedLayer], source: Tensor, states: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]] | None:
    """Return the output and the last states [L, N, H] of L layers; None if the device was closed or lost."""
    shapes = layers[0]._shapes  # noqa: SLF001 - of the output, and of the cells if there are any
    last = [source.new_empty((len(layers), *shape[1:])) for shape in shapes]
    starts, ends = ([each.data_ptr() for each in tensors] for tensors in (states, last))
    for layer in layers:
        output = layer.infer(source, starts, ends)
        if output is None:
            return None
        source = output
        starts, ends = ([at + layer._end_bytes for at in each] for each in (starts, ends))  # noqa: SLF001
    return source, last


def place(tensor: Tensor | None) -> Place | None:
    """Return a tensor's address, layout, shape and dtype. Setting `tensor.data` may change any of these."""
    return None if tensor is None else (tensor.data_ptr(), tensor.is_contiguous(), tensor.shape, tensor.dtype)
