"""Descriptors: the options of an operation. They mirror MPSGraph's three descriptor classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from vkrnn import _core
from vkrnn._base.generics import Self
from vkrnn._base.text import with_paragraphs

__all__ = [
    "Activation",
    "ActivationLike",
    "ActivationName",
    "GRUDescriptor",
    "LSTMDescriptor",
    "SLSTMDescriptor",
    "SingleGateRNNDescriptor",
]


class Activation(IntEnum):
    """Elementwise function of a gate. Mirrors ``MPSGraphRNNActivation``, with the same numbers.

    ============  =====  ==================================  =============================
    member        value  y = f(p)                            f'(p), from y
    ============  =====  ==================================  =============================
    NONE          0      p                                   1
    RELU          1      max(p, 0)                           1 if y > 0 else 0
    TANH          2      tanh p                              1 - y^2
    SIGMOID       3      1 / (1 + exp(-p))                   y (1 - y)
    HARD_SIGMOID  4      min(1, max(0, alpha p + beta))      alpha if 0 < y < 1 else 0
    ============  =====  ==================================  =============================

    alpha and beta are the descriptor's ``hard_sigmoid_alpha`` and ``hard_sigmoid_beta``, 0.2 and 0.5 by default.

    Names work in any case: ``Activation("tanh")``, ``Activation("hardSigmoid")``.
    """

    NONE = 0
    RELU = 1
    TANH = 2
    SIGMOID = 3
    HARD_SIGMOID = 4

    if TYPE_CHECKING:  # _missing_ finds names at run time

        def __new__(cls, value: str | int | np.integer[Any]) -> Self: ...  # noqa: D102

    @classmethod
    def _missing_(cls, value: object) -> Activation | None:
        return _BY_NAME.get(value.lower()) if isinstance(value, str) else None

    def __repr__(self) -> str:
        """Return the expression that gives this member."""
        return f"Activation.{self.name}"


# With MPSGraph's spelling, hardSigmoid. Not a loop in `_missing_`: torch.compile of PyTorch 2.11 cannot trace one.
_BY_NAME = {
    name: member for member in Activation for name in (member.name.lower(), member.name.lower().replace("_", ""))
}

ActivationName: TypeAlias = Literal["none", "relu", "tanh", "sigmoid", "hard_sigmoid", "hardSigmoid"]
"""Names of activations for type checkers. At run time names work in any case."""

ActivationLike: TypeAlias = Activation | ActivationName | int
"""What descriptors accept as an activation: a member, its name, or its number 0..4."""

if TYPE_CHECKING:  # a field takes names and numbers, too, and has members

    class ActivationOption:
        def __init__(self, default: Activation = ...) -> None: ...
        def __get__(self, descriptor: object, kind: object) -> Activation: ...
        def __set__(self, descriptor: object, value: ActivationLike) -> None: ...
else:
    ActivationOption = Activation


# Options that MPSGraph's descriptors do not have.
BEYOND_MPSGRAPH = frozenset(
    {
        "output_peephole_new_cell",
        "hard_sigmoid_alpha",
        "hard_sigmoid_beta",
        "clip",
        "gradient_clip",
        "heads",
        "input_heads",
    }
)


_MOST_HEADS = 2**31 - 1
WORDS = {"forget_gate": ("sigmoid", "exponential")}  # the values of options that are words, the default first

_PARAGRAPHS = {
    "direction": """
        reverse : bool, default False
            Read the source from its last row to its first. Results are in the order in which they were computed: row 0
            belongs to the last source row. Has no effect with `bidirectional`. Mirrors ``reverse``.
        bidirectional : bool, default False
            Run a second recurrence, with weights of its own, from the last row to the first. Its channels follow those
            of the first one, and both halves of a result's row belong to the same source row. Mirrors
            ``bidirectional``.
        """,
    "hard_sigmoid": """
        hard_sigmoid_alpha, hard_sigmoid_beta : float, default 0.2, 0.5
            Slope and offset of every hard sigmoid: ``max(0, min(1, alpha * p + beta))``. Keras 3 uses 1/6 and 0.5. ONNX
            lets a model choose. Not in MPSGraph.
        """,
    "gradient_clip": """
        gradient_clip : float, optional
            Clamp the gradient of h to [-gradient_clip, gradient_clip] where a step passes it on to the step before, and
            so the gradient of `init_state`. 0.0 lets nothing pass. The gradients of outputs and cells are not clamped.
            None means no clipping. Not in MPSGraph.
        """,
    "heads": """
        heads : int, default 1
            Divide the H units into this many heads. A unit reads only the states of its own head, so the recurrent
            weight is block-diagonal and is given as its blocks, [GH, H / heads]: row ``g * H + u`` is gate g of unit u,
            and its columns are the units of head ``u // (H / heads)``. With H heads, the weight is a diagonal, as in
            IndRNN. Must divide H. Not in MPSGraph.
        input_heads : int, default 1
            Do the same with the input weight, [DGH, I / input_heads]: unit u reads part ``u * input_heads // H`` of the
            I features. Must divide H and I. Needs an input weight. Not in MPSGraph.
        """,
    "raises": """
        Raises
        ------
        TypeError
            If an option has a value of the wrong type.
        ValueError
            If there is no activation or gate of that name or number, a number is not finite, `clip` or `gradient_clip`
            is negative, or `heads` or `input_heads` is less than 1.
        """,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class _Descriptor:
    reverse: bool = False
    bidirectional: bool = False
    training: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            checked: bool | float | int | str | Activation | None
            if isinstance(field.default, bool):
                checked = self._flag(field.name, value)
            elif isinstance(field.default, float):
                checked = self._number(field.name, value)
            elif field.default is None:
                checked = None if value is None else self._number(field.name, value)
            elif field.name in ("heads", "input_heads"):
                checked = self._count(field.name, value)
            elif isinstance(field.default, str):
                checked = self._word(field.name, value)
            else:
                checked = self._activation(field.name, value)
            object.__setattr__(self, field.name, checked)

    def __repr__(self) -> str:
        """Return the expression that makes it, without options that MPSGraph lacks and that have their default."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        shown = (
            f"{name}={value!r}" for name, value, default in values if not (name in BEYOND_MPSGRAPH and value == default)
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def _flag(self, name: str, value: object) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{self._where(name)}: expected a bool, got {_shown(value)}")
        return bool(value)

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"{self._where(name)}: expected a number, got {_shown(value)}")
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{self._where(name)}: expected a finite number, got {number!r}")
        if name == "clip" and number < 0:
            raise ValueError(f"{self._where(name)}: expected 0 (no clipping) or a positive threshold, got {number!r}")
        if name == "gradient_clip" and number < 0:
            raise ValueError(f"{self._where(name)}: expected None (no clipping) or a threshold from 0, got {number!r}")
        return number

    def _count(self, name: str, value: object) -> int:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{self._where(name)}: expected an integer, got {_shown(value)}")
        if not 1 <= value <= _MOST_HEADS:
            raise ValueError(f"{self._where(name)}: expected 1 to {_MOST_HEADS}, got {int(value)}")
        return int(value)

    def _word(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise TypeError(f"{self._where(name)}: expected a str, got {_shown(value)}")
        if value not in WORDS[name]:
            known = " or ".join(map(repr, WORDS[name]))
            raise ValueError(f"{self._where(name)}: expected {known}, got {value!r}")
        return value

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


@with_paragraphs(_PARAGRAPHS)
@dataclass(frozen=True, kw_only=True, repr=False)
class SingleGateRNNDescriptor(_Descriptor):
    """Options of `single_gate_rnn` and its gradients. Mirrors ``MPSGraphSingleGateRNNDescriptor``.

    Parameters
    ----------
    {direction}
    training : bool, default False
        Also return `z_state`, which the gradients need. The gradient functions ignore this flag. Mirrors ``training``.
    activation : Activation or str or int, default Activation.RELU
        Function of the only gate: ``h = activation(z)``. Mirrors ``activation``.
    {hard_sigmoid}
    clip : float, default 0.0
        Clamp the sum that enters each gate's activation to [-clip, clip]. 0.0 means no clipping. The same as ONNX's
        ``clip``. Not in MPSGraph.
    {gradient_clip}
    {heads}

    {raises}

    Examples
    --------
    >>> SingleGateRNNDescriptor(activation="tanh").activation
    Activation.TANH
    >>> SingleGateRNNDescriptor(clip=3) == SingleGateRNNDescriptor(clip=3.0)
    True
    """

    activation: ActivationOption = ActivationOption(Activation.RELU)
    hard_sigmoid_alpha: float = 0.2
    hard_sigmoid_beta: float = 0.5
    clip: float = 0.0
    gradient_clip: float | None = None
    heads: int = 1
    input_heads: int = 1


@with_paragraphs(_PARAGRAPHS)
@dataclass(frozen=True, kw_only=True, repr=False)
class LSTMDescriptor(_Descriptor):
    """Options of `lstm` and its gradients. Mirrors ``MPSGraphLSTMDescriptor``.

    Parameters
    ----------
    {direction}
    training : bool, default False
        Also return `cell_output` and `z_state`, which the gradients need. The gradient functions ignore this flag.
        Mirrors ``training``.
    produce_cell : bool, default False
        Also return `cell_output`, the cell state after every step. Mirrors ``produceCell``.
    forget_gate_last : bool, default False
        Use the gate order i, z, f, o instead of i, f, z, o on every axis that holds gates: weights, bias, peephole,
        `z_state`, a source without input weight, and the gradients of all these. Mirrors ``forgetGateLast``.
    output_peephole_new_cell : bool, default False
        The output gate's peephole reads the new cell ``c[t]``, as in ONNX, instead of ``c[t-1]``. The other gates'
        peepholes always read ``c[t-1]``. Has no effect without `peephole`. Not in MPSGraph.
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
    {hard_sigmoid}
    clip : float, default 0.0
        Clamp the sum that enters each gate's activation to [-clip, clip]. 0.0 means no clipping. The new cell, which
        enters `activation`, is not clamped. The same as ONNX's ``clip``. Not in MPSGraph.
    {gradient_clip}
    {heads}

    {raises}

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
    output_peephole_new_cell: bool = False
    input_gate_activation: ActivationOption = ActivationOption(Activation.SIGMOID)
    forget_gate_activation: ActivationOption = ActivationOption(Activation.SIGMOID)
    cell_gate_activation: ActivationOption = ActivationOption(Activation.TANH)
    output_gate_activation: ActivationOption = ActivationOption(Activation.SIGMOID)
    activation: ActivationOption = ActivationOption(Activation.TANH)
    hard_sigmoid_alpha: float = 0.2
    hard_sigmoid_beta: float = 0.5
    clip: float = 0.0
    gradient_clip: float | None = None
    heads: int = 1
    input_heads: int = 1


@with_paragraphs(_PARAGRAPHS)
@dataclass(frozen=True, kw_only=True, repr=False)
class GRUDescriptor(_Descriptor):
    """Options of `gru` and its gradients. Mirrors ``MPSGraphGRUDescriptor``.

    Parameters
    ----------
    {direction}
    training : bool, default False
        Also return `z_state`, which the gradients need. The gradient functions ignore this flag. Mirrors ``training``.
    reset_gate_first : bool, default False
        Use the gate order r, z, o instead of z, r, o on every axis that holds gates: weights, bias, `z_state`, a source
        without input weight, and the gradients of all these. Mirrors ``resetGateFirst``.
    reset_after : bool, default False
        Multiply by the reset gate after the recurrent product of the candidate, as PyTorch and cuDNN do, instead of
        before it. The secondary bias is used only with this option. Mirrors ``resetAfter``.
    flip_z : bool, default False
        Swap z and 1 - z. False: ``h[t] = z * h[t-1] + (1 - z) * o``; True: ``h[t] = (1 - z) * h[t-1] + z * o``.
        Mirrors ``flipZ``.
    update_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate z. Mirrors ``updateGateActivation``.
    reset_gate_activation : Activation or str or int, default Activation.SIGMOID
        Function of gate r. Mirrors ``resetGateActivation``.
    output_gate_activation : Activation or str or int, default Activation.TANH
        Function of gate o, the candidate for the new state. Mirrors ``outputGateActivation``.
    {hard_sigmoid}
    clip : float, default 0.0
        Clamp the sum that enters each gate's activation to [-clip, clip]. 0.0 means no clipping. The same as ONNX's
        ``clip``. Not in MPSGraph.
    {gradient_clip}
    {heads}

    {raises}

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
    update_gate_activation: ActivationOption = ActivationOption(Activation.SIGMOID)
    reset_gate_activation: ActivationOption = ActivationOption(Activation.SIGMOID)
    output_gate_activation: ActivationOption = ActivationOption(Activation.TANH)
    hard_sigmoid_alpha: float = 0.2
    hard_sigmoid_beta: float = 0.5
    clip: float = 0.0
    gradient_clip: float | None = None
    heads: int = 1
    input_heads: int = 1


@with_paragraphs(_PARAGRAPHS)
@dataclass(frozen=True, kw_only=True, repr=False)
class SLSTMDescriptor(_Descriptor):
    """Options of `slstm` and its gradients. MPSGraph does not have this cell.

    Parameters
    ----------
    {direction}
    training : bool, default False
        Also return the states of all steps and `z_state`, which the gradients need. The gradient functions ignore this
        flag.
    produce_cell : bool, default False
        Also return the states of all steps: `cell_output`, `normalizer_output` and `stabilizer_output`.
    forget_gate : {'sigmoid', 'exponential'}, default 'sigmoid'
        Function of gate f: the sigmoid, or exp.
    clip : float, default 0.0
        Clamp the sum that enters each gate to [-clip, clip]. 0.0 means no clipping.
    {gradient_clip}
    {heads}

    {raises}

    Examples
    --------
    >>> SLSTMDescriptor(forget_gate="tanh")
    Traceback (most recent call last):
        ...
    ValueError: [SLSTMDescriptor] forget_gate: expected 'sigmoid' or 'exponential', got 'tanh'
    """

    produce_cell: bool = False
    forget_gate: Literal["sigmoid", "exponential"] = "sigmoid"
    clip: float = 0.0
    gradient_clip: float | None = None
    heads: int = 1
    input_heads: int = 1


for _class in (SingleGateRNNDescriptor, LSTMDescriptor, GRUDescriptor, SLSTMDescriptor):
    _core.provide(_class.__name__, _class)
