"""Uninitialized objects, uncopyable objects and arrays that misreport themselves raise errors and never crash."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn import _core

SOURCE, WEIGHT = np.ones((5, 3, 4), np.float32), np.zeros((4, 4), np.float32)
EMPTY = "expected an object that was made by vkrnn, got one whose __init__ was skipped"


@pytest.fixture(scope="module", name="cpu")
def _cpu() -> vkrnn.Device:
    return vkrnn.Device("cpu (")


def of(kind: str, cpu: vkrnn.Device) -> Any:
    """Return an object of this kind."""
    array = vkrnn.asarray(SOURCE, device=cpu)
    make: dict[str, Callable[[], Any]] = {
        "Device": lambda: cpu,
        "Array": lambda: array,
        "vkrnn._core.Plan": lambda: vkrnn.plan(vkrnn.single_gate_rnn, SOURCE, WEIGHT, device=cpu),
        "vkrnn._core.Profile": lambda: cpu.profile,
        "vkrnn._core.Cell": lambda: _core.cells()[0],
        "Results": lambda: vkrnn.single_gate_rnn(array, WEIGHT),
    }
    return make[kind]()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["Device", "Array", "vkrnn._core.Plan", "vkrnn._core.Profile", "Results"])
def test_objects_on_a_device_cannot_be_pickled(kind: str, protocol: int, cpu: vkrnn.Device) -> None:
    """Every pickle protocol gives the same message."""
    named = "Array" if kind == "Results" else kind
    with pytest.raises(TypeError, match=f"^cannot pickle '{re.escape(named)}' object$"):
        pickle.dumps(of(kind, cpu), protocol)


@pytest.mark.parametrize("kind", ["Device", "Array", "vkrnn._core.Plan", "vkrnn._core.Profile", "vkrnn._core.Cell"])
def test_objects_on_a_device_cannot_be_copied(kind: str, cpu: vkrnn.Device) -> None:
    """Shallow and deep copies are refused."""
    for function in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"^cannot pickle '{re.escape(kind)}' object$"):
            function(of(kind, cpu))


@pytest.mark.parametrize("kind", ["Plan", "Profile", "CheckedCall", "Opener", "Cell", "Device"])
def test_skipped_init(kind: str) -> None:
    """Each class of the core refuses an object whose `__init__` did not run."""
    made = getattr(_core, kind)
    empty = made.__new__(made)
    reads: dict[str, Callable[[], Any]] = {
        "Plan": lambda: empty.bytes,
        "Profile": lambda: empty.name,
        "CheckedCall": lambda: empty.arrays,
        "Opener": lambda: empty.open(_core.make_tuning([])),
        "Cell": lambda: empty.name,
        "Device": lambda: empty.closed,
    }
    with pytest.raises(TypeError, match=f"^{EMPTY}$"):
        reads[kind]()


def test_skipped_init_of_an_array(cpu: vkrnn.Device) -> None:
    """Such an array is refused as an object, as an argument and in `out`."""
    empty = vkrnn.Array.__new__(vkrnn.Array, 1)
    uses: list[Callable[[], Any]] = [
        empty.numpy,
        lambda: empty.shape,
        lambda: vkrnn.Array(empty),
        lambda: vkrnn.single_gate_rnn(empty, WEIGHT, device=cpu),
        lambda: vkrnn.single_gate_rnn(SOURCE, WEIGHT, out=empty, device=cpu),
    ]
    for use in uses:
        with pytest.raises(TypeError, match=f"^{EMPTY}$"):
            use()
    with pytest.raises(BufferError, match=r"^Error getting buffer$"):
        memoryview(empty)


def test_array_constructor_checks_dtype_and_owner(cpu: vkrnn.Device) -> None:
    """The class `Array` makes only arrays of a supported dtype on a device."""
    opened = cpu._open()
    for dtype in (np.dtype(object), np.dtype("V4"), np.dtype(np.int32)):
        got = {"V4": "void32"}.get(dtype.str[1:], dtype.name)
        message = f"[Array] dtype: expected float32, float64, float16 or bfloat16, got {got}"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            vkrnn.Array(cpu, opened, dtype, [4])
    assert vkrnn.Array(cpu, opened, np.dtype(">f4"), [4]).dtype == np.dtype(np.float32)
    with pytest.raises(TypeError, match=r"^\[Array\] owner: expected a vkrnn\.Device, got None$"):
        vkrnn.Array(None, opened, np.dtype(np.float32), [4])
    with pytest.raises(ValueError, match=r"^\[Array\] offset: expected a multiple of 4, got 1$"):
        vkrnn.Array(vkrnn.zeros(4, device=cpu), 1, [3])


def test_array_with_a_wrong_owner(cpu: vkrnn.Device) -> None:
    """An array that names another device than its own is refused, because its address means nothing there."""
    with vkrnn.Device("cpu (") as other:
        stray = vkrnn.Array(cpu, other._open(), np.dtype(np.float32), [5, 3, 4])
    with pytest.raises(RuntimeError, match=r"^'source' is on another device$"):
        vkrnn.single_gate_rnn(stray, WEIGHT)


class Lying(np.ndarray[Any, Any]):
    """An integer array that misreports its shape and its contents."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        """Return a longer shape."""
        return (1000,)

    def astype(self, *_: Any, **__: Any) -> Any:
        """Return long sequences."""
        return np.full(3, 10**6, np.int32)

    def tolist(self) -> Any:
        """Return short sequences."""
        return [1, 1, 1]

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Return zeros."""
        return np.zeros(1, np.int32)


def test_lengths_of_a_lying_subclass(cpu: vkrnn.Device) -> None:
    """Lengths are read from memory once, not from the methods of a subclass."""
    lengths = np.array([5, 2, 3])
    lied = vkrnn.single_gate_rnn(SOURCE, WEIGHT, lengths=lengths.view(Lying), device=cpu).output
    np.testing.assert_array_equal(lied, vkrnn.single_gate_rnn(SOURCE, WEIGHT, lengths=lengths, device=cpu).output)
    assert not lied[2:, 1].any()
    with pytest.raises(ValueError, match=r"^\[single_gate_rnn\] lengths: expected 0 to T = 5, got 9 at \[1\]$"):
        vkrnn.single_gate_rnn(SOURCE, WEIGHT, lengths=np.array([5, 9, 3]).view(Lying), device=cpu)


def test_arguments_of_a_lying_subclass(cpu: vkrnn.Device) -> None:
    """A source and the source of `copy_from` are read from memory, too."""
    source = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    linear = vkrnn.SingleGateRNNDescriptor(activation="none")
    for given in (source, np.asfortranarray(source)):
        output = vkrnn.single_gate_rnn(given.view(Lying), WEIGHT, descriptor=linear, device=cpu).output
        np.testing.assert_array_equal(output, source)
    array = vkrnn.asarray(source.view(Lying), device=cpu)
    np.testing.assert_array_equal(array.numpy(), source)
    array.copy_from((source + 1).view(Lying))
    np.testing.assert_array_equal(array.numpy(), source + 1)


class LongArray(vkrnn.Array):
    """An Array that reports a shape of one element."""

    shape = (1,)


def test_copy_from_of_a_lying_subclass(cpu: vkrnn.Device) -> None:
    """`copy_from` checks the size in bytes, not the shape that a subclass reports."""
    message = "[Array] source: expected a C-contiguous array of 4000 bytes, got 4"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LongArray(vkrnn.zeros(1000, device=cpu)).copy_from(np.ones(1, np.float32))


@pytest.mark.parametrize(("name", "argument"), [("int", "lengths"), ("float", "source")])
def test_dtypes_that_are_named_like_another(name: str, argument: str, cpu: vkrnn.Device) -> None:
    """NumPy names a 4-byte void type of a class "int" int32. It is refused, because it does not hold integers."""
    namesake = np.dtype((type(name, (np.void,), {}), 4))
    assert namesake.name == f"{name}32"
    given: dict[str, Any] = {"source": SOURCE, "lengths": np.array([5, 2, 3], np.int32)}
    given[argument] = given[argument].view(namesake)
    expected = "int32 or another integer" if argument == "lengths" else "float32, float64, float16 or bfloat16"
    message = f"[single_gate_rnn] {argument}: expected dtype {expected}, got void32"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        vkrnn.single_gate_rnn(recurrent_weight=WEIGHT, **given, device=cpu)


def test_descriptor_changed_by_force(cpu: vkrnn.Device) -> None:
    """An activation set past the checks to an unknown number is refused."""
    descriptor = vkrnn.SingleGateRNNDescriptor()
    object.__setattr__(descriptor, "activation", 200)
    message = "[single_gate_rnn] descriptor.activation: expected an Activation, got 200"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        vkrnn.single_gate_rnn(SOURCE, WEIGHT, descriptor=descriptor, device=cpu)
