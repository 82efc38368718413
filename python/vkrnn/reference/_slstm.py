"""The sLSTM: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import Activation, SLSTMDescriptor
from vkrnn.reference._activations import Function, gate_functions
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
from vkrnn.results import SLSTMGradients, SLSTMOutputs

_GATES = (0, 1, 2, 3)  # i, f, z, o in memory
_ABSENT = "the descriptor has produce_cell=False and training=False"


class _Cell(NamedTuple):
    sum: Function  # of gates i and f: the identity, clamped if the descriptor has a `clip`
    z: Function
    o: Function
    exponential: bool
    gradient_clip: float | None

    @staticmethod
    def of(d: SLSTMDescriptor, z_state: ArrayLike | None = None) -> _Cell:
        numbers = SimpleNamespace(hard_sigmoid_alpha=0.0, hard_sigmoid_beta=0.0, clip=d.clip)
        gates = gate_functions(numbers, z_state)
        return _Cell(
            sum=gates[Activation.NONE],
            z=gates[Activation.TANH],
            o=gates[Activation.SIGMOID],
            exponential=d.forget_gate == "exponential",
            gradient_clip=d.gradient_clip,
        )

    def log_forget(self, f: Array) -> Array:
        if self.exponential:
            return f
        positive = f.real >= 0
        return np.where(positive, 0, f) - np.log1p(np.exp(np.where(positive, -f, f)))

    def log_forget_slope(self, f: Array) -> Array:
        return np.ones_like(f) if self.exponential else np.exp(self.log_forget(-f))


def _exp_of_at_most_0(x: Array) -> Array:
    return np.exp(np.where(x.real > 0, 0, x))


def _forward(
    cell: _Cell,
    x: Array,
    R: Array,
    mask: Array,
    h: Array,
    c: Array,
    n: Array,
    m: Array,
    resets: Resets,
    blends: Blends,
) -> tuple[Array, Array, Array, Array, Array]:
    rows = []
    for k in range(len(x)):
        r = resets.r[k]
        h, c = resets.state(k, h), resets.cell(k, c)
        n, m = r * np.where(r.real == 0, n.real, n), np.where(r.real == 0, 0, m)  # a complex step keeps n.real at 0
        a_i, a_f, a_z, a_o = x[k] + recur(h * mask[k], R)
        i_sum, f_sum, z, o = cell.sum.of(a_i), cell.sum.of(a_f), cell.z.of(a_z), cell.o.of(a_o)
        stays = cell.log_forget(f_sum) + m
        m = np.where((n.real == 0) | (i_sum.real >= stays.real), i_sum, stays)
        i, f = _exp_of_at_most_0(i_sum - m), _exp_of_at_most_0(stays - m)
        c = f * c + i * z
        n = f * n + i
        h = blends.state(k, o * c / n, h)
        rows.append((h, c, n, m, np.stack([i_sum, f_sum, z, o])))
    found = zip(*rows, strict=True)
    return tuple(np.stack(part) for part in found)  # type: ignore[return-value]


def _backward(
    cell: _Cell,
    state: Array,
    c: Array,
    n: Array,
    m: Array,
    R: Array,
    mask: Array,
    h0: Array,
    c0: Array,
    n0: Array,
    m0: Array,
    source_gradient: Array,
    dh: Array,
    cell_gradient: Array,
    normalizer_gradient: Array,
    stabilizer_gradient: Array,
    resets: Resets,
    blends: Blends,
) -> tuple[Array, Array, Array, Array, Array, Array, tuple[Array, Array, Array], Array]:
    i_sum, f_sum, z, o = state.swapaxes(0, 1)
    h = o * c / n
    h_end, c_end, n_end = before(h0, h if blends.hidden is None else blends.hidden), before(c0, c), before(n0, n)
    h_before, c_before, n_before = resets.state(EVERY_STEP, h_end), resets.cell(EVERY_STEP, c_end), resets.r * n_end
    m_before = np.where(resets.r.real == 0, 0, before(m0, m))
    # m is i~ itself where the step forgets all the past, also if both have been rounded to a 16-bit type. There i is 1,
    # elsewhere f is.
    enters = i_sum.real >= m.real
    stays = cell.log_forget(f_sum) + m_before
    i = np.where(enters, 1, np.exp(i_sum - m))
    f = np.where(enters, _exp_of_at_most_0(stays - m), 1)
    clamped = (n_before == 0) & (stays.real >= m.real)
    dc, dn, dm = np.zeros_like(c0), np.zeros_like(n0), np.zeros_like(m0)
    delta = np.empty_like(state + source_gradient[:, None])
    dh_reset, dc_reset, dn_reset, d_blend = (np.empty_like(delta[:, 0]) for _ in range(4))
    for k in reversed(range(len(c))):
        G, kept = blends.state_parts(k, source_gradient[k] + dh)
        d_blend[k] = (source_gradient[k] + dh) * (h[k] - h_before[k])
        dC = dc + cell_gradient[k] + G * o[k] / n[k]
        dN = dn + normalizer_gradient[k] - G * o[k] * c[k] / n[k] ** 2
        u = (dC * z[k] + dN) * i[k]
        v = np.where(clamped[k], 0, (dC * c_before[k] + dN * n_before[k]) * f[k])
        dM = dm + stabilizer_gradient[k] - u - v
        dm = v + np.where(enters[k], 0, dM)
        delta[k] = (
            (u + np.where(enters[k], dM, 0)) * cell.sum.slope(i_sum[k]),
            dm * cell.log_forget_slope(f_sum[k]) * cell.sum.slope(f_sum[k]),
            dC * i[k] * cell.z.slope(z[k]),
            G * c[k] / n[k] * cell.o.slope(o[k]),
        )
        r = resets.r[k]
        dh_reset[k], dc_reset[k], dn_reset[k] = recur_back(delta[k], R, mask[k]) + kept, dC * f[k], dN * f[k]
        dh, dc, dn = passed_on(r * dh_reset[k], cell.gradient_clip), r * dc_reset[k], r * dn_reset[k]
        dm = np.where(r == 0, 0, dm)
    dR = recur_weight_gradient(delta, h_before[:, None] * mask, R.shape[1])
    dr, *starts = resets.gradients(h_end, dh_reset, c_end, dc_reset)
    return delta, dR, dh, dc, dn, dm, (dr + n_end * dn_reset, *starts), d_blend


@public
def slstm(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    init_cell: ArrayLike | None = None,
    init_normalizer: ArrayLike | None = None,
    init_stabilizer: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    reset_cell: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: SLSTMDescriptor | None = None,
    name: str | None = None,
) -> SLSTMOutputs[Doubles]:
    """Run `vkrnn.slstm` in float64.

    {parameters}

    Examples
    --------
    >>> import numpy as np
    >>> slstm(np.zeros((5, 3, 8)), np.ones((8, 2)))
    Results(slstm: output [5, 3, 2] float64)
    """
    function = "slstm"
    options = resolve(function, descriptor, SLSTMDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _GATES)
    cell = _Cell.of(options)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.state("init_cell", init_cell),
        layout.state("init_normalizer", init_normalizer),
        layout.state("init_stabilizer", init_stabilizer),
        layout.resets(reset, reset_state, reset_cell),
        layout.blends(zoneout_mask, leak),
        strict=True,
    )
    h, c, n, m, z = zip(*(_forward(cell, *parts) for parts in directions), strict=True)
    results, absent = {"output": layout.join_states(h)}, {}
    for key, state in (("cell_output", c), ("normalizer_output", n), ("stabilizer_output", m)):
        if options.produce_cell or options.training:
            results[key] = layout.join_states(state)
        else:
            absent[key] = _ABSENT
    if options.training:
        results["z_state"] = layout.join_gates(z, of_source=False)
    else:
        absent["z_state"] = "the descriptor has training=False"
    return SLSTMOutputs(function, results, results.values(), absent)


@public
def slstm_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    source_gradient: ArrayLike | None,
    z_state: ArrayLike,
    cell_output_fwd: ArrayLike,
    normalizer_output_fwd: ArrayLike,
    stabilizer_output_fwd: ArrayLike,
    *,
    state_gradient: ArrayLike | None = None,
    cell_gradient: ArrayLike | None = None,
    normalizer_gradient: ArrayLike | None = None,
    stabilizer_gradient: ArrayLike | None = None,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    init_cell: ArrayLike | None = None,
    init_normalizer: ArrayLike | None = None,
    init_stabilizer: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    reset_cell: ArrayLike | None = None,
    output_fwd: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: SLSTMDescriptor | None = None,
    name: str | None = None,
) -> SLSTMGradients[Doubles]:
    """Compute `vkrnn.slstm_gradients` in float64.

    {parameters}
    """
    function = "slstm_gradients"
    options = resolve(function, descriptor, SLSTMDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _GATES)
    cell = _Cell.of(options, z_state)
    directions = zip(
        layout.z_state(z_state),
        layout.sequence("cell_output_fwd", cell_output_fwd),
        layout.sequence("normalizer_output_fwd", normalizer_output_fwd),
        layout.sequence("stabilizer_output_fwd", stabilizer_output_fwd),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.state("init_cell", init_cell),
        layout.state("init_normalizer", init_normalizer),
        layout.state("init_stabilizer", init_stabilizer),
        layout.upstream(source_gradient),
        layout.state("state_gradient", state_gradient),
        layout.last_or_each("cell_gradient", cell_gradient),
        layout.last_or_each("normalizer_gradient", normalizer_gradient),
        layout.last_or_each("stabilizer_gradient", stabilizer_gradient),
        layout.resets(reset, reset_state, reset_cell),
        layout.blends(zoneout_mask, leak, output_fwd=output_fwd, gradients=True),
        strict=True,
    )
    delta, dR, dh, dc, dn, dm, d_resets, d_blend = zip(*(_backward(cell, *parts) for parts in directions), strict=True)
    projected = layout.project_gradients(delta, x, W, bias)
    return pack_gradients(
        SLSTMGradients,
        function,
        {
            "source": projected["source"],
            "recurrent_weight": layout.join_weights(dR, weight),
            "input_weight": projected["input_weight"],
            "bias": projected["bias"],
            "init_state": layout.join_state(dh, init_state),
            "init_cell": layout.join_state(dc, init_cell),
            "init_normalizer": layout.join_state(dn, init_normalizer),
            "init_stabilizer": layout.join_state(dm, init_stabilizer),
            **layout.reset_gradients(d_resets, reset, reset_state, reset_cell),
            "leak": layout.leak_gradient(d_blend, leak),
        },
    )
