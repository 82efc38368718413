"""The single-gate RNN: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import SingleGateRNNDescriptor
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
from vkrnn.results import Gradients, Outputs

GATES = (0,)


def _forward(
    f: Function, x: Array, R: Array, m: Array, h: Array, resets: Resets, blends: Blends
) -> tuple[Array, Array]:
    outputs, states = [], []
    for k in range(len(x)):
        h = resets.state(k, h)
        z = x[k] + recur(h * m[k], R)
        h = blends.state(k, f.of(z[0]), h)
        outputs.append(h)
        states.append(z)
    return np.stack(outputs), np.stack(states)


def _backward(
    f: Function,
    clip: float | None,
    z: Array,
    R: Array,
    m: Array,
    h0: Array,
    source_gradient: Array,
    dh: Array,
    resets: Resets,
    blends: Blends,
) -> tuple[Array, Array, Array, tuple[Array, Array, Array], Array]:
    y = f.of(z)
    h_end = before(h0, y[:, 0] if blends.hidden is None else blends.hidden)
    h_before = resets.state(EVERY_STEP, h_end)
    delta = np.empty_like(z + source_gradient[:, None])
    dh_reset, d_blend = np.empty_like(delta[:, 0]), np.empty_like(delta[:, 0])
    for k in reversed(range(len(z))):
        G, kept = blends.state_parts(k, source_gradient[k] + dh)
        d_blend[k] = (source_gradient[k] + dh) * (y[k, 0] - h_before[k])
        delta[k] = G * f.slope(y[k])
        dh_reset[k] = recur_back(delta[k], R, m[k]) + kept
        dh = passed_on(resets.r[k] * dh_reset[k], clip)
    dR = recur_weight_gradient(delta, h_before[:, None] * m, R.shape[1])
    return delta, dR, dh, resets.gradients(h_end, dh_reset), d_blend


@public
def single_gate_rnn(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
) -> Outputs[Doubles]:
    """Run `vkrnn.single_gate_rnn` in float64.

    {parameters}

    Examples
    --------
    >>> import numpy as np
    >>> single_gate_rnn(np.ones((5, 3, 4)), np.eye(4) / 2).output[:, 0, 0].tolist()
    [1.0, 1.5, 1.75, 1.875, 1.9375]
    """
    function = "single_gate_rnn"
    options = resolve(function, descriptor, SingleGateRNNDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, GATES)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.resets(reset, reset_state),
        layout.blends(zoneout_mask, leak),
        strict=True,
    )
    f = gate_functions(options)[options.activation]
    h, z = zip(*(_forward(f, *parts) for parts in directions), strict=True)
    output = layout.join_states(h)
    if not options.training:
        return Outputs(function, ["output"], [output], {"z_state": "the descriptor has training=False"})
    return Outputs(function, ["output", "z_state"], [output, layout.join_gates(z, of_source=False)])


@public
def single_gate_rnn_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike | None,
    source_gradient: ArrayLike | None,
    z_state: ArrayLike,
    *,
    state_gradient: ArrayLike | None = None,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    reset: ArrayLike | None = None,
    reset_state: ArrayLike | None = None,
    output_fwd: ArrayLike | None = None,
    zoneout_mask: ArrayLike | None = None,
    leak: ArrayLike | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
) -> Gradients[Doubles]:
    """Compute `vkrnn.single_gate_rnn_gradients` in float64.

    {parameters}
    """
    function = "single_gate_rnn_gradients"
    options = resolve(function, descriptor, SingleGateRNNDescriptor)
    x = as_double(source)
    weight, W = as_double_or_none(recurrent_weight), as_double_or_none(input_weight)
    layout = Layout.of(function, options, x, weight, W, GATES)
    directions = zip(
        layout.z_state(z_state),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.upstream(source_gradient),
        layout.state("state_gradient", state_gradient),
        layout.resets(reset, reset_state),
        layout.blends(zoneout_mask, leak, output_fwd=output_fwd, gradients=True),
        strict=True,
    )
    f = gate_functions(options, z_state)[options.activation]
    backward = functools.partial(_backward, f, options.gradient_clip)
    delta, dR, dh, d_resets, d_blend = zip(*(backward(*parts) for parts in directions), strict=True)
    projected = layout.project_gradients(delta, x, W, bias)
    return pack_gradients(
        Gradients,
        function,
        {
            "source": projected["source"],
            "recurrent_weight": layout.join_weights(dR, weight),
            "input_weight": projected["input_weight"],
            "bias": projected["bias"],
            "init_state": layout.join_state(dh, init_state),
            **layout.reset_gradients(d_resets, reset, reset_state),
            "leak": layout.leak_gradient(d_blend, leak),
        },
    )
