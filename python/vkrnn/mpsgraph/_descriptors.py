"""MPSGraph's descriptors as in Swift and PyObjC: made with the defaults and then changed by property."""

from __future__ import annotations

import copy
import re
from dataclasses import fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from vkrnn._base.generics import Self
from vkrnn.descriptors import (
    BEYOND_MPSGRAPH,
    ActivationOption,
    GRUDescriptor,
    LSTMDescriptor,
    SingleGateRNNDescriptor,
)

__all__ = [
    "MPSGraphGRUDescriptor",
    "MPSGraphLSTMDescriptor",
    "MPSGraphRNNActivation",
    "MPSGraphSingleGateRNNDescriptor",
    "frozen",
]


class MPSGraphRNNActivation(IntEnum):
    """The activations by Swift's names. `vkrnn.Activation` has their formulas."""

    none = 0
    relu = 1
    tanh = 2
    sigmoid = 3
    hardSigmoid = 4


def _names(kind: Any) -> list[str]:
    """Return the names of the properties that MPSGraph documents, in snake_case."""
    return [field.name for field in fields(kind) if field.name not in BEYOND_MPSGRAPH]


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda letter: letter[1].upper(), name)


class _Descriptor:
    """The common part: properties of a frozen vkrnn descriptor, which each change replaces."""

    __slots__ = ("_frozen",)
    _kind: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        for name in _names(cls._kind):
            setattr(cls, _camel_case(name), cls._property(name))

    def __init__(self, **given: object) -> None:
        if given:
            own, name = type(self).__name__, next(iter(given))
            raise TypeError(f"[{own}] {name}: expected no arguments; set properties: made = {own}(); made.{name} = ...")
        self._frozen = self._kind()

    @classmethod
    def descriptor(cls) -> Self:
        """Return one with the defaults, as Objective-C makes it."""
        return cls()

    def copy(self) -> Self:
        """Return one with the same properties."""
        return copy.copy(self)

    @classmethod
    def _property(cls, name: str) -> property:
        def get(self: _Descriptor) -> Any:
            return getattr(self._frozen, name)

        def change(self: _Descriptor, value: object) -> None:
            try:
                self._frozen = replace(self._frozen, **{name: value})
            except (TypeError, ValueError) as error:
                ours, theirs = f"[{cls._kind.__name__}] {name}:", f"[{cls.__name__}] {_camel_case(name)}:"
                raise type(error)(str(error).replace(ours, theirs)) from None

        return property(get, change, doc=f"Mirrors ``{_camel_case(name)}``; see `vkrnn.{cls._kind.__name__}`.")

    def __eq__(self, other: object) -> bool:
        """Compare the properties; what can change has no hash."""
        return self._frozen == other._frozen if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Show the properties."""
        shown = ", ".join(f"{_camel_case(name)}={getattr(self._frozen, name)!r}" for name in _names(self._kind))
        return f"<{type(self).__name__}: {shown}>"


if TYPE_CHECKING:

    class _Flag:
        def __get__(self, descriptor: object, kind: object) -> bool: ...
        def __set__(self, descriptor: object, value: bool) -> None: ...  # noqa: FBT001


class MPSGraphSingleGateRNNDescriptor(_Descriptor):
    """Options of the ``singleGateRNN`` methods; `vkrnn.SingleGateRNNDescriptor` explains them.

    Examples
    --------
    >>> descriptor = MPSGraphSingleGateRNNDescriptor()
    >>> descriptor.training = True
    >>> descriptor.activation = MPSGraphRNNActivation.tanh
    >>> descriptor
    <MPSGraphSingleGateRNNDescriptor: reverse=False, bidirectional=False, training=True, activation=Activation.TANH>
    """

    __slots__ = ()
    _kind = SingleGateRNNDescriptor

    if TYPE_CHECKING:
        reverse = _Flag()
        bidirectional = _Flag()
        training = _Flag()
        activation = ActivationOption()


class MPSGraphLSTMDescriptor(_Descriptor):
    """Options of the ``LSTM`` methods; `vkrnn.LSTMDescriptor` explains them.

    Examples
    --------
    >>> descriptor = MPSGraphLSTMDescriptor()
    >>> descriptor.forgetGateLast = True
    >>> descriptor.forgetGateLast, descriptor.inputGateActivation
    (True, Activation.SIGMOID)
    """

    __slots__ = ()
    _kind = LSTMDescriptor

    if TYPE_CHECKING:
        reverse = _Flag()
        bidirectional = _Flag()
        training = _Flag()
        produceCell = _Flag()
        forgetGateLast = _Flag()
        inputGateActivation = ActivationOption()
        forgetGateActivation = ActivationOption()
        cellGateActivation = ActivationOption()
        outputGateActivation = ActivationOption()
        activation = ActivationOption()


class MPSGraphGRUDescriptor(_Descriptor):
    """Options of the ``GRU`` methods; `vkrnn.GRUDescriptor` explains them.

    Examples
    --------
    >>> descriptor = MPSGraphGRUDescriptor()
    >>> descriptor.resetAfter = 1
    Traceback (most recent call last):
        ...
    TypeError: [MPSGraphGRUDescriptor] resetAfter: expected a bool, got 1 (int)
    """

    __slots__ = ()
    _kind = GRUDescriptor

    if TYPE_CHECKING:
        reverse = _Flag()
        bidirectional = _Flag()
        training = _Flag()
        resetGateFirst = _Flag()
        resetAfter = _Flag()
        flipZ = _Flag()
        updateGateActivation = ActivationOption()
        resetGateActivation = ActivationOption()
        outputGateActivation = ActivationOption()


def frozen(descriptor: Any) -> Any:
    """Return the descriptor of vkrnn with the same properties; what is none of the three, as it is."""
    return descriptor._frozen if isinstance(descriptor, _Descriptor) else descriptor  # noqa: SLF001 - of this file
