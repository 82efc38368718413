"""LSTM and GRU with a dropout mask of the state for each gate, for tensors of PyTorch.

vkrnn's functions have one mask for all gates. Here, each time step is a batched product over the gates and a few
operations that write to buffers; the derivatives that do not depend on later steps are computed for all steps at once.
G, N and H are the gates, the batch rows and the units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vkrnn.convert._keras import keras_descriptor
from vkrnn.descriptors import Activation

__all__ = ["run"]


class _Function(NamedTuple):
    """An activation in place, and its derivative by its value."""

    apply: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


_ACTIVATIONS = {
    Activation.NONE: _Function(lambda p: p, torch.ones_like),
    Activation.RELU: _Function(Tensor.relu_, lambda a: (a > 0).to(a.dtype)),
    Activation.TANH: _Function(Tensor.tanh_, lambda a: 1 - a * a),
    Activation.SIGMOID: _Function(Tensor.sigmoid_, lambda a: a * (1 - a)),
}


def _function(activation: Activation, descriptor: Any) -> _Function:
    if activation is not Activation.HARD_SIGMOID:
        return _ACTIVATIONS[activation]
    slope = descriptor.hard_sigmoid_alpha
    return _Function(
        lambda p: p.mul_(slope).add_(0.5).clamp_(0, 1), lambda a: ((a > 0) & (a < 1)).to(a.dtype).mul_(slope)
    )


def run(
    cell: Any, kind: str, rows: Tensor, recurrent: Tensor, second: Tensor | None, states: list[Tensor], masks: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the rows of outputs [T, N, H], and of an LSTM's cells.

    Parameters
    ----------
    cell : keras.layers.LSTMCell or GRUCell
    kind : "LSTM" or "GRU"
    rows : [T, N, GH]
        Products of the inputs, with the biases.
    recurrent : [H, GH]
    second : [H] or None
        A reset-after GRU's bias within the reset.
    states : list of [N, H]
    masks : [G, N, H]
        They have no gradient.
    """
    descriptor = keras_descriptor(keras, kind, cell, reverse=False)
    T, N, _ = rows.shape
    G, _, H = masks.shape
    gates = rows.view(T, N, G, H).transpose(1, 2)
    weights = recurrent.view(H, G, H).transpose(0, 1).contiguous()
    if kind == "LSTM":
        inner = _function(descriptor.input_gate_activation, descriptor), _function(descriptor.activation, descriptor)
        return _LSTM.apply(gates.contiguous(), weights, states[0], states[1], masks, *inner)  # type: ignore[no-any-return]
    inner = (
        _function(descriptor.update_gate_activation, descriptor),
        _function(descriptor.output_gate_activation, descriptor),
    )
    if not cell.reset_after:
        return _GRUResetBefore.apply(gates.contiguous(), weights, states[0], masks, *inner), None
    within = torch.zeros(H, dtype=rows.dtype, device=rows.device) if second is None else second
    entering = torch.cat([gates[:, :2], within.expand(T, 1, N, H)], dim=1)
    return _GRUResetAfter.apply(entering, gates[:, 2].contiguous(), weights, states[0], masks, *inner), None


class _LSTM(torch.autograd.Function):
    """Gates i, f, c, o."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, R: Tensor, h0: Tensor, c0: Tensor, m: Tensor, gate: _Function, inner: _Function
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs and the cells, [T, N, H]."""
        T, _, N, H = x.shape
        hm, a = _steps_of(x), torch.empty_like(x)
        outputs, cells, squashed = (x.new_empty(T, N, H) for _ in range(3))
        h, c = h0, c0
        steps = zip(*(tensor.unbind() for tensor in (x, hm, a, outputs, cells, squashed)), strict=True)
        for x_t, hm_t, a_t, h_t, c_t, s_t in steps:
            torch.baddbmm(x_t, torch.mul(m, h, out=hm_t), R, out=a_t)
            gate.apply(a_t[:2])
            inner.apply(a_t[2])
            gate.apply(a_t[3])
            i, f, z, o = a_t.unbind()
            torch.mul(f, c, out=c_t).addcmul_(i, z)
            inner.apply(s_t.copy_(c_t))
            torch.mul(o, s_t, out=h_t)
            h, c = h_t, c_t
        context.save_for_backward(R, c0, m, hm, a, cells, squashed)
        context.functions = gate, inner
        return outputs, cells

    @staticmethod
    @once_differentiable
    def backward(context: Any, d_outputs: Tensor, d_cells: Tensor) -> tuple[Any, ...]:
        """Return the gradients of x, R, h0 and c0."""
        R, c0, m, hm, a, cells, s = context.saved_tensors
        gate, inner = context.functions
        i, f, z, o = a.unbind(1)
        before = torch.cat([c0[None], cells[:-1]])
        of_o = s * gate.derivative(o)  # by dh
        of_s = o * inner.derivative(s)
        by_c = torch.stack([z * gate.derivative(i), before * gate.derivative(f), i * inner.derivative(z)], dim=1)
        d = _steps_of(a)
        transposed, masks = R.transpose(1, 2), m.unbind()
        dh, dc = torch.zeros_like(c0), torch.zeros_like(c0)
        through = torch.empty_like(m)
        each = zip(*(tensor.unbind() for tensor in (d_outputs, d_cells, of_o, of_s, by_c, f, d)), strict=True)
        for dh_t, dc_t, of_o_t, of_s_t, by_c_t, f_t, d_t in reversed(list(each)):
            dh = dh + dh_t
            dc = (dc + dc_t).addcmul_(dh, of_s_t)
            torch.mul(by_c_t, dc, out=d_t[:3])
            torch.mul(of_o_t, dh, out=d_t[3])
            dc.mul_(f_t)
            dh = _masked_sum(torch.bmm(d_t, transposed, out=through), masks)
        return d, _weight_gradient(hm, d), dh, dc, None, None, None


class _GRUResetAfter(torch.autograd.Function):
    """Gates z, r, h: the reset gate multiplies the candidate's recurrent product."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, xh: Tensor, R: Tensor, h0: Tensor, m: Tensor, gate: _Function, inner: _Function
    ) -> Tensor:
        """Return the outputs; `x` [T, 3, N, H] is added to the recurrent products, `xh` [T, N, H] after the reset."""
        hm, a = _steps_of(x), torch.empty_like(x)
        candidates, outputs = torch.empty_like(xh), torch.empty_like(xh)
        h = h0
        steps = zip(*(tensor.unbind() for tensor in (x, xh, hm, a, candidates, outputs)), strict=True)
        for x_t, xh_t, hm_t, a_t, new, h_t in steps:
            torch.baddbmm(x_t, torch.mul(m, h, out=hm_t), R, out=a_t)
            z, r, q = a_t.unbind()
            gate.apply(a_t[:2])
            inner.apply(torch.addcmul(xh_t, r, q, out=new))
            h = torch.lerp(new, h, z, out=h_t)
        context.save_for_backward(R, h0, m, hm, a, candidates, outputs)
        context.functions = gate, inner
        return outputs

    @staticmethod
    @once_differentiable
    def backward(context: Any, d_outputs: Tensor) -> tuple[Any, ...]:
        """Return the gradients of x, xh, R and h0."""
        R, h0, m, hm, a, candidates, outputs = context.saved_tensors
        gate, inner = context.functions
        z, r, q = a.unbind(1)
        before = torch.cat([h0[None], outputs[:-1]])
        of_new = (1 - z) * inner.derivative(candidates)
        by_h = torch.stack(
            [(before - candidates) * gate.derivative(z), of_new * q * gate.derivative(r), of_new * r], dim=1
        )
        d, dhs = _steps_of(a), torch.empty_like(outputs)
        transposed, masks = R.transpose(1, 2), m.unbind()
        through = torch.empty_like(m)
        dh = torch.zeros_like(h0)
        each = zip(*(tensor.unbind() for tensor in (d_outputs, by_h, z, d, dhs)), strict=True)
        for dh_t, by_h_t, z_t, d_t, sum_t in reversed(list(each)):
            torch.add(dh, dh_t, out=sum_t)
            torch.mul(by_h_t, sum_t, out=d_t)
            dh = _masked_sum(torch.bmm(d_t, transposed, out=through), masks).addcmul_(sum_t, z_t)
        return d, dhs.mul_(of_new), _weight_gradient(hm, d), dh, None, None, None


class _GRUResetBefore(torch.autograd.Function):
    """Gates z, r, h: the reset gate multiplies the state before the candidate's recurrent product."""

    @staticmethod
    def forward(context: Any, x: Tensor, R: Tensor, h0: Tensor, m: Tensor, gate: _Function, inner: _Function) -> Tensor:
        """Return the outputs; `x` [T, 3, N, H] is added to the recurrent products."""
        hm, a = _steps_of(x), torch.empty_like(x)
        outputs, reset = torch.empty_like(x[:, 0]), torch.empty_like(x[:, 0])
        first, last = R[:2], R[2]
        h = h0
        steps = zip(*(tensor.unbind() for tensor in (x, hm, a, outputs, reset)), strict=True)
        for x_t, hm_t, a_t, h_t, reset_t in steps:
            torch.mul(m, h, out=hm_t)
            gate.apply(torch.baddbmm(x_t[:2], hm_t[:2], first, out=a_t[:2]))
            z, r, new = a_t.unbind()
            torch.addmm(x_t[2], torch.mul(r, hm_t[2], out=reset_t), last, out=new)
            inner.apply(new)
            h = torch.lerp(new, h, z, out=h_t)
        context.save_for_backward(R, h0, m, hm, a, outputs, reset)
        context.functions = gate, inner
        return outputs

    @staticmethod
    @once_differentiable
    def backward(context: Any, d_outputs: Tensor) -> tuple[Any, ...]:
        """Return the gradients of x, R and h0."""
        R, h0, m, hm, a, outputs, reset = context.saved_tensors
        gate, inner = context.functions
        z, r, new = a.unbind(1)
        before = torch.cat([h0[None], outputs[:-1]])
        by_h = torch.stack([(before - new) * gate.derivative(z), (1 - z) * inner.derivative(new)], dim=1)
        of_r = hm[:, 2] * gate.derivative(r)  # by the gradient of r times the state
        masked = r * m[2]
        d, masks = _steps_of(a), m[:2].unbind()
        transposed, last = R[:2].transpose(1, 2), R[2].t()
        dh = torch.zeros_like(h0)
        each = zip(*(tensor.unbind() for tensor in (d_outputs, by_h, of_r, masked, z, d)), strict=True)
        for dh_t, by_h_t, of_r_t, masked_t, z_t, d_t in reversed(list(each)):
            dh = dh + dh_t
            torch.mul(by_h_t, dh, out=d_t[::2])
            through_reset = torch.mm(d_t[2], last)
            torch.mul(of_r_t, through_reset, out=d_t[1])
            later = _masked_sum(torch.bmm(d_t[:2], transposed), masks).addcmul_(dh, z_t)
            dh = later.addcmul_(through_reset, masked_t)
        entering = torch.cat([hm[:, :2], reset[:, None]], dim=1)
        return d, _weight_gradient(entering, d), dh, None, None, None


def _steps_of(like: Tensor) -> Tensor:
    """Return an empty [T, G, N, H] with the gates first in memory, as the products of all steps read it."""
    return torch.empty_like(like.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)


def _masked_sum(through: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
    """Return the sum over gates of the gradients of the masked states [G, N, H], times the masks."""
    first, *others = through.unbind()
    found = first * masks[0]
    for each, mask in zip(others, masks[1:], strict=True):
        found.addcmul_(each, mask)
    return found


def _weight_gradient(entering: Tensor, d: Tensor) -> Tensor:
    """Return the gradient [G, H, H] of the recurrent weights, from [T, G, N, H] before and after their products."""
    one, other = (tensor.transpose(0, 1).flatten(1, 2) for tensor in (entering, d))
    return torch.bmm(one.transpose(1, 2), other)
