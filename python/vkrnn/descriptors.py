"""Descriptors: what an operation does besides its tensors. They mirror MPSGraph's three descriptor classes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from vkrnn._generics import Self

__all__ = [
    "Activation",
    "ActivationLike",
    "ActivationName",
    "GRUDescriptor",
    "LSTMDescriptor",
    "SingleGateRNNDescriptor",
]


class Activation(IntEnum):
    """Elementwise function of a gate; mirrors ``MPSGraphRNNActivation``, same numbers.

    ============  =====  ==============================  =============================
    member        value  y = f(p)                        f'(p), from y
    ============  =====  ==============================  =============================
    NONE          0      p                               1
    RELU          1      max(p, 0)                       1 if y > 0 else 0
    TANH          2      tanh p                          1 - y^2
    SIGMOID       3      1 / (1 + exp(-p))               y (1 - y)
    HARD_SIGMOID  4      min(1, max(0, 0.2 p + 0.5))     0.2 if 0 < y < 1 else 0
    ============  =====  ==============================  =============================

    A member is also found by its name in any case: ``Activation("tanh")``, ``Activation("hardSigmoid")``.
    """

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    HARD_SIGMOID = 4

    if TYPE_CHECKING:  # names are found by _missing_

        def __new__(cls, value: str | int | np.integer[Any]) -> Self: ...  # noqa: D102

    @classmethod
    def _missing_(cls, value: object) -> Activation | None:
        # MPSGraph's own spelling, hardSigmoid, is found too: the underscore may be left out.
        if isinstance(value, str):
            wanted = value.lower()
            for member in cls:
                if wanted in (member.name.lower(), member.name.lower().replace("_", "")):
                    return member
        return None

    def __repr__(self) -> str:
        """Show the expression that gives this member."""
        return f"Activation.{self.name}"


ActivationName: TypeAlias = Literal["none", "relu", "tanh", "sigmoid", "hard_sigmoid", "hardSigmoid"]
"""The names as type checkers know them. `Activation` makes members of other strings, which are in any case."""

ActivationLike: TypeAlias = Activation | ActivationName | int
"""An activation, as descriptors take it: a member, its name (when run in any case), or its number 0..4."""


@dataclass(frozen=True, kw_only=True)
class _Descriptor:
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            checked: bool | float | Activation
            if isinstance(field.default, bool):
                checked = self._flag(field.name, value)
            elif isinstance(field.default, float):
                checked = self._number(field.name, value)
            else:
                checked = self._activation(field.name, value)
            object.__setattr__(self, field.name, checked)

    def _flag(self, name: str, value: object) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{self._where(name)}: expected a bool, got {_shown(value)}")
        return bool(value)

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"{self._where(name)}: expected a number, got {_shown(value)}")
        return float(value)

    def _activation(self, name: str, value: object) -> Activation:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (str, int, np.integer)):
            raise TypeError(f"{self._where(name)}: expected an Activation, its name or its number, got {_shown(value)}")
        try:
            return Activation(value)
        except ValueError:
            known = ", ".join(f"'{member.name.lower()}'" for member in Activation)
            last = len(Activation) - 1
            message = f"{self._where(name)}: expected one of {known} (or its number 0..{last}), got {value!r}"
            raise ValueError(message) from None

    def _where(self, name: str) -> str:
        return f"[{type(self).__name__}] {name}"


def _shown(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"


@dataclass(frozen=True, kw_only=True)
class SingleGateRNNDescriptor(_Descriptor):
    """Options of `single_gate_rnn` and its gradients; mirrors ``MPSGraphSingleGateRNNDescriptor``.

    Parameters
    ----------
    reverse : bool, default False
        Read the source from its last row to its first. The results' rows stand in the order in which they were
        computed: row 0 belongs to the last source row. Has no effect together with `bidirectional`.
        Mirrors ``reverse``.
    bidirectional : bool, default False
        Run a second recurrence with weights of its own from the last row to the first and put its channels behind those
        of the first; both halves of a result's row belong to the same source row. Mirrors ``bidirectional``.
    training : bool, default False
        Also return `z_state`, which the gradients need; the gradients themselves ignore this flag.
        Mirrors ``training``.
    activation : Activation or str or int, default Activation.RELU
        The cell's function: ``h = activation(z)``. Mirrors ``activation``.

    Raises
    ------
    TypeError
        If a flag is no bool, or an activation is neither a member, a name nor a number.
    ValueError
        If there is no activation of that name or number.

    Examples
    --------
    >>> SingleGateRNNDescriptor(activation="tanh")
    SingleGateRNNDescriptor(reverse=False, bidirectional=False, training=False, activation=Activation.TANH)
    """

    activation: Activation = Activation.RELU

    if TYPE_CHECKING:  # names and numbers are accepted, members are what is kept

        def __init__(
            self,
            *,
            reverse: bool = ...,
            bidirectional: bool = ...,
            training: bool = ...,
            activation: ActivationLike = ...,
        ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class LSTMDescriptor(_Descriptor):
    """Options of `lstm` and its gradients; mirrors ``MPSGraphLSTMDescriptor``.

    Parameters
    ----------
    reverse : bool, default False
        Read the source from its last row to its first. The results' rows stand in the order in which they were
        computed: row 0 belongs to the last source row. Has no effect together with `bidirectional`.
        Mirrors ``reverse``.
    bidirectional : bool, default False
        Run a second recurrence with weights of its own from the last row to the first and put its channels behind those
        of the first; both halves of a result's row belong to the same source row. Mirrors ``bidirectional``.
    training : bool, default False
        Also return `cell_output` (whatever `produce_cell` says) and `z_state`, which the gradients need; the gradients
        themselves ignore this flag. Mirrors ``training``.
    produce_cell : bool, default False
        Also return `cell_output`, the cell state after every step. Mirrors ``produceCell``.
    forget_gate_last : bool, default False
        The four gates lie in the order i, z, f, o instead of i, f, z, o on every axis that holds gates: weights,
        biases, peephole, `z_state`, a source without input weight, and all their gradients.
        Mirrors ``forgetGateLast``.
    input_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate i. Mirrors ``inputGateActivation``.
    forget_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate f. Mirrors ``forgetGateActivation``.
    cell_gate_activation : Activation or str or int, default Activation.TANH
        Function of gate z, the candidate for the new cell. Mirrors ``cellGateActivation``.
    output_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate o. Mirrors ``outputGateActivation``.
    activation : Activation or str or int, default Activation.TANH
        Function g of the new cell: ``h = o * g(c)``. Mirrors ``activation``.

    Raises
    ------
    TypeError
        If a flag is no bool, or an activation is neither a member, a name nor a number.
    ValueError
        If there is no activation of that name or number.

    Examples
    --------
    >>> LSTMDescriptor(training=True) == LSTMDescriptor(training=True, activation="Tanh")
    True
    >>> LSTMDescriptor(reverse="yes")
    Traceback (most recent call last):
        ...
    TypeError: [LSTMDescriptor] reverse: expected a bool, got 'yes' (str)
    """

    produce_cell: bool = False
    forget_gate_last: bool = False
    input_gate_activation: Activation = Activation.SIGMOID
    forget_gate_activation: Activation = Activation.SIGMOID
    cell_gate_activation: Activation = Activation.TANH
    output_gate_activation: Activation = Activation.SIGMOID
    activation: Activation = Activation.TANH

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            reverse: bool = ...,
            bidirectional: bool = ...,
            training: bool = ...,
            produce_cell: bool = ...,
            forget_gate_last: bool = ...,
            input_gate_activation: ActivationLike = ...,
            forget_gate_activation: ActivationLike = ...,
            cell_gate_activation: ActivationLike = ...,
            output_gate_activation: ActivationLike = ...,
            activation: ActivationLike = ...,
        ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class GRUDescriptor(_Descriptor):
    """Options of `gru` and its gradients; mirrors ``MPSGraphGRUDescriptor``.

    Parameters
    ----------
    reverse : bool, default False
        Read the source from its last row to its first. The results' rows stand in the order in which they were
        computed: row 0 belongs to the last source row. Has no effect together with `bidirectional`.
        Mirrors ``reverse``.
    bidirectional : bool, default False
        Run a second recurrence with weights of its own from the last row to the first and put its channels behind those
        of the first; both halves of a result's row belong to the same source row. Mirrors ``bidirectional``.
    training : bool, default False
        Also return `z_state`, which the gradients need; the gradients themselves ignore this flag.
        Mirrors ``training``.
    reset_gate_first : bool, default False
        The three gates lie in the order r, z, o instead of z, r, o on every axis that holds gates: weights, bias,
        `z_state`, a source without input weight, and all their gradients. Mirrors ``resetGateFirst``.
    reset_after : bool, default False
        Multiply by the reset gate after the recurrent product of the candidate (as PyTorch and cuDNN do) instead of
        before it; only then the secondary bias is used. Mirrors ``resetAfter``.
    flip_z : bool, default False
        Swap z and 1 - z. False: ``h[t] = z * h[t-1] + (1 - z) * o``; True: ``h[t] = (1 - z) * h[t-1] + z * o``.
        Mirrors ``flipZ``.
    update_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate z. Mirrors ``updateGateActivation``.
    reset_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate r. Mirrors ``resetGateActivation``.
    output_gate_activation : Activation or str or int, default Activation.TANH
        Function of gate o, the candidate for the new state. Mirrors ``outputGateActivation``.

    Raises
    ------
    TypeError
        If a flag is no bool, or an activation is neither a member, a name nor a number.
    ValueError
        If there is no activation of that name or number.

    Examples
    --------
    PyTorch's GRU, gate order included:

    >>> d = GRUDescriptor(reset_gate_first=True, reset_after=True)
    >>> d.flip_z, d.output_gate_activation
    (False, Activation.TANH)
    """

    reset_gate_first: bool = False
    reset_after: bool = False
    flip_z: bool = False
    update_gate_activation: Activation = Activation.SIGMOID
    reset_gate_activation: Activation = Activation.SIGMOID
    output_gate_activation: Activation = Activation.TANH

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            reverse: bool = ...,
            bidirectional: bool = ...,
            training: bool = ...,
            reset_gate_first: bool = ...,
            reset_after: bool = ...,
            flip_z: bool = ...,
            update_gate_activation: ActivationLike = ...,
            reset_gate_activation: ActivationLike = ...,
            output_gate_activation: ActivationLike = ...,
        ) -> None: ...
