"""The forward operations. Every mistake in the arguments raises an error before a device is used."""

from __future__ import annotations

from vkrnn._base.generics import A
from vkrnn._base.warnings import warn_of_unused_bias
from vkrnn._ops.calls import call
from vkrnn._ops.documentation import documented
from vkrnn._ops.types import Integers, Out, Tensor
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.devices import DeviceLike
from vkrnn.results import LSTMOutputs, Outputs, SLSTMOutputs

__all__ = ["gru", "lstm", "single_gate_rnn", "slstm"]


@documented
def single_gate_rnn(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    *,
    input_weight: Tensor[A] | None = None,
    bias: Tensor[A] | None = None,
    init_state: Tensor[A] | None = None,
    mask: Tensor[A] | None = None,
    lengths: Integers | None = None,
    reset: Tensor[A] | None = None,
    reset_state: Tensor[A] | None = None,
    zoneout_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> Outputs[A]:
    """Run a recurrent network of a single gate over a sequence.

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
    {input_weight}
    {bias}
    {init_state}
    {mask}
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
    Outputs
        A named tuple. ``output`` is h, [T, N, H], bidirectional [T, N, 2H]. With ``training`` there is also
        ``z_state``, z, of the same shape.

    {raises}

    {warnings}

    See Also
    --------
    single_gate_rnn_gradients, vkrnn.reference.single_gate_rnn

    Notes
    -----
    For each step t and direction::

        z[t] = x[t] W^T + b + (h[t-1] * m[t]) R^T
        h[t] = activation(z[t])

    With ``clip``, z[t] is clamped to [-clip, clip] before the activation. ``z_state`` holds the values before clamping.

    With `reset`, h[t-1] in these equations is the state after the reset.

    With `zoneout_mask` or `leak`, the step's new h is blended with h[t-1] after the equations:
    ``h[t] = k[t] * h[t] + (1 - k[t]) * h[t-1]``, where k is the mask or the leak.

    Mirrors MPSGraph's ``singleGateRNN(_:recurrentWeight:inputWeight:bias:initState:mask:descriptor:name:)`` and its
    shorter forms.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source = np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
    >>> (output,) = single_gate_rnn(source, np.full((1, 1), 0.5, np.float32))
    >>> output.ravel()
    array([1.  , 2.5 , 4.25], dtype=float32)
    """
    blends = zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, lengths, reset, reset_state, *blends
    return call(Outputs, "single_gate_rnn", arrays, descriptor, name, device, out)


@documented
def lstm(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    *,
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
    zoneout_mask: Tensor[A] | None = None,
    zoneout_cell_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: LSTMDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> LSTMOutputs[A]:
    """Run a long short-term memory network (LSTM) over a sequence.

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
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
    {zoneout_mask}
    {zoneout_cell_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    LSTMOutputs
        A named tuple. ``output`` is h, [T, N, H], bidirectional [T, N, 2H]. With ``produce_cell`` or ``training`` there
        is also ``cell_output``, c, of the same shape. With ``training`` there is also ``z_state``, the gates after
        their activations, [T, N, 4H], bidirectional [T, N, 8H].

    {raises}

    {warnings}

    See Also
    --------
    lstm_gradients, vkrnn.reference.lstm

    Notes
    -----
    For each step t and direction, and for each gate a of i, f, z, o with its own rows of W, R, b and p::

        a    = activation_a(x[t] W_a^T + b_a + (h[t-1] * m[t]) R_a^T + p_a * c[t-1])
        c[t] = f * c[t-1] + i * z
        h[t] = o * activation(c[t])

    The peepholes of all gates read the cell before the step. With ``output_peephole_new_cell``, the output gate's reads
    c[t]. With ``clip``, the sum that enters a gate's activation is clamped to [-clip, clip]; c[t] is not.

    With `reset`, h[t-1] and c[t-1] in these equations are the states after the reset.

    With `zoneout_mask` or `leak`, the step's new h is blended with h[t-1] after the equations:
    ``h[t] = k[t] * h[t] + (1 - k[t]) * h[t-1]``, where k is the mask or the leak. With `zoneout_cell_mask`, c[t] is
    blended likewise; the new h still has the cell's own new c.

    Mirrors MPSGraph's ``LSTM(_:recurrentWeight:inputWeight:bias:initState:initCell:mask:peephole:descriptor:name:)``
    and its shorter forms. The gates are in the order of PyTorch and Keras.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 8), np.float32), np.zeros((8, 2), np.float32)
    >>> output, cell = lstm(source, weight, descriptor=vkrnn.LSTMDescriptor(produce_cell=True))
    >>> output.shape, cell.shape
    ((5, 3, 2), (5, 3, 2))
    """
    steps = reset, reset_state, reset_cell, zoneout_mask, zoneout_cell_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, init_cell, mask, peephole, lengths, *steps
    return call(LSTMOutputs, "lstm", arrays, descriptor, name, device, out)


@documented
def gru(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    *,
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
) -> Outputs[A]:
    """Run a network of gated recurrent units (GRU) over a sequence.

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
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
    Outputs
        A named tuple. ``output`` is h, [T, N, H], bidirectional [T, N, 2H]. With ``training`` there is also
        ``z_state``, the gates after their activations, [T, N, 3H], bidirectional [T, N, 6H].

    {raises}

    {warnings}

    See Also
    --------
    gru_gradients, vkrnn.reference.gru

    Notes
    -----
    For each step t and direction, with x' = x[t] W^T + b, and for each gate its own rows of x' and R::

        z = activation_z(x'_z + (h[t-1] * m[t]) R_z^T)
        r = activation_r(x'_r + (h[t-1] * m[t]) R_r^T)
        o = activation_o(x'_o + (h[t-1] * m[t] * r) R_o^T)              or, with reset_after,
        o = activation_o(x'_o + r * ((h[t-1] * m[t]) R_o^T + b2))
        h[t] = z * h[t-1] + (1 - z) * o                                 or, with flip_z,
        h[t] = (1 - z) * h[t-1] + z * o

    With ``clip``, the sum that enters a gate's activation is clamped to [-clip, clip].

    With `reset`, h[t-1] in these equations is the state after the reset.

    With `zoneout_mask` or `leak`, the step's new h is blended with h[t-1] after the equations:
    ``h[t] = k[t] * h[t] + (1 - k[t]) * h[t-1]``, where k is the mask or the leak.

    Mirrors MPSGraph's ``GRU(_:recurrentWeight:inputWeight:bias:initState:mask:secondaryBias:descriptor:name:)`` and its
    shorter forms. ``GRUDescriptor(reset_gate_first=True, reset_after=True)`` is PyTorch's GRU.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 6), np.float32), np.zeros((6, 2), np.float32)
    >>> gru(source, weight, descriptor=vkrnn.GRUDescriptor(training=True))
    Results(gru: output [5, 3, 2] float32, z_state [5, 3, 6] float32)
    """
    warn_of_unused_bias("[gru]", secondary_bias, descriptor)
    steps = reset, reset_state, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias, lengths, *steps
    return call(Outputs, "gru", arrays, descriptor, name, device, out)


@documented
def slstm(
    source: Tensor[A],
    recurrent_weight: Tensor[A] | None,
    *,
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
    zoneout_mask: Tensor[A] | None = None,
    leak: Tensor[A] | float | None = None,
    descriptor: SLSTMDescriptor | None = None,
    name: str | None = None,
    device: DeviceLike | None = None,
    out: Out[A] | None = None,
) -> SLSTMOutputs[A]:
    """Run an sLSTM, an LSTM with exponential gates, over a sequence.

    {letters}

    Parameters
    ----------
    {source}
    {recurrent_weight}
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
    {zoneout_mask}
    {leak}
    {descriptor}
    {name}
    {device}
    {out}

    Returns
    -------
    SLSTMOutputs
        A named tuple. ``output`` is h, [T, N, H], bidirectional [T, N, 2H]. With ``produce_cell`` or ``training`` there
        are also ``cell_output``, ``normalizer_output`` and ``stabilizer_output``: c, n and m, of the same shape. With
        ``training`` there is also ``z_state``, [T, N, 4H], bidirectional [T, N, 8H]: the sums i~ and f~, and the gates
        z and o.

    {raises}

    {warnings}

    See Also
    --------
    slstm_gradients, vkrnn.reference.slstm

    Notes
    -----
    For each step t and direction, and for each gate a of i, f, z, o with its own rows of W, R and b::

        a~   = x[t] W_a^T + b_a + (h[t-1] * m'[t]) R_a^T            m' is the mask
        z    = tanh(z~)                                             o = sigmoid(o~)
        l    = log(sigmoid(f~)) + m[t-1]                            f~ + m[t-1] with an exponential forget gate
        m[t] = max(l, i~)                                           i~ where n[t-1] = 0
        i    = exp(min(i~ - m[t], 0))                               f = exp(min(l - m[t], 0))
        c[t] = f * c[t-1] + i * z                                   n[t] = f * n[t-1] + i
        h[t] = o * c[t] / n[t]

    These are the equations of Beck et al., "xLSTM: Extended Long Short-Term Memory", arXiv 2405.04517, as its authors'
    package ``xlstm`` computes them. The stabilizer m does not change h: it keeps i and f from overflowing. With
    ``clip``, a~ is clamped to [-clip, clip].

    With `reset`, h[t-1] and c[t-1] in these equations are the states after the reset, and n[t-1] is r[t] n[t-1]. m[t-1]
    stays as it is, but becomes 0 where r[t] is 0.

    With `zoneout_mask` or `leak`, the step's new h is blended with h[t-1] after the equations:
    ``h[t] = k[t] * h[t] + (1 - k[t]) * h[t-1]``, where k is the mask or the leak. There is no mask for c: it has the
    scale exp(-m[t]), so that c[t-1] cannot take its place.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> source, weight = np.ones((5, 3, 8), np.float32), np.zeros((8, 2), np.float32)
    >>> slstm(source, weight).output[:, 0, 0].round(5)
    array([0.55677, 0.55677, 0.55677, 0.55677, 0.55677], dtype=float32)
    """
    states = init_state, init_cell, init_normalizer, init_stabilizer
    steps = lengths, reset, reset_state, reset_cell, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, *states, mask, *steps
    return call(SLSTMOutputs, "slstm", arrays, descriptor, name, device, out)
