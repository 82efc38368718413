"""The single-gate RNN: forward and gradients of one direction, then the two public functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from vkrnn.descriptors import SingleGateRNNDescriptor
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
from vkrnn.results import Gradients, Outputs

GATES = (0,)


def _forward(f: Function, x: Array, R: Array, m: Array, h: Array) -> tuple[Array, Array]:
    outputs, states = [], []
    for k in range(len(x)):
        z = x[k] + recur(h * m[k], R)
        h = f.of(z[0])
        outputs.append(h)
        states.append(z)
    return np.stack(outputs), np.stack(states)


def _backward(
    f: Function, z: Array, R: Array, m: Array, h0: Array, source_gradient: Array, dh: Array
) -> tuple[Array, Array, Array]:
    y = f.of(z)
    h_before = before(h0, y[:, 0])
    delta = np.empty_like(z + source_gradient[:, None])
    for k in reversed(range(len(z))):
        delta[k] = (source_gradient[k] + dh) * f.slope(y[k])
        dh = recur_back(delta[k], R) * m[k]
    return delta, recur_weight_gradient(delta, h_before * m), dh


@QUIET
def single_gate_rnn(
    source: ArrayLike,
    recurrent_weight: ArrayLike,
    *,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
) -> Outputs[Doubles]:
    """Run a single-gate RNN over a sequence, in float64.

    Mirrors ``singleGateRNN(_:recurrentWeight:inputWeight:bias:initState:mask:descriptor:name:)`` and its shorter forms.
    T, N, I, H are time steps, batch, input and hidden features; D is 2 if the descriptor is bidirectional, else 1.

    Parameters
    ----------
    source : array_like, [T, N, I]
        Input sequence x; without `input_weight`, [T, N, H], bidirectional [T, N, 2H] (forward half first).
    recurrent_weight : array_like, [H, H], bidirectional [2, H, H]
        R, entry 0 for the forward direction.
    input_weight : array_like, [H, I], bidirectional [2H, I], optional
        W. Without it the source is added to the gates as it is.
    bias : array_like, [H], bidirectional [2H], optional
        b, zeros by default.
    init_state : array_like, [N, H], bidirectional [N, 2H], optional
        h[-1], zeros by default; [1, N, DH] is accepted too.
    mask : array_like, broadcasts to [T, N, H], bidirectional [T, N, 2H], optional
        m, ones by default. It multiplies the state where the state enters the recurrent product, and nothing else. Row
        t belongs to row t of the output.
    lengths : array_like of int, [N], optional
        Number of steps of each batch row, 0 to T, T by default. Past its end a row is zero in every result. Reverse
        order and the backward direction start at its end.
    descriptor : SingleGateRNNDescriptor, optional
        The defaults if not given.
    name : str, optional
        A label; has no effect.

    Returns
    -------
    Outputs
        ``output`` [T, N, DH]; with ``training`` also ``z_state`` [T, N, DH], the values before the activation.

    Raises
    ------
    ValueError
        If a shape is wrong.
    TypeError
        If the descriptor belongs to another function.

    Notes
    -----
    ::

        z[t] = x[t] W^T + b + (m[t] * h[t-1]) R^T
        h[t] = activation(z[t])

    With ``clip``, activation stands for the function of z[t] clamped to [-clip, clip]; `z_state` is not clamped.

    Examples
    --------
    >>> import numpy as np
    >>> single_gate_rnn(np.ones((5, 3, 4)), np.eye(4) / 2).output[:, 0, 0].tolist()
    [1.0, 1.5, 1.75, 1.875, 1.9375]
    """
    if lengths is not None:
        return run_by_length(single_gate_rnn, locals())
    function = "single_gate_rnn"
    options = resolve(function, descriptor, SingleGateRNNDescriptor)
    x, weight = as_double(source), as_double(recurrent_weight)
    W = None if input_weight is None else as_double(input_weight)
    layout = Layout.of(function, options, x, weight, W, GATES)
    directions = zip(
        layout.project(x, W, bias),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        strict=True,
    )
    f = gate_functions(options)[options.activation]
    h, z = zip(*(_forward(f, *parts) for parts in directions), strict=True)
    output = layout.join_states(h)
    if not options.training:
        return Outputs(function, ["output"], [output], {"z_state": "the descriptor has training=False"})
    return Outputs(function, ["output", "z_state"], [output, layout.join_gates(z, of_source=False)])


@QUIET
def single_gate_rnn_gradients(
    source: ArrayLike,
    recurrent_weight: ArrayLike,
    source_gradient: ArrayLike | None,
    z_state: ArrayLike,
    *,
    state_gradient: ArrayLike | None = None,
    input_weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    init_state: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
) -> Gradients[Doubles]:
    """Gradients of `single_gate_rnn` with respect to its inputs, in float64.

    Mirrors ``singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:stateGradient:inputWeight:bias:initState:
    mask:descriptor:name:)`` and its shorter forms. Inputs not listed here are those of `single_gate_rnn`.

    Parameters
    ----------
    source, recurrent_weight, input_weight, bias, init_state, mask, lengths, descriptor, name
        What the forward call was given; the descriptor's ``training`` has no effect here.
    source_gradient : array_like or None, [T, N, H], bidirectional [T, N, 2H]
        Gradient with respect to the output, row by row as the output came. None means zeros.
    z_state : array_like, [T, N, H], bidirectional [T, N, 2H]
        As the forward call returned it.
    state_gradient : array_like, [N, H], bidirectional [N, 2H], optional
        Gradient with respect to the state after each direction's last step, zeros by default. [1, N, DH] is accepted
        too.

    Returns
    -------
    Gradients
        ``source``, ``recurrent_weight``, then those of ``input_weight``, ``bias``, ``init_state`` that were given: each
        with the shape of the tensor itself.

    Raises
    ------
    ValueError
        If a shape is wrong.
    TypeError
        If the descriptor belongs to another function.

    Notes
    -----
    From the last step to the first, dh starting as `state_gradient`::

        d[t] = (source_gradient[t] + dh) * activation'(z[t])
        dh   = (d[t] R) * m[t]

    and from all steps together: dSource = d W, dW = sum d^T x, db = sum d, dR = sum d^T (m * h[t-1]),
    dInitState = the last dh. With ``clip``, activation' is 0 where the activation's argument was clamped.
    """
    if lengths is not None:
        return run_by_length(single_gate_rnn_gradients, locals())
    function = "single_gate_rnn_gradients"
    options = resolve(function, descriptor, SingleGateRNNDescriptor)
    x, weight = as_double(source), as_double(recurrent_weight)
    W = None if input_weight is None else as_double(input_weight)
    layout = Layout.of(function, options, x, weight, W, GATES)
    directions = zip(
        layout.z_state(z_state),
        layout.recurrent(weight),
        layout.mask(mask),
        layout.state("init_state", init_state),
        layout.upstream(source_gradient),
        layout.state("state_gradient", state_gradient),
        strict=True,
    )
    f = gate_functions(options, z_state)[options.activation]
    delta, dR, dh = zip(*(_backward(f, *parts) for parts in directions), strict=True)
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
        },
    )
