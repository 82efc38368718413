"""Arguments of other libraries' types, such as tensors and lists, and the operators that an Array does not have."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from oracles import require
from resident import KINDS, dtype_of

Array = NDArray[Any]
Arrays = dict[str, Array]

SHAPES = {
    "source": (5, 3, 7),
    "recurrent_weight": (16, 4),
    "input_weight": (16, 7),
    "bias": (16,),
    "init_state": (3, 4),
}


@pytest.fixture(name="arrays")
def _arrays() -> Arrays:
    rng = np.random.default_rng(3)
    return {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}


class WithArray:
    """An object with `__array__`."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._array if dtype is None else self._array.astype(dtype)


METAL = 8  # DLPack's number of a kind of memory that vkrnn knows nothing of


class WithDLPack:
    """An object with nothing but DLPack's methods; its memory may claim to be on another device."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


def same(results: Any, others: Any) -> None:
    """Fail unless both are NumPy arrays with the same bits."""
    for got, wanted in zip(results, others, strict=True):
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("wrap", [WithArray, WithDLPack])
def test_protocols(arrays: Arrays, wrap: Callable[[Array], Any]) -> None:
    """Calls, `plan`, `check` and `copy_from` accept such objects; results are NumPy arrays."""
    given = {name: wrap(array) for name, array in arrays.items()}
    same(vkrnn.lstm(**given), vkrnn.lstm(**arrays))
    assert vkrnn.plan(vkrnn.lstm, **given) == vkrnn.plan(vkrnn.lstm, **arrays)
    assert vkrnn.check(vkrnn.lstm, **given).ok
    assert vkrnn.check(vkrnn.lstm, *list(given.values())[:2], input_weight=given["input_weight"]).ok
    array = vkrnn.asarray(given["source"])
    np.testing.assert_array_equal(array.numpy(), arrays["source"])
    array.copy_from(wrap(arrays["source"] + 1))
    np.testing.assert_array_equal(array.numpy(), arrays["source"] + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors(torch: Any, arrays: Arrays, kind: str) -> None:
    """PyTorch tensors of every dtype, contiguous or not, mix with NumPy and device arrays."""
    tensors = {name: torch.from_numpy(array).to(getattr(torch, kind)) for name, array in arrays.items()}
    numpy = {name: tensor.double().numpy().astype(dtype_of(kind)) for name, tensor in tensors.items()}
    wanted = vkrnn.lstm(**numpy)
    assert wanted.output.dtype == dtype_of(kind)
    same(vkrnn.lstm(**tensors), wanted)
    strided = {name: tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor for name, tensor in tensors.items()}
    assert not strided["source"].is_contiguous()
    same(vkrnn.lstm(**strided), wanted)
    same(vkrnn.lstm(**{**numpy, "source": tensors["source"]}), wanted)
    array = vkrnn.asarray(tensors["source"])
    assert array.dtype == dtype_of(kind)
    np.testing.assert_array_equal(array.numpy(), numpy["source"])
    assert vkrnn.lstm(**{**tensors, "source": array}).output.device is array.device


def test_bfloat16_tensors_are_not_changed(torch: Any) -> None:
    """Reading a bfloat16 tensor through DLPack leaves its dtype and values."""
    tensor = torch.ones(5, 3, 4, dtype=torch.bfloat16)
    vkrnn.single_gate_rnn(tensor, torch.zeros(4, 4, dtype=torch.bfloat16))
    assert tensor.dtype == torch.bfloat16
    assert (tensor == 1).all()


@pytest.mark.parametrize("returned", [None, 3, "x", [1.0]])
@pytest.mark.parametrize("methods", [("__array__",), ("__dlpack__",), ("__dlpack__", "__dlpack_device__")])
def test_methods_that_return_no_array(arrays: Arrays, methods: tuple[str, ...], returned: Any) -> None:
    members = {"__dlpack_device__": lambda _: (1, 0)} if returned else {}
    members |= {name: lambda *_, **__: returned for name in methods}
    with pytest.raises(TypeError, match=r"^\[lstm\] source: expected an array( that can be shared)?, got a Odd: "):
        vkrnn.lstm(**{**arrays, "source": type("Odd", (), members)()})


def test_tensors_that_cannot_be_shared(torch: Any, arrays: Arrays) -> None:
    """A sparse tensor, memory of another device and an unsupported dtype are refused."""
    with pytest.raises(TypeError) as caught:
        vkrnn.lstm(**{**arrays, "bias": torch.ones(16).to_sparse()}, name="first")
    assert str(caught.value).startswith("[lstm 'first'] bias: expected an array that can be shared, got a Tensor: ")
    assert "layout" in str(caught.value)
    with pytest.raises(TypeError) as caught:
        vkrnn.lstm(**{**arrays, "bias": WithDLPack(arrays["bias"], METAL)})  # type: ignore[arg-type]
    assert str(caught.value) == (
        "[lstm] bias: expected CPU memory, got a WithDLPack on another device; copy it to the CPU first"
    )
    with pytest.raises(TypeError) as caught:
        vkrnn.lstm(**{**arrays, "bias": torch.ones(16, dtype=torch.int32)})
    assert str(caught.value) == "[lstm] bias: expected dtype float32 like source, got int32"


def test_arrays_of_jax(arrays: Arrays) -> None:
    """JAX arrays on the CPU are accepted, also in bfloat16."""
    numpy = require("jax.numpy")
    same(vkrnn.lstm(**{name: numpy.asarray(array) for name, array in arrays.items()}), vkrnn.lstm(**arrays))
    narrow = {name: array.astype(dtype_of("bfloat16")) for name, array in arrays.items()}
    same(vkrnn.lstm(**{name: numpy.asarray(array) for name, array in narrow.items()}), vkrnn.lstm(**narrow))


@pytest.mark.parametrize("kind", [list, tuple, WithArray, np.array])
def test_lengths(arrays: Arrays, kind: Callable[[Any], Any]) -> None:
    """`lengths` may be a list or any other sequence."""
    lengths = kind(np.array([2, 5, 1])) if kind is WithArray else kind([2, 5, 1])
    same(vkrnn.lstm(**arrays, lengths=lengths), vkrnn.lstm(**arrays, lengths=np.array([2, 5, 1])))
    assert vkrnn.check(vkrnn.lstm, **arrays, lengths=lengths).ok


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([2, 5], ValueError, "expected shape [N] = [3], got [2] (N = 3 from source.shape[1])"),
        ([2, 5, 6], ValueError, "expected 0 to T = 5, got 6 at [2]"),
        ([2, 5, 1.5], TypeError, "expected dtype int32 or another integer, got float64"),
        ([2, [5, 1]], TypeError, "expected integers, got a nested list"),
        (3, TypeError, "expected a numpy.ndarray, got int"),
        (
            np.ma.masked_array([2, 5, 1], [0, 1, 0]),
            TypeError,
            "expected an array without a mask, got a MaskedArray; see numpy.ma.filled",
        ),
    ],
)
def test_wrong_lengths(arrays: Arrays, lengths: Any, error: type[Exception], message: str) -> None:
    """A wrong list has the message of a wrong array."""
    with pytest.raises(error) as caught:
        vkrnn.lstm(**arrays, lengths=lengths)
    assert str(caught.value) == f"[lstm] lengths: {message}"


def test_masked_arrays(arrays: Arrays) -> None:
    """Masked arrays are refused everywhere, because the mask would be lost."""
    masked = np.ma.masked_array(arrays["source"], arrays["source"] < 0)
    message = "expected an array without a mask, got a MaskedArray; see numpy.ma.filled"
    calls: dict[str, Callable[[], Any]] = {
        f"[lstm] source: {message}": lambda: vkrnn.lstm(**{**arrays, "source": masked}),
        f"[asarray] array: {message}": lambda: vkrnn.asarray(masked),
        f"[Array.copy_from] source: {message}": lambda: vkrnn.zeros(masked.shape).copy_from(masked),
        "[lstm] out: output: expected a numpy.ndarray, got MaskedArray": lambda: vkrnn.lstm(
            **arrays, out=np.ma.masked_array(np.zeros((5, 3, 4), np.float32))
        ),
    }
    for text, call in calls.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == text


OTHERS: dict[str, Any] = {
    "int": 1,
    "NumPy's float": np.float32(1),
    "array": np.ones(3, np.float32),
    "Array": vkrnn.zeros(3),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "matmul", "pow", "lt", "ge"])
def test_no_arithmetic(name: str, other: str) -> None:
    """Operators with an Array on either side raise TypeError."""
    array, function = vkrnn.zeros(3), getattr(operator, name)
    for sides in ((array, OTHERS[other]), (OTHERS[other], array)):
        with pytest.raises(TypeError):
            function(*sides)


@pytest.mark.parametrize("other", OTHERS)
def test_equality_is_identity(other: str) -> None:
    """An Array equals only itself, and can be a key of a dict."""
    array = vkrnn.zeros(3)
    for sides in ((array, OTHERS[other]), (OTHERS[other], array)):
        assert operator.eq(*sides) is False
        assert operator.ne(*sides) is True
    assert operator.eq(array, array) is True
    assert {array: 1}[array] == 1


def test_tensors_that_require_gradients_are_refused() -> None:
    """The error for such a tensor or a JAX tracer names the functions that compute its gradients."""
    torch = require("torch")
    weight = np.zeros((4, 4), np.float32)
    message = (
        "[single_gate_rnn] source: expected an array, got a Tensor that requires gradients: "
        "the modules of vkrnn.torch compute its gradients; tensor.detach() gives them up"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        vkrnn.single_gate_rnn(torch.zeros(5, 3, 4, requires_grad=True), weight)
    jax = require("jax")
    message = (
        "[lstm 'layer 2'] recurrent_weight: expected an array, got a tracer of JAX (DynamicJaxprTracer): "
        "within jax.jit, jax.grad and jax.vmap call the functions of vkrnn.jax"
    )
    source = np.zeros((5, 3, 4), np.float32)
    with pytest.raises(TypeError) as caught:  # JAX adds a note to the exception
        jax.jit(lambda given: vkrnn.lstm(source, given, name="layer 2"))(weight)
    assert str(caught.value) == message


def test_bfloat16_by_name() -> None:
    """The dtype "bfloat16" works even if ml_dtypes has not been imported."""
    pytest.importorskip("ml_dtypes")
    program = "import vkrnn; print(vkrnn.zeros(2, 'bfloat16', device='cpu (').dtype)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("bfloat16\n", "")
