"""Layers in one direction in place on a CUDA device, with as few operations of PyTorch as possible.

Each of these takes the host 5 to 20 microseconds, which is what small calls consist of. Parts of arguments and results
are addressed in their tensors, and the call itself copies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from vkrnn.torch._cuda_calls import Biases, Copy, InPlaceCall

__all__ = [
    "Gradients",
    "Operands",
    "backward_call",
    "backward_on_cuda",
    "forward_call",
    "forward_on_cuda",
    "sum_of_biases",
]


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
    bias, biases = sum_of_biases(how, given.bias_ih, given.bias_hh)
    call = forward_call(function, how, given, bias)
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
    call.run([tensor.data_ptr() for tensor in results.values()], after, biases)
    z_state = results.get("z_state")
    return output, h_n, c_n, z_state, None if z_state is None else cells


def backward_on_cuda(
    function: str,
    how: Any,
    above: tuple[Tensor | None, Tensor | None, Tensor | None],
    kept: dict[str, Tensor],
    given: Operands,
) -> list[Tensor | None]:
    """Compute what `compute_layer_backward` does.

    `above` are the gradients with respect to the output, h_n and c_n, and `kept` what the forward call has kept, by the
    names of the gradients' arguments.
    """
    call = backward_call(function, how, above, kept, given)
    found = Gradients(how, given, call.prepare(how))
    call.run(found.addresses, after=found.after)
    return found.tensors


def backward_call(
    function: str,
    how: Any,
    above: tuple[Tensor | None, Tensor | None, Tensor | None],
    kept: dict[str, Tensor],
    given: Operands,
) -> InPlaceCall:
    """Return a call with the arguments of `backward_on_cuda`."""
    source, bias_ih, bias_hh = given.source, given.bias_ih, given.bias_hh
    state = source.shape[1], given.weight_hh.shape[1]
    d_output, d_h_n, d_c_n = above
    call = _begin(function, given)
    if d_output is not None:
        call.give("source_gradient", d_output)
    for name, tensor in kept.items():
        call.give(name, tensor)
    if d_h_n is not None:
        call.give("state_gradient", d_h_n, state)
    if d_c_n is not None:
        call.give("cell_gradient", d_c_n, state)
    if bias_ih is not None and bias_hh is not None:
        call.give("bias", bias_ih.to(source.dtype))  # whose numbers are not read
        if getattr(how, "reset_after", False):
            call.give("secondary_bias", bias_hh, state[1:], 2 * state[1])
    return call


class Gradients:
    """Memory for the results of a backward call, with their addresses, and the copies to make after it."""

    def __init__(self, how: Any, given: Operands, results: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        source, H = given.source, given.weight_hh.shape[1]
        inside = None if given.bias_hh is None else source.new_empty(given.bias_hh.shape)  # with respect to bias_hh
        found: dict[str, Tensor] = {}
        self.addresses: list[int] = []
        self.after: list[Copy] = []
        for name, shape in results:
            if name == "secondary_bias" and inside is not None:  # the candidate's part of `inside`
                self.addresses.append(inside.data_ptr() + 2 * H * source.itemsize)
                continue
            found[name] = source.new_empty((1, *shape) if name in ("init_state", "init_cell") else shape)
            self.addresses.append(found[name].data_ptr())
        if inside is not None:
            rows = 2 * H if getattr(how, "reset_after", False) else inside.shape[0]
            self.after = [(inside.data_ptr(), found["bias"].data_ptr(), rows * source.itemsize)]
        weights = found["input_weight"], found["recurrent_weight"], found.get("bias"), inside, found.get("peephole")
        self.tensors = [found["source"], *weights, found.get("init_state"), found.get("init_cell")]


def sum_of_biases(how: Any, bias_ih: Tensor | None, bias_hh: Tensor | None) -> tuple[Tensor | None, Biases | None]:
    """Return the sum, or memory for it and what the call is to add there.

    The candidate's biases are not added if the reset gate is applied between them. The first one is copied instead.
    """
    if bias_ih is None or bias_hh is None:
        return None, None
    if (
        bias_ih.shape == bias_hh.shape
        and bias_ih.dtype == bias_hh.dtype
        and bias_ih.device == bias_hh.device
        and bias_ih.is_contiguous()
        and bias_hh.is_contiguous()
    ):
        bias = bias_ih.new_empty(bias_ih.shape)
        return bias, (bias.data_ptr(), bias_ih.data_ptr(), bias_hh.data_ptr())
    bias = bias_ih + bias_hh
    if getattr(how, "reset_after", False):
        count = bias.shape[0] // 3
        bias[2 * count :] = bias_ih.expand_as(bias)[2 * count :]
    return bias, None


def forward_call(function: str, how: Any, given: Operands, bias: Tensor | None) -> InPlaceCall:
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
