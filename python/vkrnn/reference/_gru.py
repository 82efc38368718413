"""The GRU: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import GRUDescriptor
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
from vkrnn.results import GRUGradients, Outputs


class _Cell(NamedTuple):
    z: Function
    r: Function
    o: Function
    reset_after: bool
    flip_z: bool
    gradient_clip: float | None

    @staticmethod
    def of(d: GRUDescriptor, z_state: ArrayLike | None = None) -> _Cell:
        gates = gate_functions(d, z_state)
        return _Cell(
            z=gates[d.update_gate_activation],
            r=gates[d.reset_gate_activation],
            o=gates[d.output_gate_activation],
            reset_after=d.reset_after,
            flip_z=d.flip_z,
            gradient_clip=d.gradient_clip,
        )

    def new(self, z: Array, o: Array, h: Array) -> Array:
        """Return h after a step, before a blend."""
        new: Array = (1 - z) * h + z * o if self.flip_z else z * h + (1 - z) * o
        return new


def _gates(d: GRUDescriptor) -> tuple[int, ...]:
    """Return the slots of z, r, o in memory."""
    return (1, 0, 2) if d.reset_gate_first else (0, 1, 2)


def _forward(
    cell: _Cell, x: Array, R: Array, b2: Array, m: Array, h: Array, resets: Resets, blends: Blends
) -> tuple[Array, Array]:
    outputs, states = [], []
    R_zr, R_o = R[:2], R[2:]
    for k in range(len(x)):
        h = resets.state(k, h)
        x_z, x_r, x_o = x[k]
        hm = h * m[k]
        hm_z, hm_r = recur(hm[:2], R_zr)
        z = cell.z.of(x_z + hm_z)
        r = cell.r.of(x_r + hm_r)
        cc = (recur(hm[2:], R_o)[0] + b2) * r if cell.reset_after else recur(hm[2:] * r, R_o)[0]
        o = cell.o.of(cc + x_o)
        h = blends.state(k, cell.new(z, o, h), h)
        outputs.append(h)
        states.append(np.stack([z, r, o]))
    return np.stack(outputs), np.stack(states)


def _backward(
    cell: _Cell,
    state: Array,
    h: Array,
    R: Array,
    b2: Array,
    m: Array,
    h0: Array,
    source_gradient: Array,
    dh: Array,
    resets: Resets,
    blends: Blends,
) -> tuple[Array, Array, Array, Array, tuple[Array, Array, Array], Array]:
    z, r, o = state.swapaxes(0, 1)
    R_zr, R_o = R[:2], R[2:]
    h_end = before(h0, h)
    h_before = resets.state(EVERY_STEP, h_end)
    hm = h_before[:, None] * m
    hm_o = hm[:, 2]
    q = recur(hm_o[None], R_o)[0] + b2  # used with reset_after only
    delta = np.empty_like(state + source_gradient[:, None])
    dh_reset, d_blend = np.empty_like(delta[:, 0]), np.empty_like(delta[:, 0])
    for k in reversed(range(len(h))):
        G, kept = blends.state_parts(k, source_gradient[k] + dh)
        d_blend[k] = (source_gradient[k] + dh) * (cell.new(z[k], o[k], h_before[k]) - h_before[k])
        if cell.flip_z:
            dz, do, dh = G * (o[k] - h_before[k]), G * z[k], G * (1 - z[k])
        else:
            dz, do, dh = G * (h_before[k] - o[k]), G * (1 - z[k]), G * z[k]
        d_z = dz * cell.z.slope(z[k])
        d_o = do * cell.o.slope(o[k])
        if cell.reset_after:
            d_r = d_o * q[k] * cell.r.slope(r[k])
            dh = dh + recur_back((d_o * r[k])[None], R_o, m[k, 2:])
        else:
            du = recur_back(d_o[None], R_o)
            d_r = du * hm_o[k] * cell.r.slope(r[k])
            dh = dh + du * r[k] * m[k, 2]
        delta[k] = d_z, d_r, d_o
        dh_reset[k] = dh + recur_back(delta[k, :2], R_zr, m[k, :2]) + kept
        dh = passed_on(resets.r[k] * dh_reset[k], cell.gradient_clip)
    d_candidate = delta[:, 2]  # gradient and operand of the candidate's recurrent product
    fed = hm_o * r
    if cell.reset_after:
        d_candidate, fed = d_candidate * r, hm_o
    dR = np.concatenate(
        [
            recur_weight_gradient(delta[:, :2], hm[:, :2], R.shape[1]),
            recur_weight_gradient(d_candidate[:, None], fed[:, None], R.shape[1]),
        ]
    )
    db2 = d_candidate.sum(axis=(0, 1)) if cell.reset_after else np.zeros_like(b2)
    return delta, dR, dh, db2, resets.gradients(h_end, dh_reset), d_blend


@public
def gru(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    secondary_bias: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: GRUDescriptor | None = None,
    name: str | None = None,
) -> Outputs[Doubles]:
    """Run `vkrnn.gru` in float64.

    {parameters}

    Examples
    --------
    >>> import numpy as np
    >>> gru(np.zeros((5, 3, 12)), np.ones((2, 6, 2)), descriptor=GRUDescriptor(bidirectional=True))
    Results(gru: output [5, 3, 4] float64)
    """
    function = "gru"
    options = resolve(function, descriptor, GRUDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _gates(options))
    cell = _Cell.of(options)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.secondary_bias(secondary_bias),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.resets(reset, reset_state),
        layout.blends(zoneout_mask, leak),
        strict=True,
    )
    h, z = zip(*(_forward(cell, *parts) for parts in directions), strict=True)
    output = layout.join_states(h)
    if not options.training:
        return Outputs(function, ["output"], [output], {"z_state": "the descriptor has training=False"})
    return Outputs(function, ["output", "z_state"], [output, layout.join_gates(z, of_source=False)])


@public
def gru_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    source_gradient: ArrayLike | None,
    z_state: ArrayLike,
    output_fwd: ArrayLike,
    *,
    state_gradient: ArrayLike | None = None,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    secondary_bias: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: GRUDescriptor | None = None,
    name: str | None = None,
) -> GRUGradients[Doubles]:
    """Compute `vkrnn.gru_gradients` in float64.

    {parameters}
    """
    function = "gru_gradients"
    options = resolve(function, descriptor, GRUDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, _gates(options))
    cell = _Cell.of(options, z_state)
    directions = zip(
        layout.z_state(z_state),
        layout.sequence("output_fwd", output_fwd),
        layout.recurrent(weight),
        layout.secondary_bias(secondary_bias),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.upstream(source_gradient),
        layout.state("state_gradient", state_gradient),
        layout.resets(reset, reset_state),
        layout.blends(zoneout_mask, leak, output_fwd=output_fwd, gradients=True),
        strict=True,
    )
    delta, dR, dh, db2, d_resets, d_blend = zip(*(_backward(cell, *parts) for parts in directions), strict=True)
    projected = layout.project_gradients(delta, x, W, bias)
    return pack_gradients(
        GRUGradients,
        function,
        {
            "source": projected["source"],
            "recurrent_weight": layout.join_weights(dR, weight),
            "input_weight": projected["input_weight"],
            "bias": projected["bias"],
            "init_state": layout.join_state(dh, init_state),
            "secondary_bias": None if secondary_bias is None else np.concatenate(db2),
            **layout.reset_gradients(d_resets, reset, reset_state),
            "leak": layout.leak_gradient(d_blend, leak),
        },
    )
