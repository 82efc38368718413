"""Calls as loops of PyTorch's operations, for derivatives that vkrnn has no kernels for.

These are second derivatives and forward mode. Derivatives are taken with torch.func, in any nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vkrnn._ops import equations
from vkrnn.convert._torch_layout import FORWARD, descriptor, torch_mode
from vkrnn.results import STATES
from vkrnn.torch._levels import apply_at_level, at_lower_levels, library
from vkrnn.torch._network import Inputs, Padding

__all__ = ["network_loop", "operation_loop", "pulled_back"]


class _PassedOn(torch.autograd.Function):
    """A state, whose gradient is clamped."""

    @staticmethod
    def forward(state: Tensor, limit: float) -> Tensor:
        found: Tensor = at_lower_levels(torch.ops.vkrnn.passed_on.default, (state, limit))
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, _output: Any) -> None:
        _, ctx.limit = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.clamp(-ctx.limit, ctx.limit), None

    @staticmethod
    def jvp(_ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.clone()


# An operator, because torch.func cannot apply a Function from within another operator, as levels of forward mode do.
library.define("passed_on(Tensor state, float limit) -> Tensor")
library.impl("passed_on", lambda state, _limit: state.clone(), "CompositeExplicitAutograd")
library.impl("passed_on", lambda *inputs: apply_at_level(_PassedOn, *inputs), "Autograd")
torch.library.register_vmap(
    "vkrnn::passed_on", lambda _, axes, state, limit: (torch.ops.vkrnn.passed_on(state, limit), axes[0])
)


class _Torch:
    """The operations of `vkrnn._ops.equations.Library`."""

    tanh, sigmoid, relu = staticmethod(torch.tanh), staticmethod(torch.sigmoid), staticmethod(torch.relu)
    log_sigmoid, exp = staticmethod(torch.nn.functional.logsigmoid), staticmethod(torch.exp)
    einsum = staticmethod(torch.einsum)

    def where(self, condition: Tensor, x: Tensor, y: Any) -> Tensor:
        return torch.where(condition, x, y)

    def clamp(self, x: Tensor, least: float | None, most: float | None) -> Tensor:
        return x.clamp(least, most)

    def concatenate(self, arrays: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(arrays), axis)

    def broadcast(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.expand(shape)

    def flip(self, x: Tensor) -> Tensor:
        return x.flip(0)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def wide(self, x: Tensor) -> Tensor:
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    def narrow(self, x: Tensor, like: Tensor) -> Tensor:
        return x.to(like.dtype)

    def factor(self, reset: Tensor, like: Tensor) -> Tensor:
        return 1 - reset.to(like.dtype) if reset.dtype == torch.bool else reset.to(like.dtype)

    def count(self, T: int, like: Tensor) -> Tensor:
        return torch.arange(T, device=like.device, dtype=torch.int64)

    def take(self, x: Tensor, steps: Tensor) -> Tensor:
        return torch.take_along_dim(x, steps.reshape(*steps.shape, *[1] * (x.dim() - 2)).long(), 0)

    def passed_on(self, h: Tensor, limit: float) -> Tensor:
        found: Tensor = torch.ops.vkrnn.passed_on(h, limit)
        return found

    def scan(self, step: Callable[[Any, Any], Any], carry: Any, rows: dict[str, Tensor]) -> Any:
        results = []
        for row in zip(*[each.unbind(0) for each in rows.values()], strict=True):
            carry, result = step(carry, dict(zip(rows, row, strict=True)))
            results.append(result)
        return carry, [torch.stack(each) for each in zip(*results, strict=True)]


_library = _Torch()


def operation_loop(cell: str, how: Any, given: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Compute a call of one of the functions. Return the sequences of its states and the last states by name."""
    lengths = given.get("lengths")
    if lengths is not None:
        given = given | {"lengths": lengths.to(_require(given["source"]).device)}
    return equations.run(_library, cell, how, given)


def network_loop(inputs: Inputs) -> tuple[Tensor, ...]:
    """Compute what `network` does: the output, h_n and, for LSTMs, c_n."""
    source, lengths, reset = inputs.source, inputs.lengths, inputs.reset
    between, padding = inputs.between, None
    zoneout = {"zoneout_mask": inputs.zoneout_masks or (), "zoneout_cell_mask": inputs.zoneout_cell_masks or ()}
    zoneout = {name: masks for name, masks in zoneout.items() if masks}
    if inputs.is_packed:
        with torch._C._DisableFuncTorch():  # noqa: SLF001 - it reads the lengths' numbers
            padding = Padding(_require(lengths), source.device)
        source, between = _padded(padding, source), [_padded(padding, each) for each in between]
        if reset is not None:
            reset = _padded(padding, reset.reshape(len(reset), -1))
        zoneout = {
            name: [each if each.dim() == 1 else _padded(padding, each) for each in masks]
            for name, masks in zoneout.items()
        }
    cell, D = FORWARD[torch_mode(inputs.mode)].__name__, inputs.directions
    how = descriptor(inputs.mode, bidirectional=D == 2)
    starts = [
        (state.initial, given)
        for state, given in zip(STATES, (inputs.h_0, inputs.c_0), strict=False)
        if given is not None
    ]
    starts += [
        (name, given)
        for name, given in zip(("reset_state", "reset_cell"), inputs.resets[1:], strict=True)
        if given is not None
    ]
    last: dict[str, list[Tensor]] = {}
    for layer in range(inputs.layers):
        given = _weights(inputs, layer, D, how) | {"source": source, "lengths": lengths, "reset": reset}
        for name, state in starts:
            given[name] = state[layer * D : (layer + 1) * D].transpose(0, 1).flatten(1)
        if inputs.masks:
            given["mask"] = inputs.masks[layer]
        for name, masks in zoneout.items():
            given[name] = masks[layer]
        found = operation_loop(cell, how, given)
        for state in STATES[:2]:
            if state.last in found:
                last.setdefault(state.last, []).extend(found[state.last].unflatten(1, (D, -1)).unbind(1))
        source = found["output"] * between[layer] if layer < len(between) else found["output"]
    output = source if padding is None else padding.pack(source)
    return output, *(torch.stack(each) for each in last.values())


def _padded(padding: Padding, packed: Tensor) -> Tensor:
    """Do what `Padding.pad` does, without writing in place."""
    T, N = padding.shape
    zeros = torch.zeros(T * N, packed.shape[1], dtype=packed.dtype, device=packed.device)
    return zeros.index_copy(0, padding.rows, packed).unflatten(0, (T, N))


def _weights(inputs: Inputs, layer: int, D: int, how: Any) -> dict[str, Tensor | None]:
    """Return a layer's weights as arguments of vkrnn's function; `from_torch_layout` does so for NumPy."""
    weight_ih, weight_hh, *more = inputs.weights[layer * inputs.each : (layer + 1) * inputs.each]
    given: dict[str, Tensor | None] = {
        "input_weight": weight_ih,
        "recurrent_weight": weight_hh.unflatten(0, (2, -1)) if D == 2 else weight_hh,
        "peephole": more.pop() if inputs.each % 2 else None,
    }
    if not more:
        return given
    bias_ih, bias_hh = more
    if getattr(how, "reset_after", False):
        gates = bias_hh.unflatten(0, (D, 3, -1))
        given["secondary_bias"] = gates[:, 2].flatten()
        bias_hh = torch.cat([gates[:, :2], torch.zeros_like(gates[:, 2:])], 1).flatten()
    given["bias"] = bias_ih + bias_hh
    return given


def _require(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # noqa: S101
    return tensor


def pulled_back(
    function: Callable[..., tuple[Tensor, ...]], primals: Sequence[Tensor], above: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Return the gradients of a function with respect to its arguments. Results whose `above` is None have none."""

    def shown(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(each for each, up in zip(function(*given), above, strict=True) if up is not None)

    _, pull = torch.func.vjp(shown, *primals)
    found: tuple[Tensor, ...] = pull(tuple(up for up in above if up is not None))
    return found
