"""The functions that change the modules of a model: `convert`, `revert` and `frozen`."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.nn.utils.parametrize import is_parametrized

from vkrnn._base.warnings import warn_caller
from vkrnn.torch._cells import Cell, GRUCell, LSTMCell, RNNCell
from vkrnn.torch._choice import Backend, checked_backend
from vkrnn.torch._classes import TORCHS, behind, is_own, torchs_class
from vkrnn.torch._modules import GRU, LSTM, RNN
from vkrnn.torch._recurrent import Recurrent
from vkrnn.torch._slstm import SLSTM

__all__ = ["convert", "frozen", "revert"]

_OURS = dict(zip(TORCHS, (LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell), strict=True))
_logger = logging.getLogger("vkrnn")


def convert(model: torch.nn.Module, *, backend: Backend = "auto", frozen: bool = False) -> Any:
    """Make vkrnn compute every recurrent module of a model, in place, and return the model.

    These are ``torch.nn.LSTM``, ``GRU``, ``RNN``, ``LSTMCell``, ``GRUCell`` and ``RNNCell``. Only the class of the
    modules changes. They keep parameters, parametrizations, hooks and mode, so an optimizer goes on with the same
    parameters. A module of your own subclass gets a class that puts vkrnn's between yours and PyTorch's. What you
    override stays, and ``super().forward(...)`` is computed by vkrnn.

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

    Notes
    -----
    The logger ``vkrnn`` says at level INFO how many modules were converted.

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
    found = [each for each in model.modules() if isinstance(each, TORCHS) and not isinstance(each, (Recurrent, Cell))]
    for module in found:
        own = _own_class(module)
        ours = next(_OURS[kind] for kind in own.__mro__ if kind in _OURS)
        _change_class(module, ours if own in _OURS else behind(own, ours))
        if chosen != Recurrent.backend:
            module.__dict__["backend"] = chosen
    _logger.info("[vkrnn.torch.convert] modules converted: %d", len(found))
    if not found and not any(isinstance(each, (Recurrent, Cell)) for each in model.modules()):
        warn_caller("[vkrnn.torch.convert] the model has no recurrent module or cell of PyTorch to convert")
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
        If the model has subclasses of vkrnn's modules, with their names, or an `SLSTM`, which PyTorch lacks. They are
        left alone.
    """
    _require_module(model, "[vkrnn.torch.revert]")
    ours = [each for each in model.named_modules() if isinstance(each[1], (Recurrent, Cell))]
    found = [module for _, module in ours if is_own(_own_class(module))]
    for module in found:
        module.require_torchs_options("[vkrnn.torch.revert]", training=True)
        module.require_given_states("[vkrnn.torch.revert]")
    left = [f"{type(each).__name__} at {name!r}" for name, each in ours if not is_own(_own_class(each))]
    if left:
        warn_caller(
            f"[vkrnn.torch.revert] left to vkrnn, because they are subclasses of its modules: {', '.join(left)}"
        )
    slstms = [repr(name) for name, each in model.named_modules() if isinstance(each, SLSTM)]
    if slstms:
        warn_caller(f"[vkrnn.torch.revert] left to vkrnn, because PyTorch has no sLSTM: SLSTM at {', '.join(slstms)}")
    for module in found:
        if isinstance(module, Recurrent):
            module.set_frozen(False)
        for name in ("backend", "forget_bias", "_steps"):
            module.__dict__.pop(name, None)
        _change_class(module, torchs_class(_own_class(module)))
    return model


def _own_class(module: torch.nn.Module) -> Any:
    """Return a module's class, which is the base of the one that torch.nn.utils.parametrize gives it."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def _change_class(module: torch.nn.Module, changed: Any) -> None:
    """Change a module's class. Parametrizations stay."""
    kind, own = type(module), _own_class(module)
    if own is not kind:  # copies of the module have the same class, so it stays as it is
        contents = {name: each for name, each in vars(kind).items() if name not in ("__dict__", "__weakref__")}
        changed = type(kind.__name__, (changed,), contents)
    module.__class__ = changed


def _require_module(model: object, where: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{where} model: expected a torch.nn.Module, got {type(model).__name__}")
