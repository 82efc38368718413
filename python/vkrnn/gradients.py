"""The gradient operations: gradients of the functions in `vkrnn.operations`."""

from __future__ import annotations

from vkrnn._base.generics import A
from vkrnn._base.warnings import warn_of_unused_bias
from vkrnn._ops.calls import call
from vkrnn._ops.documentation import documented
from vkrnn._ops.types import Integers, Out, Tensor
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.devices import DeviceLike
from vkrnn.results import Gradients, GRUGradients, LSTMGradients, SLSTMGradients

__all__ = ["gru_gradients", "lstm_gradients", "single_gate_rnn_gradients", "slstm_gradients"]


@documented
def single_gate_rnn_gradients(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    source_gradient: Tensor[A] | None,
    z_state: Tensor[A],
    *,
    state_gradient: Tensor[A] | None = None,
    input_weight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    init_state: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    lengths: Integers | None = None,
    reset: Tensor[A] | None = None,
    reset_state: Tensor[A] | None = None,
    output_fwd: Tensor[A] | None = None,
    zoneout_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> Gradients[A]:
    """Compute the gradients of `single_gate_rnn` with respect to its arguments.

    {forward_again}

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
    {source_gradient}
    {z_state}
    {state_gradient}
    {input_weight}
    {bias}
    {init_state}
    {mask}
    {lengths}
    {reset}
    {reset_state}
    {output_fwd}
    {zoneout_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    Gradients
        ``source``, ``recurrent_weight``, ``input_weight``, ``bias``, ``init_state``, ``reset``, ``reset_state``,
        ``leak``: the gradient with respect to the argument of that name, in its shape. Gradients of arguments that were
        not given are left out.

    {raises}

    {gradient_warnings}

    See Also
    --------
    single_gate_rnn, vkrnn.reference.single_gate_rnn_gradients

    Notes
    -----
    From the last step to the first, with dh = `state_gradient` at first::

        d[t] = (source_gradient[t] + dh) * activation'(z[t])
        dh   = (d[t] R) * m[t]

    and then ``source = d W``, ``recurrent_weight = sum d[t]^T (h[t-1] * m[t])``, ``input_weight = sum d[t]^T x[t]``,
    ``bias = sum d[t]``, and ``init_state`` is the last dh. With ``clip``, activation' is 0 where z[t] was clamped. With
    ``gradient_clip``, each new dh is clamped to [-gradient_clip, gradient_clip].

    With `reset`, h[t-1] is the state after the reset. With g = dh, its gradient, and u the state before the reset,
    ``reset = sum (u - s) g``, ``reset_state = sum (1 - r[t]) g``, and the step before gets r[t] g.

    With `zoneout_mask` or `leak`, h[t] in these equations is the cell's new h, before the blend. With k the mask or the
    leak and g = source_gradient[t] + dh, the new h gets k[t] g and h[t-1] gets (1 - k[t]) g, which is added to dh
    before it is clamped; ``leak = sum (h[t] - h[t-1]) g``.

    Mirrors MPSGraph's ``singleGateRNNGradients(_:recurrentWeight:sourceGradient:zState:stateGradient:inputWeight:``
    ``bias:initState:mask:descriptor:name:)`` and its shorter forms.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((3, 1, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    >>> training = vkrnn.SingleGateRNNDescriptor(training=True)
    >>> output, z_state = vkrnn.single_gate_rnn(source, weight, descriptor=training)
    >>> single_gate_rnn_gradients(source, weight, np.ones_like(output), z_state).source.ravel()
    array([1.75, 1.5 , 1.  ], dtype=float32)
    """
    saved = source, recurrent_weight, source_gradient, z_state, state_gradient
    steps = reset, reset_state, output_fwd, zoneout_mask, leak
    arrays = *saved, input_weight, bias, init_state, mask, lengths, *steps
    return call(Gradients, "single_gate_rnn_gradients", arrays, descriptor, name, device, out)


@documented
def lstm_gradients(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    source_gradient: Tensor[A] | None,
    z_state: Tensor[A],
    cell_output_fwd: Tensor[A],
    *,
    state_gradient: Tensor[A] | None = None,
    cell_gradient: Tensor[A] | None = None,
    input_weight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    init_state: Tensor[A] | None = None,
    init_cell: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    peephole: Tensor[A] | None = None,
    lengths: Integers | None = None,
    reset: Tensor[A] | None = None,
    reset_state: Tensor[A] | None = None,
    reset_cell: Tensor[A] | None = None,
    output_fwd: Tensor[A] | None = None,
    zoneout_mask: Tensor[A] | None = None,
    zoneout_cell_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: LSTMDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> LSTMGradients[A]:
    """Compute the gradients of `lstm` with respect to its arguments.

    {forward_again}

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
    {source_gradient}
    {z_state}
    cell_output_fwd : array, [T, N, H], bidirectional [T, N, 2H]
        The ``cell_output`` of the forward call.
    {state_gradient}
    {cell_gradient}
    {input_weight}
    {bias}
    {init_state}
    {init_cell}
    {mask}
    {peephole}
    {lengths}
    {reset}
    {reset_state}
    {reset_cell}
    {output_fwd}
    {zoneout_mask}
    {zoneout_cell_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    LSTMGradients
        ``source``, ``recurrent_weight``, ``input_weight``, ``bias``, ``peephole``, ``init_state``, ``init_cell``,
        ``reset``, ``reset_state``, ``reset_cell``, ``leak``: the gradient with respect to the argument of that name, in
        its shape. Gradients of arguments that were not given are left out.

    {raises}

    {gradient_warnings}

    See Also
    --------
    lstm, vkrnn.reference.lstm_gradients

    Notes
    -----
    From the last step to the first, with dh = `state_gradient` and dc = 0 at first, y = activation(c[t]), and primes
    for derivatives::

        G   = source_gradient[t] + dh            dC  = dc + cell_gradient[t] + G * o * y'
        d_i = dC * z * i'                        d_f = dC * c[t-1] * f'
        d_z = dC * i * z'                        d_o = G * y * o'
        dc  = dC * f + p_i * d_i + p_f * d_f + p_z * d_z + p_o * d_o
        dh  = (d_i R_i + d_f R_f + d_z R_z + d_o R_o) * m[t]

    where a `cell_gradient` of the last step is zero in the others, and then ``source = d W``,
    ``recurrent_weight = sum d[t]^T (h[t-1] * m[t])``, ``input_weight = sum d[t]^T x[t]``, ``bias = sum d[t]``,
    ``peephole = sum d[t] * c[t-1]``; ``init_state`` and ``init_cell`` are the last dh and dc.

    With ``output_peephole_new_cell``, dC has the term p_o * d_o instead of dc, and the peephole's gradient has
    sum d_o * c[t] for the output gate. With ``clip``, a gate's derivative is 0 where its sum was clamped. With
    ``gradient_clip``, each new dh is clamped to [-gradient_clip, gradient_clip].

    With `reset`, h[t-1] and c[t-1] are the states after the reset. With g = dh or dc, the gradient of such a state, and
    u the state before the reset, ``reset = sum (u - s) g``, ``reset_state = sum (1 - r[t]) g`` (``reset_cell``
    likewise), and the step before gets r[t] g.

    With `zoneout_mask` or `leak`, h[t] in these equations is the cell's new h, before the blend. With k the mask or the
    leak and g = source_gradient[t] + dh, the new h gets k[t] g and h[t-1] gets (1 - k[t]) g, which is added to dh
    before it is clamped; ``leak = sum (h[t] - h[t-1]) g``. With `zoneout_cell_mask`, c is shared out likewise.

    Mirrors MPSGraph's ``LSTMGradients(_:recurrentWeight:sourceGradient:zState:cellOutputFwd:stateGradient:``
    ``cellGradient:inputWeight:bias:initState:initCell:mask:peephole:descriptor:name:)`` and its shorter forms.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 8), np.float32), np.zeros((8, 2), np.float32)
    >>> h, c, z = vkrnn.lstm(source, weight, descriptor=vkrnn.LSTMDescriptor(training=True))
    >>> lstm_gradients(source, weight, np.ones_like(h), z, c)
    Results(lstm_gradients: source [5, 3, 8] float32, recurrent_weight [8, 2] float32)
    """
    saved = source, recurrent_weight, source_gradient, z_state, cell_output_fwd, state_gradient, cell_gradient
    steps = reset, reset_state, reset_cell, output_fwd, zoneout_mask, zoneout_cell_mask, leak
    arrays = *saved, input_weight, bias, init_state, init_cell, mask, peephole, lengths, *steps
    return call(LSTMGradients, "lstm_gradients", arrays, descriptor, name, device, out)


@documented
def gru_gradients(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    source_gradient: Tensor[A] | None,
    z_state: Tensor[A],
    output_fwd: Tensor[A],
    *,
    state_gradient: Tensor[A] | None = None,
    input_weight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    init_state: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    secondary_bias: Tensor[A] | None = None,
    lengths: Integers | None = None,
    reset: Tensor[A] | None = None,
    reset_state: Tensor[A] | None = None,
    zoneout_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: GRUDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> GRUGradients[A]:
    """Compute the gradients of `gru` with respect to its arguments.

    {forward_again}

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
    {source_gradient}
    {z_state}
    output_fwd : array, [T, N, H], bidirectional [T, N, 2H]
        The ``output`` of the forward call.
    {state_gradient}
    {input_weight}
    {bias}
    {init_state}
    {mask}
    {secondary_bias}
    {lengths}
    {reset}
    {reset_state}
    {zoneout_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    GRUGradients
        ``source``, ``recurrent_weight``, ``input_weight``, ``bias``, ``init_state``, ``secondary_bias``, ``reset``,
        ``reset_state``, ``leak``: the gradient with respect to the argument of that name, in its shape. Gradients of
        arguments that were not given are left out.

    {raises}

    {gradient_warnings}

    See Also
    --------
    gru, vkrnn.reference.gru_gradients

    Notes
    -----
    From the last step to the first, with dh = `state_gradient` at first, hm = h[t-1] * m[t], and primes for
    derivatives. These equations are without flip_z, which swaps z and 1 - z::

        G   = source_gradient[t] + dh
        d_z = G * (h[t-1] - o) * z'              d_o = G * (1 - z) * o'

        d_r = (d_o R_o) * hm * r'                                   or, with reset_after,
        d_r = d_o * (hm R_o^T + b2) * r'
        dh  = G * z + (d_z R_z + d_r R_r + (d_o R_o) * r) * m[t]    or, with reset_after,
        dh  = G * z + (d_z R_z + d_r R_r + (d_o * r) R_o) * m[t]

    The gradients of the weights are the sums over all steps as in `lstm_gradients`; ``secondary_bias`` is
    sum d_o * r, zeros without reset_after; ``init_state`` is the last dh. With ``clip``, a gate's derivative is 0 where
    its sum was clamped. With ``gradient_clip``, each new dh is clamped to [-gradient_clip, gradient_clip].

    With `reset`, h[t-1] is the state after the reset. With g = dh, its gradient, and u the state before the reset,
    ``reset = sum (u - s) g``, ``reset_state = sum (1 - r[t]) g``, and the step before gets r[t] g.

    With `zoneout_mask` or `leak`, h[t] in these equations is the cell's new h, before the blend. With k the mask or the
    leak and g = source_gradient[t] + dh, the new h gets k[t] g and h[t-1] gets (1 - k[t]) g, which is added to dh
    before it is clamped; ``leak = sum (h[t] - h[t-1]) g``.

    Mirrors MPSGraph's ``GRUGradients(_:recurrentWeight:sourceGradient:zState:outputFwd:stateGradient:inputWeight:``
    ``bias:initState:mask:secondaryBias:descriptor:name:)`` and its shorter forms.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 6), np.float32), np.zeros((6, 2), np.float32)
    >>> h, z = vkrnn.gru(source, weight, descriptor=vkrnn.GRUDescriptor(training=True))
    >>> gru_gradients(source, weight, np.ones_like(h), z, h).recurrent_weight.shape
    (6, 2)
    """
    warn_of_unused_bias("[gru_gradients]", secondary_bias, descriptor)
    saved = source, recurrent_weight, source_gradient, z_state, output_fwd, state_gradient
    steps = reset, reset_state, zoneout_mask, leak
    arrays = *saved, input_weight, bias, init_state, mask, secondary_bias, lengths, *steps
    return call(GRUGradients, "gru_gradients", arrays, descriptor, name, device, out)


@documented
def slstm_gradients(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    source_gradient: Tensor[A] | None,
    z_state: Tensor[A],
    cell_output_fwd: Tensor[A],
    normalizer_output_fwd: Tensor[A],
    stabilizer_output_fwd: Tensor[A],
    *,
    state_gradient: Tensor[A] | None = None,
    cell_gradient: Tensor[A] | None = None,
    normalizer_gradient: Tensor[A] | None = None,
    stabilizer_gradient: Tensor[A] | None = None,
    input_weight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    init_state: Tensor[A] | None = None,
    init_cell: Tensor[A] | None = None,
    init_normalizer: Tensor[A] | None = None,
    init_stabilizer: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    lengths: Integers | None = None,
    reset: Tensor[A] | None = None,
    reset_state: Tensor[A] | None = None,
    reset_cell: Tensor[A] | None = None,
    output_fwd: Tensor[A] | None = None,
    zoneout_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: SLSTMDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> SLSTMGradients[A]:
    """Compute the gradients of `slstm` with respect to its arguments.

    {forward_again}

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
    {source_gradient}
    {z_state}
    cell_output_fwd : array, [T, N, H], bidirectional [T, N, 2H]
        The ``cell_output`` of the forward call.
    normalizer_output_fwd : array, [T, N, H], bidirectional [T, N, 2H]
        Its ``normalizer_output``.
    stabilizer_output_fwd : array, [T, N, H], bidirectional [T, N, 2H]
        Its ``stabilizer_output``.
    {state_gradient}
    {cell_gradient}
    {normalizer_gradient}
    {stabilizer_gradient}
    {input_weight}
    {bias}
    {init_state}
    {init_cell}
    {init_normalizer}
    {init_stabilizer}
    {mask}
    {lengths}
    {reset}
    {reset_state}
    {reset_cell}
    {output_fwd}
    {zoneout_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    SLSTMGradients
        ``source``, ``recurrent_weight``, ``input_weight``, ``bias``, ``init_state``, ``init_cell``,
        ``init_normalizer``, ``init_stabilizer``, ``reset``, ``reset_state``, ``reset_cell``, ``leak``: the gradient
        with respect to the argument of that name, in its shape. Gradients of arguments that were not given, and of a
        `reset` of bool, are left out.

    {raises}

    {gradient_warnings}

    See Also
    --------
    slstm, vkrnn.reference.slstm_gradients

    Notes
    -----
    From the last step to the first, with dh = `state_gradient` and dc = dn = dm = 0 at first, e = 1 where
    m[t] = i~ and 0 elsewhere, and f' = sigmoid(-f~), or 1 with an exponential forget gate::

        G   = source_gradient[t] + dh
        dC  = dc + cell_gradient[t] + G * o / n[t]
        dN  = dn + normalizer_gradient[t] - G * o * c[t] / n[t]^2
        u   = (dC * z + dN) * i                  v   = (dC * c[t-1] + dN * n[t-1]) * f
        dM  = dm + stabilizer_gradient[t] - u - v
        d_i = u + e * dM                         d_f = (v + (1 - e) * dM) * f'
        d_z = dC * i * (1 - z^2)                 d_o = G * c[t] / n[t] * o * (1 - o)
        dc  = dC * f                             dn  = dN * f
        dm  = v + (1 - e) * dM                   dh  = (d_i R_i + d_f R_f + d_z R_z + d_o R_o) * m'[t]

    where gradients of the last step alone are zero in the others, v is 0 where f was clamped, and then
    ``source = d W``, ``recurrent_weight = sum d[t]^T (h[t-1] * m'[t])``, ``input_weight = sum d[t]^T x[t]``,
    ``bias = sum d[t]``; the gradients of the initial states are the last dh, dc, dn and dm. With ``clip``, the
    gradient of a gate is 0 where its sum was clamped. With ``gradient_clip``, each new dh is clamped to
    [-gradient_clip, gradient_clip].

    With `zoneout_mask` or `leak`, h[t] in these equations is the cell's new h, before the blend. With k the mask or the
    leak and g = source_gradient[t] + dh, the new h gets k[t] g and h[t-1] gets (1 - k[t]) g, which is added to dh
    before it is clamped; ``leak = sum (h[t] - h[t-1]) g``.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 8), np.float32), np.zeros((8, 2), np.float32)
    >>> h, c, n, m, z = vkrnn.slstm(source, weight, descriptor=vkrnn.SLSTMDescriptor(training=True))
    >>> slstm_gradients(source, weight, np.ones_like(h), z, c, n, m)
    Results(slstm_gradients: source [5, 3, 8] float32, recurrent_weight [8, 2] float32)
    """
    kept = z_state, cell_output_fwd, normalizer_output_fwd, stabilizer_output_fwd
    upstream = state_gradient, cell_gradient, normalizer_gradient, stabilizer_gradient
    states = init_state, init_cell, init_normalizer, init_stabilizer
    steps = lengths, reset, reset_state, reset_cell, output_fwd, zoneout_mask, leak
    arrays = source, recurrent_weight, source_gradient, *kept, *upstream, input_weight, bias, *states, mask, *steps
    return call(SLSTMGradients, "slstm_gradients", arrays, descriptor, name, device, out)
