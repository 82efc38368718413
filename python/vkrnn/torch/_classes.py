"""Classes of PyTorch's, of vkrnn's and of users' modules, and which belong together."""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import torch

from vkrnn._base.warnings import warn_caller
from vkrnn.torch._starts import Starts

__all__ = ["TORCHS", "behind", "is_own", "scriptable", "torchs_class"]

TORCHS: tuple[Any, ...] = (
    torch.nn.LSTM,
    torch.nn.GRU,
    torch.nn.RNN,
    torch.nn.LSTMCell,
    torch.nn.GRUCell,
    torch.nn.RNNCell,
)


class _Behind:
    """What the classes have that `behind` makes. Pickles contain the two classes that one is made of."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to make a copy."""
        reduced: Any = super().__reduce_ex__(protocol)
        _, own, ours = type(self).__bases__
        return _new, (own, ours), *reduced[2:]


def _new(own: Any, ours: Any) -> Any:
    kind = behind(own, ours)
    return kind.__new__(kind)


@functools.cache
def behind(own: Any, ours: Any) -> Any:
    """Return a user's subclass of PyTorch's class in which super() leads to vkrnn's class first."""
    named = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    return types.new_class(own.__name__, (_Behind, own, ours), exec_body=lambda contents: contents.update(named))


def is_own(kind: Any) -> bool:
    """Return whether a class is one of the package's, or of `behind`, and not a subclass that a user has made."""
    return kind.__module__ == "vkrnn.torch" or _Behind in kind.__bases__


def torchs_class(kind: Any) -> Any:
    """Return the class that PyTorch computes: PyTorch's, or that of a user which `behind` was given."""
    return next(each for each in kind.__mro__ if issubclass(each, TORCHS) and not issubclass(each, Starts))


def scriptable(module: Any, where: str) -> torch.nn.Module:
    """Return a module of PyTorch's class with the same parameters, for torch.jit.script.

    PyTorch puts it into the caller's model in the place of vkrnn's.
    """
    module.require_torchs_options(where, training=module.training)
    module.require_given_states(where)
    if not is_own(type(module)):
        raise NotImplementedError(
            f"{where} {type(module).__name__} is a subclass of vkrnn's module; use torch.jit.trace"
        )
    warn_caller(
        f"{where} a model that contains this module now has PyTorch's in its place, as the scripted one has; call "
        "vkrnn.torch.convert(model) again"
    )
    found = copy.copy(module)  # which shares the parameters
    found.__class__ = torchs_class(type(module))
    return found
