"""Layers in one direction in place on a CUDA device, with as few operations of PyTorch as possible.

Each of these takes the host 5 to 20 microseconds, which is what small calls consist of. Parts of arguments and results
are addressed in their tensors, and the call itself copies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vkrnn.torch._cuda_calls import Copy, InPlaceCall, submit

__all__ = ["Operands", "RepeatedLayer", "backward_on_cuda", "forward_on_cuda"]


_ALIGNED = 256  # bytes; what kernels need of the memory that a call takes for itself


class Operands(NamedTuple):
    """The tensors of a layer, as `compute_layer` takes them."""

    source: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    peephole: Tensor | None
    h_0: Tensor | None
    c_0: Tensor | None
    mask: Tensor | None


def forward_on_cuda(
    function: str, how: Any, given: Operands
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Compute what `compute_layer` does, with the function's name and the descriptor. There must be a step."""
    source = given.source
    (T, N, _), H, size = source.shape, given.weight_hh.shape[1], source.itemsize
    bias, before = _sum_of_biases(how, given.bias_ih, given.bias_hh)
    call = _forward_call(function, how, given, bias)
    results = {name: source.new_empty(shape) for name, shape in call.prepare(how)}
    output, cells = results["output"], results.get("cell_output")
    h_n = source.new_empty((1, N, H))
    c_n = None if cells is None else source.new_empty((1, N, H))
    last = (T - 1) * N * H * size
    after: list[Copy] = [
        (end.data_ptr(), states.data_ptr() + last, N * H * size)
        for end, states in ((h_n, output), (c_n, cells))
        if end is not None and states is not None
    ]
    call.run([tensor.data_ptr() for tensor in results.values()], before, after)
    z_state = results.get("z_state")
    return output, h_n, c_n, z_state, None if z_state is None else cells


class RepeatedLayer:
    """A layer's forward call without gradients, which was checked and planned once.

    It runs on sources and states of the same shapes, and with the same weights, which stay where they are. All tensors
    are contiguous and have the same dtype. The numbers may be others in each call.
    """

    def __init__(self, function: str, how: Any, given: Operands) -> None:
        (T, N, _), H = given.source.shape, given.weight_hh.shape[1]
        call = _forward_call(function, how, given, given.bias_ih)
        self._how, self._biases = how, (given.bias_ih, given.bias_hh)
        shapes = [shape for _, shape in call.prepare(how)]  # of the output, and of the cells of an LSTM
        self._output = shapes[0]
        self._cells_bytes = sum(-(-math.prod(shape) * given.source.itemsize // _ALIGNED) * _ALIGNED for shape in shapes[1:])
        self._own_bytes = 0  # what the call takes for itself, once it is known
        self._core, self._addresses = call.core, call.addresses
        self._bias = call.names.index("bias") if "bias" in call.names else None
        self._states = [call.names.index(name) for name in ("init_state", "init_cell") if name in call.names]
        self._last_bytes = N * H * given.source.itemsize
        self._last = (T - 1) * self._last_bytes

    def run(self, source: Tensor, starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """Return the output. The addresses are those of the initial states, if any, and of memory for the last ones."""
        addresses = self._addresses.copy()
        addresses[0] = source.data_ptr()
        for place, start in zip(self._states, starts, strict=True):
            addresses[place] = start
        bias, before = _sum_of_biases(self._how, *self._biases)
        if bias is not None and self._bias is not None:
            addresses[self._bias] = bias.data_ptr()
        output = source.new_empty(self._output)
        memory = source.new_empty(self._cells_bytes + self._own_bytes, dtype=torch.uint8)
        results = [output.data_ptr(), memory.data_ptr()][: len(ends)]
        after = [(end, at + self._last, self._last_bytes) for end, at in zip(ends, results, strict=True)]
        spare = memory.data_ptr() + self._cells_bytes, self._own_bytes
        self._own_bytes = submit(self._core, source, addresses, results, before, after, spare)
        return output


def backward_on_cuda(
    function: str,
    how: Any,
    above: tuple[Tensor, Tensor | None, Tensor | None],
    kept: dict[str, Tensor],
    given: Operands,
) -> list[Tensor | None]:
    """Compute what `compute_layer_backward` does.

    `above` are the gradients with respect to the output, h_n and c_n, and `kept` what the forward call has kept, by the
    names of the gradients' arguments.
    """
    source, bias_ih, bias_hh = given.source, given.bias_ih, given.bias_hh
    N, H, size = source.shape[1], given.weight_hh.shape[1], source.itemsize
    d_output, d_h_n, d_c_n = above
    call = _begin(function, given)
    call.give("source_gradient", d_output)
    for name, tensor in kept.items():
        call.give(name, tensor)
    if d_h_n is not None:
        call.give("state_gradient", d_h_n, (N, H))
    if d_c_n is not None:
        call.give("cell_gradient", d_c_n, (N, H))
    inside = None  # the gradient with respect to bias_hh
    if bias_ih is not None and bias_hh is not None:
        call.give("bias", bias_ih.to(source.dtype))  # whose numbers are not read
        inside = source.new_empty(bias_ih.shape)
        if getattr(how, "reset_after", False):
            call.give("secondary_bias", bias_hh, (H,), 2 * H)
    results: dict[str, Tensor] = {}
    addresses: list[int] = []
    after: list[Copy] = []
    for name, shape in call.prepare(how):
        if name == "secondary_bias" and inside is not None:  # the candidate's part of `inside`
            addresses.append(inside.data_ptr() + 2 * H * size)
            continue
        results[name] = source.new_empty((1, N, H) if name in ("init_state", "init_cell") else shape)
        addresses.append(results[name].data_ptr())
    if inside is not None:
        rows = 2 * H if getattr(how, "reset_after", False) else inside.shape[0]
        after = [(inside.data_ptr(), results["bias"].data_ptr(), rows * size)]
    call.run(addresses, after=after)
    outside, last = results.get("bias"), (results.get("init_state"), results.get("init_cell"))
    weights = results["input_weight"], results["recurrent_weight"], outside, inside, results.get("peephole")
    return [results["source"], *weights, *last]


def _sum_of_biases(how: Any, bias_ih: Tensor | None, bias_hh: Tensor | None) -> tuple[Tensor | None, list[Copy]]:
    """Return the sum, and copies to make before the call.

    The candidate's biases are not added if the reset gate is applied between them. The first one is copied instead.
    """
    if bias_ih is None or bias_hh is None:
        return None, []
    bias = bias_ih + bias_hh
    if not getattr(how, "reset_after", False):
        return bias, []
    count = bias.shape[0] // 3
    if bias_ih.shape != bias.shape or bias_ih.dtype != bias.dtype or not bias_ih.is_contiguous():
        bias[2 * count :] = bias_ih.expand_as(bias)[2 * count :]
        return bias, []
    first, size = 2 * count * bias.itemsize, count * bias.itemsize
    return bias, [(bias.data_ptr() + first, bias_ih.data_ptr() + first, size)]


def _forward_call(function: str, how: Any, given: Operands, bias: Tensor | None) -> InPlaceCall:
    """Return a forward call with all of its arguments. Its bias is the sum of the layer's."""
    call = _begin(function, given)
    if bias is not None:
        call.give("bias", bias)
        if getattr(how, "reset_after", False) and given.bias_hh is not None:
            H = given.weight_hh.shape[1]
            call.give("secondary_bias", given.bias_hh, (H,), 2 * H)
    return call


def _begin(function: str, given: Operands) -> InPlaceCall:
    """Return a call with all operands but the biases."""
    state = given.source.shape[1], given.weight_hh.shape[1]
    call = InPlaceCall(function, given.source)
    call.give("recurrent_weight", given.weight_hh)
    call.give("input_weight", given.weight_ih)
    if given.h_0 is not None:
        call.give("init_state", given.h_0, state)
    if given.c_0 is not None:
        call.give("init_cell", given.c_0, state)
    if given.peephole is not None:
        call.give("peephole", given.peephole)
    if given.mask is not None:
        call.give("mask", given.mask)
    return call
