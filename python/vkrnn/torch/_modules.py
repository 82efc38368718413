"""The modules `LSTM`, `GRU` and `RNN`."""

from __future__ import annotations

from typing import Literal

import torch

from vkrnn.descriptors import ActivationLike
from vkrnn.torch._choice import Backend
from vkrnn.torch._recurrent import Recurrent

__all__ = ["GRU", "LSTM", "RNN"]


class LSTM(Recurrent, torch.nn.LSTM):
    """``torch.nn.LSTM``, computed by vkrnn, with the options of `vkrnn.lstm`.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        As in ``torch.nn.LSTM``.
    proj_size : int, default 0
        As in ``torch.nn.LSTM``. The product of W_hh and the projection W_hr is made once in a call. Resets,
        `recurrent_dropout`, `zoneout` and heads are refused beside it.
    peephole : bool, default False
        Let all gates read the cell state. Each layer and direction gets a parameter ``peephole_l0``, [4H], with gates
        in PyTorch's order i, f, g, o. It is the `peephole` of `vkrnn.lstm`.
    recurrent_dropout : float, default 0.0
        Probability of zeroing a unit of h[t-1] where it enters the recurrent product, in training only. A call draws
        one mask for each layer, direction and batch row, which holds for all steps and gates. Other units are divided
        by 1 - p. The cell state is not masked.
    weight_dropout : float, default 0.0
        Probability of zeroing an element of the recurrent weights, in training only. A call draws one mask for all
        steps and rows, and divides other elements by 1 - p (DropConnect, as in AWD-LSTM).
    forget_bias : float, optional
        What `reset_parameters` gives the forget gates as the sum of their two biases, instead of random numbers.
    learn_initial_state : bool, default False
        Start from the parameters ``init_state`` and, in an LSTM, ``init_cell``, [L D, 1, H], which begin as zeros, in
        calls without `hx`. With `proj_size`, ``init_state`` is [L D, 1, P].
    input_gate_activation, forget_gate_activation, cell_gate_activation, output_gate_activation, activation : \
Activation or str or int
        Functions of the gates i, f, g and o, by default sigmoid, sigmoid, tanh and sigmoid, and of the new cell, by
        default tanh. See `vkrnn.LSTMDescriptor`.
    output_peephole_new_cell : bool, default False
        The output gate's peephole reads c[t] instead of c[t-1]. So does that of Gers and Schmidhuber (2000), which has
        no part for gate g: for it, also keep elements 2H to 3H of each peephole, and their gradient, zero.
    hard_sigmoid_alpha, hard_sigmoid_beta, clip : float, default 0.2, 0.5, 0.0
        As in `vkrnn.LSTMDescriptor`.
    gradient_clip : float, optional
        As in `vkrnn.LSTMDescriptor`.
    heads, input_heads : int, default 1, 1
        Divide the units of each layer and direction, or the features that they read, into this many heads with weights
        of their own. ``weight_hh_l0`` is then [4H, H / heads], and ``weight_ih_l0`` [4H, I / input_heads]. Parameters
        are drawn as those of a module with H / heads units. `heads` must divide `hidden_size`; `input_heads` must
        divide it, too, and the features of each layer. See `vkrnn.LSTMDescriptor`.
    zoneout, zoneout_cell : float, default 0.0, 0.0
        Probability that a unit keeps h, or c, of the step before, drawn for each unit, batch row and step in training.
        Otherwise a step takes the mean: p of the old state and 1 - p of the new one. See `zoneout_mask` of
        `vkrnn.lstm`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        What computes calls on CUDA devices that PyTorch's module can do, too. ``auto`` takes the faster one; see
        `choices`. The attribute of this name can be changed.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.
    NotImplementedError
        If an option is refused beside `proj_size`.

    Examples
    --------
    >>> lstm = LSTM(3, 16, peephole=True, input_gate_activation="hard_sigmoid", recurrent_dropout=0.25)
    >>> lstm
    vkrnn.torch.LSTM(3, 16, peephole=True, input_gate_activation='hard_sigmoid', recurrent_dropout=0.25)
    >>> lstm.peephole_l0.shape
    torch.Size([64])
    """

    __module__ = "vkrnn.torch"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        peephole: bool = False,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        forget_bias: float | None = None,
        learn_initial_state: bool = False,
        input_gate_activation: ActivationLike = "sigmoid",
        forget_gate_activation: ActivationLike = "sigmoid",
        cell_gate_activation: ActivationLike = "tanh",
        output_gate_activation: ActivationLike = "sigmoid",
        activation: ActivationLike = "tanh",
        output_peephole_new_cell: bool = False,
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        zoneout: float = 0.0,
        zoneout_cell: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )
        self._take_options(
            {
                "recurrent_dropout": recurrent_dropout,
                "weight_dropout": weight_dropout,
                "zoneout": zoneout,
                "zoneout_cell": zoneout_cell,
            },
            backend,
            {
                "input_gate_activation": input_gate_activation,
                "forget_gate_activation": forget_gate_activation,
                "cell_gate_activation": cell_gate_activation,
                "output_gate_activation": output_gate_activation,
                "activation": activation,
                "output_peephole_new_cell": output_peephole_new_cell,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )
        if not isinstance(peephole, bool):
            raise TypeError(
                f"[vkrnn.torch.LSTM] peephole: expected a bool, got {peephole!r} ({type(peephole).__name__})"
            )
        if peephole:
            self._add_peepholes()
        self._take_forget_bias("[vkrnn.torch.LSTM]", forget_bias)
        self._take_initial_states("[vkrnn.torch.LSTM]", learn_initial_state, (proj_size or hidden_size, hidden_size))


class GRU(Recurrent, torch.nn.GRU):
    """``torch.nn.GRU``, computed by vkrnn, with the options of `vkrnn.gru`.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype
        As in ``torch.nn.GRU``.
    recurrent_dropout : float, default 0.0
        As in `LSTM`. The state that the update gate z hands on is not masked.
    weight_dropout : float, default 0.0
        As in `LSTM`.
    learn_initial_state : bool, default False
        As in `LSTM`.
    reset_after : bool, default True
        Multiply by the reset gate after the recurrent product of the candidate, as PyTorch does. With False, multiply
        before it, as in the paper by Cho et al. (2014). The candidate's two biases are then summed.
    flip_z : bool, default False
        Swap z and 1 - z. False is PyTorch's GRU: ``h[t] = z * h[t-1] + (1 - z) * n``.
    update_gate_activation, reset_gate_activation, output_gate_activation : Activation or str or int
        Functions of the gates z and r and of the candidate n, by default sigmoid, sigmoid and tanh. See
        `vkrnn.GRUDescriptor`.
    hard_sigmoid_alpha, hard_sigmoid_beta, clip : float, default 0.2, 0.5, 0.0
        As in `vkrnn.GRUDescriptor`.
    gradient_clip : float, optional
        As in `vkrnn.GRUDescriptor`.
    heads, input_heads : int, default 1, 1
        As in `LSTM`.
    zoneout : float, default 0.0
        As in `LSTM`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        As in `LSTM`.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> GRU(3, 16, reset_after=False)
    vkrnn.torch.GRU(3, 16, reset_after=False)
    """

    __module__ = "vkrnn.torch"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        learn_initial_state: bool = False,
        reset_after: bool = True,
        flip_z: bool = False,
        update_gate_activation: ActivationLike = "sigmoid",
        reset_gate_activation: ActivationLike = "sigmoid",
        output_gate_activation: ActivationLike = "tanh",
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        zoneout: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self._take_options(
            {"recurrent_dropout": recurrent_dropout, "weight_dropout": weight_dropout, "zoneout": zoneout},
            backend,
            {
                "reset_after": reset_after,
                "flip_z": flip_z,
                "update_gate_activation": update_gate_activation,
                "reset_gate_activation": reset_gate_activation,
                "output_gate_activation": output_gate_activation,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )
        self._take_initial_states("[vkrnn.torch.GRU]", learn_initial_state, (hidden_size,))


class RNN(Recurrent, torch.nn.RNN):
    """``torch.nn.RNN``, computed by vkrnn, with the options of `vkrnn.single_gate_rnn`.

    Parameters
    ----------
    input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype
        As in ``torch.nn.RNN``.
    recurrent_dropout, weight_dropout : float, default 0.0, 0.0
        As in `LSTM`.
    learn_initial_state : bool, default False
        As in `LSTM`.
    activation : Activation or str or int, optional
        Function to use in place of `nonlinearity`. See `vkrnn.SingleGateRNNDescriptor`.
    hard_sigmoid_alpha, hard_sigmoid_beta, clip : float, default 0.2, 0.5, 0.0
        As in `vkrnn.SingleGateRNNDescriptor`.
    gradient_clip : float, optional
        As in `vkrnn.SingleGateRNNDescriptor`.
    heads, input_heads : int, default 1, 1
        As in `LSTM`.
    zoneout : float, default 0.0
        As in `LSTM`.
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        As in `LSTM`.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.

    Examples
    --------
    >>> RNN(3, 16, activation="sigmoid")
    vkrnn.torch.RNN(3, 16, activation='sigmoid')
    """

    __module__ = "vkrnn.torch"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
        *,
        recurrent_dropout: float = 0.0,
        weight_dropout: float = 0.0,
        learn_initial_state: bool = False,
        activation: ActivationLike | None = None,
        hard_sigmoid_alpha: float = 0.2,
        hard_sigmoid_beta: float = 0.5,
        clip: float = 0.0,
        gradient_clip: float | None = None,
        heads: int = 1,
        input_heads: int = 1,
        zoneout: float = 0.0,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            nonlinearity,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )
        self._take_options(
            {"recurrent_dropout": recurrent_dropout, "weight_dropout": weight_dropout, "zoneout": zoneout},
            backend,
            {
                "activation": nonlinearity if activation is None else activation,
                "hard_sigmoid_alpha": hard_sigmoid_alpha,
                "hard_sigmoid_beta": hard_sigmoid_beta,
                "clip": clip,
                "gradient_clip": gradient_clip,
                "heads": heads,
                "input_heads": input_heads,
            },
        )
        self._take_initial_states("[vkrnn.torch.RNN]", learn_initial_state, (hidden_size,))
