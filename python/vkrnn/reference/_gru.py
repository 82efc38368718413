"""The GRU: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import GRUDescriptor
from vkrnn.reference._activations import Function, gate_functions
from vkrnn.reference._layout import (
    QUIET,
    Array,
    Doubles,
    Layout,
    as_double,
    before,
    pack_gradients,
    recur,
    recur_back,
    recur_weight_gradient,
    resolve,
)
from vkrnn.reference._lengths import run_by_length
from vkrnn.results import GRUGradients, Outputs


class _Cell(NamedTuple):
    z: Function
    r: Function
    o: Function
    reset_after: bool
    flip_z: bool

    @staticmethod
    def of(d: GRUDescriptor, z_state: ArrayLike | None = None) -> _Cell:
        gates = gate_functions(d, z_state)
        return _Cell(
            z=gates[d.update_gate_activation],
            r=gates[d.reset_gate_activation],
            o=gates[d.output_gate_activation],
            reset_after=d.reset_after,
            flip_z=d.flip_z,
        )


def _gates(d: GRUDescriptor) -> tuple[int, ...]:
    """Return the slots of z, r, o in memory."""
    return (1, 0, 2) if d.reset_gate_first else (0, 1, 2)


def _forward(cell: _Cell, x: Array, R: Array, b2: Array, m: Array, h: Array) -> tuple[Array, Array]:
    outputs, states = [], []
    R_zr, R_o = R[:2], R[2:]
    for k in range(len(x)):
        x_z, x_r, x_o = x[k]
        hm = h * m[k]
        hm_z, hm_r = recur(hm, R_zr)
        z = cell.z.of(x_z + hm_z)
        r = cell.r.of(x_r + hm_r)
        cc = (recur(hm, R_o)[0] + b2) * r if cell.reset_after else recur(hm * r, R_o)[0]
        o = cell.o.of(cc + x_o)
        h = (1 - z) * h + z * o if cell.flip_z else z * h + (1 - z) * o
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
) -> tuple[Array, Array, Array, Array]:
    z, r, o = state.swapaxes(0, 1)
    R_zr, R_o = R[:2], R[2:]
    h_before = before(h0, h)
    hm = h_before * m
    q = hm @ R_o[0].T + b2  # used with reset_after only
    delta = np.empty_like(state + source_gradient[:, None])
    for k in reversed(range(len(h))):
        G = source_gradient[k] + dh
        if cell.flip_z:
            dz, do, dh = G * (o[k] - h_before[k]), G * z[k], G * (1 - z[k])
        else:
            dz, do, dh = G * (h_before[k] - o[k]), G * (1 - z[k]), G * z[k]
        d_z = dz * cell.z.slope(z[k])
        d_o = do * cell.o.slope(o[k])
        if cell.reset_after:
            d_r = d_o * q[k] * cell.r.slope(r[k])
            dh = dh + recur_back((d_o * r[k])[None], R_o) * m[k]
        else:
            du = recur_back(d_o[None], R_o)
            d_r = du * hm[k] * cell.r.slope(r[k])
            dh = dh + du * r[k] * m[k]
        delta[k] = d_z, d_r, d_o
        dh = dh + recur_back(delta[k, :2], R_zr) * m[k]
    d_candidate = delta[:, 2]  # gradient and operand of the candidate's recurrent product
    fed = hm * r
    if cell.reset_after:
        d_candidate, fed = d_candidate * r, hm
    dR = np.concatenate([recur_weight_gradient(delta[:, :2], hm), recur_weight_gradient(d_candidate[:, None], fed)])
    db2 = d_candidate.sum(axis=(0, 1)) if cell.reset_after else np.zeros_like(b2)
    return delta, dR, dh, db2


@QUIET
def gru(
    source: ArrayLike,
    recurrent_weight: ArrayLike,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    secondary_bias: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    descriptor: GRUDescriptor | None = None,
    name: str | None = None,
) -> Outputs[Doubles]:
    """Run a GRU over a sequence, in float64.

    Mirrors ``GRU(_:recurrentWeight:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:)`` and its shorter
    forms. T, N, I, H are time steps, batch, input and hidden features; D is 2 if the descriptor is bidirectional, else
    1. Axes of 3H hold the gates z, r, o one after the other (r, z, o with ``reset_gate_first``), axes of 6H those of
    the forward direction and then those of the backward one.

    Parameters
    ----------
    source : array_like, [T, N, I]
        Input sequence x; without `input_weight`, [T, N, 3H], bidirectional [T, N, 6H].
    recurrent_weight : array_like, [3H, H], bidirectional [2, 3H, H]
        R, entry 0 for the forward direction.
    input_weight : array_like, [3H, I], bidirectional [6H, I], optional
        W. Without it the source is added to the gates as it is.
    bias : array_like, [3H], bidirectional [6H], optional
        b, zeros by default.
    init_state : array_like, [N, H], bidirectional [N, 2H], optional
        h[-1], zeros by default; [1, N, DH] is accepted too.
    mask : array_like, broadcasts to [T, N, H], bidirectional [T, N, 2H], optional
        m, ones by default. It multiplies the state where that enters a recurrent product, and nothing else. Its rows
        are aligned with the rows of the output.
    secondary_bias : array_like, [H], bidirectional [2H], optional
        b2, added to the candidate's recurrent product, zeros by default. Used with ``reset_after`` only.
    lengths : array_like of int, [N], optional
        Number of steps of each batch row, 0 to T, T by default. Past its end a row is zero in every result. Reverse
        order and the backward direction start at its end.
    descriptor : GRUDescriptor, optional
        The defaults if not given.
    name : str, optional
        A label; has no effect.

    Returns
    -------
    Outputs
        ``output`` [T, N, DH]; with ``training`` also ``z_state`` [T, N, D3H], the gates after their activations, in the
        descriptor's gate order.

    Raises
    ------
    ValueError
        If a shape is wrong.
    TypeError
        If the descriptor belongs to another function.

    Notes
    -----
    With the gates' rows of W, R, b and f_z, f_r, f_o for the update, reset and output gate activations::

        z    = f_z(x[t] W_z^T + b_z + (m[t] * h[t-1]) R_z^T)
        r    = f_r(x[t] W_r^T + b_r + (m[t] * h[t-1]) R_r^T)
        u    = (m[t] * h[t-1] * r) R_o^T                            reset_after=False
        u    = ((m[t] * h[t-1]) R_o^T + b2) * r                     reset_after=True
        o    = f_o(x[t] W_o^T + b_o + u)
        h[t] = z * h[t-1] + (1 - z) * o                             flip_z=False
        h[t] = (1 - z) * h[t-1] + z * o                             flip_z=True

    With ``clip``, the sum that enters a gate's activation is clamped to [-clip, clip].

    Examples
    --------
    >>> import numpy as np
    >>> gru(np.zeros((5, 3, 12)), np.ones((2, 6, 2)), descriptor=GRUDescriptor(bidirectional=True))
    Results(gru: output [5, 3, 4] float64)
    """
    if lengths is not None:
        return run_by_length(gru, locals())
    function = "gru"
    options = resolve(function, descriptor, GRUDescriptor)
    x, weight = as_double(source), as_double(recurrent_weight)
    W = None if input_weight is None else as_double(input_weight)
    layout = Layout.of(function, options, x, weight, W, _gates(options))
    cell = _Cell.of(options)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.secondary_bias(secondary_bias),
        layout.mask(mask),
        layout.state("init_state", init_state),
        strict=True,
    )
    h, z = zip(*(_forward(cell, *parts) for parts in directions), strict=True)
    output = layout.join_states(h)
    if not options.training:
        return Outputs(function, ["output"], [output], {"z_state": "the descriptor has training=False"})
    return Outputs(function, ["output", "z_state"], [output, layout.join_gates(z, of_source=False)])


@QUIET
def gru_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike,
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
    descriptor: GRUDescriptor | None = None,
    name: str | None = None,
) -> GRUGradients[Doubles]:
    """Gradients of `gru` with respect to its inputs, in float64.

    Mirrors ``GRUGradients(_:recurrentWeight:sourceGradient:zState:outputFwd:stateGradient:inputWeight:bias:initState:
    mask:secondaryBias:descriptor:name:)`` and its shorter forms. Inputs not listed here are those of `gru`.

    Parameters
    ----------
    source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias, lengths, descriptor, name
        What the forward call was given; the descriptor's ``training`` has no effect here.
    source_gradient : array_like or None, [T, N, H], bidirectional [T, N, 2H]
        Gradient with respect to the output, row by row as the output came. None means zeros.
    z_state : array_like, [T, N, 3H], bidirectional [T, N, 6H]
        As the forward call returned it.
    output_fwd : array_like, [T, N, H], bidirectional [T, N, 2H]
        ``output`` as the forward call returned it.
    state_gradient : array_like, [N, H], bidirectional [N, 2H], optional
        Gradient with respect to the state after each direction's last step, zeros by default. [1, N, DH] is accepted
        too.

    Returns
    -------
    GRUGradients
        ``source``, ``recurrent_weight``, then those of ``input_weight``, ``bias``, ``init_state``, ``secondary_bias``
        that were given: each with the shape of the tensor itself. A secondary bias that is not used, because
        ``reset_after`` is False, has a gradient of zeros.

    Raises
    ------
    ValueError
        If a shape is wrong.
    TypeError
        If the descriptor belongs to another function.

    Notes
    -----
    From the last step to the first, dh starting as `state_gradient`, with each gate's activation' written through the
    gate, hm = m[t] * h[t-1] and q = hm R_o^T + b2 (where flip_z, swap z and 1 - z and the sign of the first)::

        G    = source_gradient[t] + dh
        d_z  = G * (h[t-1] - o) * z'       d_o = G * (1 - z) * o'       dh = G * z
        reset_after=False:    d_r = (d_o R_o) * hm * r'     dh += (d_o R_o) * r * m[t]
        reset_after=True:     d_r = d_o * q * r'            dh += ((d_o * r) R_o) * m[t]
        dh  += (d_z R_z + d_r R_r) * m[t]

    and from all steps together: dSource = d W, dW = sum d^T x, db = sum d, dInitState = the last dh,
    dR_z = sum d_z^T hm, dR_r = sum d_r^T hm, dR_o = sum d_o^T (hm * r), or with reset_after dR_o = sum (d_o * r)^T hm
    and db2 = sum d_o * r. With ``clip``, a gate's derivative is 0 where its sum was clamped.
    """
    if lengths is not None:
        return run_by_length(gru_gradients, locals())
    function = "gru_gradients"
    options = resolve(function, descriptor, GRUDescriptor)
    x, weight = as_double(source), as_double(recurrent_weight)
    W = None if input_weight is None else as_double(input_weight)
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
        strict=True,
    )
    delta, dR, dh, db2 = zip(*(_backward(cell, *parts) for parts in directions), strict=True)
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
        },
    )
