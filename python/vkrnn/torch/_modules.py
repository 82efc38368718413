"""The modules, and the functions that convert a model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch.nn.utils.parametrize import is_parametrized

from vkrnn._base.warnings import warn_caller
from vkrnn.descriptors import ActivationLike
from vkrnn.torch._cells import Cell, GRUCell, LSTMCell, RNNCell
from vkrnn.torch._choice import Backend, checked_backend
from vkrnn.torch._recurrent import Recurrent

__all__ = ["GRU", "LSTM", "RNN", "convert", "frozen", "revert"]


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
        The output gate's peephole reads c[t] instead of c[t-1].
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


_OURS: dict[Any, Any] = {torch.nn.LSTM: LSTM, torch.nn.GRU: GRU, torch.nn.RNN: RNN}
_OURS |= {torch.nn.LSTMCell: LSTMCell, torch.nn.GRUCell: GRUCell, torch.nn.RNNCell: RNNCell}
_TORCHS = {ours: theirs for theirs, ours in _OURS.items()}
_logger = logging.getLogger("vkrnn")


def convert(model: torch.nn.Module, *, backend: Backend = "auto", frozen: bool = False) -> Any:
    """Make vkrnn compute every recurrent module of a model, in place, and return the model.

    These are ``torch.nn.LSTM``, ``GRU``, ``RNN``, ``LSTMCell``, ``GRUCell`` and ``RNNCell``. Only the class of the
    modules changes. They keep parameters, parametrizations, hooks and mode, so an optimizer goes on with the same
    parameters. Your own subclasses are left to PyTorch, because they may compute something else.

    Parameters
    ----------
    model : torch.nn.Module
    backend : {"auto", "vkrnn", "torch"}, default "auto"
        As in `LSTM` and `LSTMCell`, for all modules.
    frozen : bool, default False
        Also promise that the parameters do not change, as the function `frozen` does.

    Raises
    ------
    TypeError, ValueError
        If the model is no module, or if there is no such backend.

    Warns
    -----
    UserWarning
        If the model has subclasses of these modules, with their names.

    Notes
    -----
    The logger ``vkrnn`` says at level INFO how many modules were converted, and which were left to PyTorch and why.

    Examples
    --------
    >>> import torch, vkrnn.torch  # doctest: +SKIP
    >>> vkrnn.torch.convert(torch.nn.Sequential(torch.nn.GRU(3, 16)))  # doctest: +SKIP
    Sequential(
      (0): vkrnn.torch.GRU(3, 16)
    )
    """
    _require_module(model, "[vkrnn.torch.convert]")
    chosen = checked_backend(backend, "[vkrnn.torch.convert]")
    found = [module for module in model.modules() if _own_class(module) in _OURS]
    _warn_of_subclasses(model, "[vkrnn.torch.convert] left to PyTorch", ours=False)
    for module in found:
        _change_class(module, _OURS)
        if chosen != Recurrent.backend:
            module.__dict__["backend"] = chosen
    left = "; ".join(_left_to_torch(model)) or "none"
    _logger.info("[vkrnn.torch.convert] modules converted: %d, left to PyTorch: %s", len(found), left)
    return _freeze(model) if frozen else model


def frozen(model: torch.nn.Module, mode: bool = True) -> Any:
    """Promise that the parameters of a model's vkrnn modules do not change any more, and return the model.

    Without gradients, a module computes with packed weights that it keeps. Before each call it looks whether a
    parameter has changed, by a hash of all of them. A frozen module does not look, which makes single steps faster. It
    packs its weights at the first call, and computes with them until the promise ends, even if a parameter is changed
    in place.

    ``frozen(model, False)`` and ``model.train()`` end the promise. ``model.eval()``, ``load_state_dict``, ``to`` and
    calls with gradients do not, but the weights are packed again after them. Copies and pickles of a model are not
    frozen. Calls on CUDA devices read the parameters in any case.

    Parameters
    ----------
    model : torch.nn.Module
        Its modules that are vkrnn's, and itself if it is one.
    mode : bool, default True
        False ends the promise.

    Raises
    ------
    TypeError
        If the model is no module.

    Examples
    --------
    >>> import torch, vkrnn.torch  # doctest: +SKIP
    >>> lstm = vkrnn.torch.frozen(vkrnn.torch.LSTM(3, 16).eval())  # doctest: +SKIP
    >>> with torch.inference_mode():  # doctest: +SKIP
    ...     output, state = lstm(torch.zeros(1, 1, 3))
    """
    _require_module(model, "[vkrnn.torch.frozen]")
    return _freeze(model, mode)


def _freeze(model: torch.nn.Module, mode: bool = True) -> Any:
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.set_frozen(mode)
    return model


def revert(model: torch.nn.Module) -> Any:
    """Undo `convert`: make PyTorch compute every vkrnn module of a model, in place, and return the model.

    Raises
    ------
    NotImplementedError
        If a module has an option that PyTorch's module lacks. Then no module is changed.
    TypeError
        If the model is no module.

    Warns
    -----
    UserWarning
        If the model has subclasses of vkrnn's modules, with their names. They are left alone.
    """
    _require_module(model, "[vkrnn.torch.revert]")
    found = [module for module in model.modules() if _own_class(module) in _TORCHS]
    for module in found:
        module.require_torchs_options("[vkrnn.torch.revert]", training=True)
        if getattr(module, "learn_initial_state", False):
            raise NotImplementedError("[vkrnn.torch.revert] learn_initial_state: PyTorch supports only False, got True")
    _warn_of_subclasses(model, "[vkrnn.torch.revert] left to vkrnn", ours=True)
    for module in found:
        if isinstance(module, Recurrent):
            module.set_frozen(False)
        for name in ("backend", "forget_bias", "_steps"):
            module.__dict__.pop(name, None)
        _change_class(module, _TORCHS)
    return model


def _own_class(module: torch.nn.Module) -> Any:
    """Return a module's class, which is the base of the one that torch.nn.utils.parametrize gives it."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def _change_class(module: torch.nn.Module, others: Mapping[Any, Any]) -> None:
    """Change a module's class to the one that `others` has for it. Parametrizations stay."""
    kind, own = type(module), _own_class(module)
    changed = others[own]
    if own is not kind:  # copies of the module have the same class, so it stays as it is
        contents = {name: each for name, each in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        changed = type(kind.__name__, (changed,), contents)
    module.__class__ = changed


def _warn_of_subclasses(model: torch.nn.Module, what: str, *, ours: bool) -> None:
    """Warn of the model's subclasses of vkrnn's modules, or of PyTorch's that are not computed by vkrnn."""
    left = []
    for name, module in model.named_modules():
        own = _own_class(module)
        is_ours = isinstance(module, (Recurrent, Cell))
        if isinstance(module, tuple(_OURS)) and is_ours == ours and own not in (*_OURS, *_TORCHS):
            left.append(f"{own.__name__} at {name!r}" if name else own.__name__)
    if left:
        warn_caller(f"{what}, because subclasses may compute something else: {', '.join(left)}")


def _require_module(model: object, where: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{where} model: expected a torch.nn.Module, got {type(model).__name__}")


def _left_to_torch(model: torch.nn.Module) -> Iterator[str]:
    """Describe each recurrent module of a model that PyTorch computes, with the reason."""
    for name, module in model.named_modules():
        recurrent = isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase))
        if recurrent and not isinstance(module, (Recurrent, Cell)):
            yield f"{name or 'the model'} ({type(module).__name__}: a subclass may compute something else)"
