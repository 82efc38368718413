"""Descriptors: every documented property and default, and which values are accepted or refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from cases import ACTIVATIONS, CELLS, DESCRIPTORS, FLAGS, HEADS, NUMBERS, WORDS
from vkrnn.descriptors import Activation, LSTMDescriptor, SingleGateRNNDescriptor

# The case table's names, in the order of the signature.
DEFAULTS: dict[type[Any], dict[str, Any]] = {
    kind: dict.fromkeys(
        ("reverse", "bidirectional", "training", *(["produce_cell"] if CELLS[cell] else []), *FLAGS[cell]), False
    )
    | {name: Activation(function) for name, function in ACTIVATIONS[cell].items()}
    | {name: words[0] for name, words in WORDS[cell].items()}
    | NUMBERS[cell]
    | dict.fromkeys(HEADS.values(), 1)
    for cell, kind in DESCRIPTORS.items()
}
PROPERTIES = [(kind, name) for kind, defaults in DEFAULTS.items() for name in defaults]
SWITCHES = [(kind, name) for kind, name in PROPERTIES if isinstance(DEFAULTS[kind][name], bool)]
VALUES = [(kind, name) for kind, name in PROPERTIES if isinstance(DEFAULTS[kind][name], (float, type(None)))]
COUNTS = [(kind, name) for kind, name in PROPERTIES if type(DEFAULTS[kind][name]) is int]
FUNCTIONS = [(kind, name) for kind, name in PROPERTIES if isinstance(DEFAULTS[kind][name], Activation)]


def test_activations_have_mpsgraphs_numbers() -> None:
    assert {member.name: member.value for member in Activation} == {
        "NONE": 0,
        "RELU": 1,
        "TANH": 2,
        "SIGMOID": 3,
        "HARD_SIGMOID": 4,
    }


@pytest.mark.parametrize("kind", DEFAULTS)
def test_the_defaults_are_the_documented_ones(kind: type[Any]) -> None:
    descriptor = kind()
    assert {field.name: getattr(descriptor, field.name) for field in fields(descriptor)} == DEFAULTS[kind]
    assert [field.name for field in fields(descriptor)] == list(DEFAULTS[kind])
    assert all(type(getattr(descriptor, name)) is type(value) for name, value in DEFAULTS[kind].items())


@pytest.mark.parametrize("kind", DEFAULTS)
def test_arguments_are_keywords_only(kind: type[Any]) -> None:
    with pytest.raises(TypeError, match="positional"):
        kind(False)  # noqa: FBT003
    with pytest.raises(TypeError, match="unexpected keyword argument 'reversed'"):
        kind(reversed=True)


@pytest.mark.parametrize(("kind", "name"), SWITCHES)
def test_flags_must_be_bools(kind: type[Any], name: str) -> None:
    for flag in (True, np.bool_(True)):  # noqa: FBT003
        assert getattr(kind(**{name: flag}), name) is True
    for value, shown in (("yes", "'yes' (str)"), (1, "1 (int)"), (None, "None (NoneType)")):
        with pytest.raises(TypeError) as caught:
            kind(**{name: value})
        assert str(caught.value) == f"[{kind.__name__}] {name}: expected a bool, got {shown}"


@pytest.mark.parametrize(("kind", "name"), FUNCTIONS)
def test_activations_are_members_names_or_numbers(kind: type[Any], name: str) -> None:
    for member in Activation:
        spellings = [member, member.name, member.name.lower(), member.name.title(), int(member), np.int64(member)]
        for value in spellings:
            assert getattr(kind(**{name: value}), name) is member
    assert getattr(kind(**{name: "hardSigmoid"}), name) is Activation.HARD_SIGMOID


@pytest.mark.parametrize(("kind", "name"), FUNCTIONS)
def test_unknown_activations_are_refused_with_the_names(kind: type[Any], name: str) -> None:
    known = "'none', 'relu', 'tanh', 'sigmoid', 'hard_sigmoid' (or its number 0..4)"
    for unknown in ("swish", 5, -1, ""):
        with pytest.raises(ValueError, match="expected one of") as caught:
            kind(**{name: unknown})
        assert str(caught.value) == f"[{kind.__name__}] {name}: expected one of {known}, got {unknown!r}"
    for value, shown in ((True, "True (bool)"), (1.0, "1.0 (float)"), (None, "None (NoneType)")):
        with pytest.raises(TypeError) as refused:
            kind(**{name: value})
        expected = f"expected an Activation, its name or its number, got {shown}"
        assert str(refused.value) == f"[{kind.__name__}] {name}: {expected}"


@pytest.mark.parametrize(("kind", "name"), VALUES)
def test_numbers_become_floats(kind: type[Any], name: str) -> None:
    for value in (2, 2.0, np.float32(2), np.int64(2)):
        assert type(getattr(kind(**{name: value}), name)) is float
        assert kind(**{name: value}) == kind(**{name: 2.0})
    wrong: list[tuple[Any, str]] = [(True, "True (bool)"), ("2", "'2' (str)"), (2j, "2j (complex)")]
    if DEFAULTS[kind][name] is not None:
        wrong.append((None, "None (NoneType)"))
    for value, shown in wrong:
        with pytest.raises(TypeError) as caught:
            kind(**{name: value})
        assert str(caught.value) == f"[{kind.__name__}] {name}: expected a number, got {shown}"
    for unbounded in (float("nan"), float("inf"), -np.inf):
        with pytest.raises(ValueError, match="finite") as refused:
            kind(**{name: unbounded})
        assert str(refused.value) == f"[{kind.__name__}] {name}: expected a finite number, got {float(unbounded)!r}"


@pytest.mark.parametrize(("kind", "name"), COUNTS)
def test_counts_are_integers_from_1_on(kind: type[Any], name: str) -> None:
    for value in (2, np.int64(2), np.uint8(2)):
        assert type(getattr(kind(**{name: value}), name)) is int
        assert kind(**{name: value}) == kind(**{name: 2})
    for wrong, shown in ((True, "True (bool)"), (2.0, "2.0 (float)"), ("2", "'2' (str)"), (None, "None (NoneType)")):
        with pytest.raises(TypeError) as caught:
            kind(**{name: wrong})
        assert str(caught.value) == f"[{kind.__name__}] {name}: expected an integer, got {shown}"
    for number in (0, -1, 2**31, 2**70):
        with pytest.raises(ValueError, match="expected 1 to") as refused:
            kind(**{name: number})
        assert str(refused.value) == f"[{kind.__name__}] {name}: expected 1 to 2147483647, got {number}"


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_negative_clip_is_refused(kind: type[Any]) -> None:
    with pytest.raises(ValueError, match="clip") as caught:
        kind(clip=-1)
    message = "clip: expected 0 (no clipping) or a positive threshold, got -1.0"
    assert str(caught.value) == f"[{kind.__name__}] {message}"
    with pytest.raises(ValueError, match="gradient_clip") as caught:
        kind(gradient_clip=-0.5)
    message = "gradient_clip: expected None (no clipping) or a threshold from 0, got -0.5"
    assert str(caught.value) == f"[{kind.__name__}] {message}"
    if "hard_sigmoid_alpha" in DEFAULTS[kind]:
        assert kind(hard_sigmoid_alpha=-1, hard_sigmoid_beta=-1).hard_sigmoid_alpha == -1


def test_words_must_be_known() -> None:
    kind, name = DESCRIPTORS["slstm"], "forget_gate"
    for wrong in (1, None, True, Activation.SIGMOID):
        with pytest.raises(TypeError) as caught:
            kind(**{name: wrong})
        shown = f"{wrong!r} ({type(wrong).__name__})"
        assert str(caught.value) == f"[SLSTMDescriptor] {name}: expected a str, got {shown}"
    with pytest.raises(ValueError, match="forget_gate") as refused:
        kind(**{name: "Sigmoid"})
    assert str(refused.value) == f"[SLSTMDescriptor] {name}: expected 'sigmoid' or 'exponential', got 'Sigmoid'"


@pytest.mark.parametrize(("kind", "name"), PROPERTIES)
def test_every_property_counts_in_equality_hash_and_repr(kind: type[Any], name: str) -> None:
    default = DEFAULTS[kind][name]
    others: dict[type[Any], Any] = {Activation: Activation.NONE, float: 0.75, type(None): 0.75, int: 2, bool: True}
    value = others.get(type(default))
    if isinstance(default, str):
        value = next(words[name][1] for words in WORDS.values() if name in words)
    changed = kind(**{name: value})
    assert changed == replace(kind(), **{name: getattr(changed, name)})
    assert changed != kind()
    assert len({changed, kind(), kind(**{name: default})}) == 2
    assert f"{name}={getattr(changed, name)!r}" in repr(changed)
    assert eval(repr(changed), {"Activation": Activation, kind.__name__: kind}) == changed  # noqa: S307


@pytest.mark.parametrize("kind", DEFAULTS)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, replace, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_are_equal(kind: type[Any], again: Callable[[Any], Any]) -> None:
    descriptor = kind(bidirectional=True, training=True)
    assert again(descriptor) == descriptor
    assert type(again(descriptor)) is kind
    kept = [type(value) for name, value in vars(again(descriptor)).items() if name.endswith("activation")]
    assert set(kept) <= {Activation}


def test_replace_checks_its_arguments() -> None:
    with pytest.raises(TypeError, match="expected a bool"):
        replace(LSTMDescriptor(), reverse="no")  # type: ignore[arg-type]
    assert replace(LSTMDescriptor(), activation="relu").activation is Activation.RELU  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", DEFAULTS)
def test_descriptors_are_read_only(kind: type[Any]) -> None:
    with pytest.raises(FrozenInstanceError):
        kind().reverse = True


def test_descriptors_of_different_cells_are_never_equal() -> None:
    assert len({kind() for kind in DEFAULTS}) == len(DEFAULTS)


def test_repr_is_a_python_expression() -> None:
    shown = "SingleGateRNNDescriptor(reverse=False, bidirectional=False, training=False, activation=Activation.TANH)"
    assert repr(SingleGateRNNDescriptor(activation="tanh")) == shown
    assert repr(SingleGateRNNDescriptor(activation="tanh", clip=3)) == f"{shown[:-1]}, clip=3.0)"
