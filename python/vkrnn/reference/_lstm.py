"""The LSTM: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import LSTMDescriptor
from vkrnn.reference._activations import Function, functions, gate_functions
from vkrnn.reference._functions import public
from vkrnn.reference._layout import (
    Array,
    Doubles,
    Layout,
    as_double,
    as_double_or_none,
    before,
    pack_gradients,
    passed_on,
    recur,
    recur_back,
    recur_weight_gradient,
    resolve,
)
from vkrnn.reference._steps import EVERY_STEP, Blends, Resets
from vkrnn.results import LSTMGradients, LSTMOutputs


class _Cell(NamedTuple):
    i: Function
    f: Function
    z: Function
    o: Function
    g: Function
    output_peephole_new_cell: bool
    gradient_clip: float | None

    @staticmethod
    def of(d: LSTMDescriptor, z_state: ArrayLike | None = None) -> _Cell:
        gates = gate_functions(d, z_state)
        return _Cell(
            i=gates[d.input_gate_activation],
            f=gates[d.forget_gate_activation],
            z=gates[d.cell_gate_activation],
            o=gates[d.output_gate_activation],
            g=functions(d)[d.activation],
            output_peephole_new_cell=d.output_peephole_new_cell,
            gradient_clip=d.gradient_clip,
        )


def _gates(d: LSTMDescriptor) -> tuple[int, ...]:
    """Return the slots of i, f, z, o in memory."""
    return (0, 2, 1, 3) if d.forget_gate_last else (0, 1, 2, 3)


def _forward(
    cell: _Cell, x: Array, R: Array, p: Array, m: Array, h: Array, c: Array, resets: Resets, blends: Blends
) -> tuple[Array, Array, Array]:
    outputs, cells, states = [], [], []
    for k in range(len(x)):
        h, c = resets.state(k, h), resets.cell(k, c)
        a_i, a_f, a_z, a_o = x[k] + recur(h * m[k], R)
        p_i, p_f, p_z, p_o = p
        i, f, z = cell.i.of(a_i + p_i * c), cell.f.of(a_f + p_f * c), cell.z.of(a_z + p_z * c)
        c_before, c = c, f * c + i * z
        o = cell.o.of(a_o + p_o * (c if cell.output_peephole_new_cell else c_before))
        h = blends.state(k, o * cell.g.of(c), h)
        c = blends.cell(k, c, c_before)
        outputs.append(h)
        cells.append(c)
        states.append(np.stack([i, f, z, o]))
    return np.stack(outputs), np.stack(cells), np.stack(states)


def _backward(
    cell: _Cell,
    state: Array,
    c: Array,
    R: Array,
    p: Array,
    m: Array,
    h0: Array,
    c0: Array,
    source_gradient: Array,
    dh: Array,
    cell_gradient: Array,
    resets: Resets,
    blends: Blends,
) -> tuple[Array, Array, Array, Array, Array, tuple[Array, Array, Array], Array]:
    i, f, z, o = state.swapaxes(0, 1)
    dc = np.zeros_like(c0)
    c_end = before(c0, c)
    c_before = resets.cell(EVERY_STEP, c_end)
    c_new = c if blends.of_c is None else f * c_before + i * z
    y = cell.g.of(c_new)
    h_end = before(h0, o * y if blends.hidden is None else blends.hidden)
    h_before = resets.state(EVERY_STEP, h_end)
    p_before, p_o = p, p[3]
    if cell.output_peephole_new_cell:
        p_before = np.concatenate([p[:3], np.zeros_like(p[3:])])
    delta = np.empty_like(state + source_gradient[:, None])
    dh_reset, dc_reset, d_blend = (np.empty_like(delta[:, 0]) for _ in range(3))
    for k in reversed(range(len(c))):
        G, kept = blends.state_parts(k, source_gradient[k] + dh)
        dC, kept_c = blends.cell_parts(k, dc + cell_gradient[k])
        d_blend[k] = (source_gradient[k] + dh) * (o[k] * y[k] - h_before[k])
        d_o = G * y[k] * cell.o.slope(o[k])
        dC = dC + G * o[k] * cell.g.slope(y[k])
        if cell.output_peephole_new_cell:
            dC = dC + p_o * d_o
        delta[k] = (
            dC * z[k] * cell.i.slope(i[k]),
            dC * c_before[k] * cell.f.slope(f[k]),
            dC * i[k] * cell.z.slope(z[k]),
            d_o,
        )
        dc_reset[k] = dC * f[k] + (p_before * delta[k]).sum(axis=0) + kept_c
        dh_reset[k] = recur_back(delta[k], R, m[k]) + kept
        dh, dc = passed_on(resets.r[k] * dh_reset[k], cell.gradient_clip), resets.r[k] * dc_reset[k]
    dp = np.einsum("kgnh,knh->gh", delta, c_before)
    if cell.output_peephole_new_cell:
        dp[3] = (delta[:, 3] * c_new).sum(axis=(0, 1))
    dR = recur_weight_gradient(delta, h_before[:, None] * m, R.shape[1])
    return delta, dR, dp, dh, dc, resets.gradients(h_end, dh_reset, c_end, dc_reset), d_blend


@public
def lstm(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    init_cell: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    peephole: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    reset_cell: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    zoneout_cell_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: LSTMDescriptor | None = None,
    name: str | None = None,
) -> LSTMOutputs[Doubles]:
    """Run `vkrnn.lstm` in float64.

    {parameters}

    Examples
    --------
    >>> import numpy as np
    >>> lstm(np.zeros((5, 3, 8)), np.ones((8, 2)), descriptor=LSTMDescriptor(training=True))
    Results(lstm: output [5, 3, 2] float64, cell_output [5, 3, 2] float64, z_state [5, 3, 8] float64)
    """
    function = "lstm"
    options = resolve(function, descriptor, LSTMDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _gates(options))
    cell = _Cell.of(options)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.peephole(peephole),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.state("init_cell", init_cell),
        layout.resets(reset, reset_state, reset_cell),
        layout.blends(zoneout_mask, leak, zoneout_cell_mask),
        strict=True,
    )
    h, c, z = zip(*(_forward(cell, *parts) for parts in directions), strict=True)
    results, absent = {"output": layout.join_states(h)}, {}
    if options.produce_cell or options.training:
        results["cell_output"] = layout.join_states(c)
    else:
        absent["cell_output"] = "the descriptor has produce_cell=False and training=False"
    if options.training:
        results["z_state"] = layout.join_gates(z, of_source=False)
    else:
        absent["z_state"] = "the descriptor has training=False"
    return LSTMOutputs(function, results, results.values(), absent)


@public
def lstm_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    source_gradient: ArrayLike | None,
    z_state: ArrayLike,
    cell_output_fwd: ArrayLike,
    *,
    state_gradient: ArrayLike | None = None,
    cell_gradient: ArrayLike | None = None,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    init_cell: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    peephole: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    reset_cell: ArrayLike | None = None,
    output_fwd: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    zoneout_cell_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: LSTMDescriptor | None = None,
    name: str | None = None,
) -> LSTMGradients[Doubles]:
    """Compute `vkrnn.lstm_gradients` in float64.

    {parameters}
    """
    function = "lstm_gradients"
    options = resolve(function, descriptor, LSTMDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _gates(options))
    cell = _Cell.of(options, z_state)
    directions = zip(
        layout.z_state(z_state),
        layout.sequence("cell_output_fwd", cell_output_fwd),
        layout.recurrent(weight),
        layout.peephole(peephole),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.state("init_cell", init_cell),
        layout.upstream(source_gradient),
        layout.state("state_gradient", state_gradient),
        layout.last_or_each("cell_gradient", cell_gradient),
        layout.resets(reset, reset_state, reset_cell),
        layout.blends(zoneout_mask, leak, zoneout_cell_mask, output_fwd=output_fwd, gradients=True),
        strict=True,
    )
    delta, dR, dp, dh, dc, d_resets, d_blend = zip(*(_backward(cell, *parts) for parts in directions), strict=True)
    projected = layout.project_gradients(delta, x, W, bias)
    return pack_gradients(
        LSTMGradients,
        function,
        {
            "source": projected["source"],
            "recurrent_weight": layout.join_weights(dR, weight),
            "input_weight": projected["input_weight"],
            "bias": projected["bias"],
            "peephole": layout.join_weights(dp, peephole),
            "init_state": layout.join_state(dh, init_state),
            "init_cell": layout.join_state(dc, init_cell),
            **layout.reset_gradients(d_resets, reset, reset_state, reset_cell),
            "leak": layout.leak_gradient(d_blend, leak),
        },
    )
