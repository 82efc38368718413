"""Errors about wrong arguments: whole messages, raised before a device is used."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import vkrnn
from hidden import NO_GPU
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

# Shapes for T = 5, N = 3, I = 7 and H = 4.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "single_gate_rnn": {"source": (5, 3, 7), "recurrent_weight": (4, 4), "input_weight": (4, 7)},
    "lstm": {"source": (5, 3, 7), "recurrent_weight": (16, 4), "input_weight": (16, 7)},
    "gru": {"source": (5, 3, 7), "recurrent_weight": (12, 4), "input_weight": (12, 7)},
}
STATES: dict[str, dict[str, tuple[int, ...]]] = {
    "single_gate_rnn": {"source_gradient": (5, 3, 4), "z_state": (5, 3, 4)},
    "lstm": {"source_gradient": (5, 3, 4), "z_state": (5, 3, 16), "cell_output_fwd": (5, 3, 4)},
    "gru": {"source_gradient": (5, 3, 4), "z_state": (5, 3, 12), "output_fwd": (5, 3, 4)},
}
for _cell in tuple(SHAPES):
    SHAPES[f"{_cell}_gradients"] = SHAPES[_cell] | STATES[_cell]
FUNCTIONS = tuple(SHAPES)


def arguments(function: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return right arguments with these changes. A tuple among the changes is the shape of an array."""
    shapes: dict[str, Any] = {**SHAPES[function], **(changes or {})}
    return {name: np.ones(value, np.float32) if isinstance(value, tuple) else value for name, value in shapes.items()}


@dataclass(frozen=True)
class Bad:
    """A call that must fail: the function, the wrong arguments and the whole message."""

    function: str
    changes: Mapping[str, Any]
    error: type[Exception]
    message: str

    def call(self, **rest: Any) -> None:
        """Make the call."""
        getattr(vkrnn, self.function)(**arguments(self.function, self.changes), **rest)


H_LSTM = "H = 4 from recurrent_weight.shape[0] / 4"
H_GRU = "H = 4 from recurrent_weight.shape[0] / 3"
T_N = "T = 5 from source.shape[0], N = 3 from source.shape[1]"

TYPES = [
    Bad("lstm", {"source": [[[1.0]]]}, TypeError, "[lstm] source: expected a numpy.ndarray or a vkrnn.Array, got list"),
    Bad(
        "lstm",
        {"recurrent_weight": 0.5},
        TypeError,
        "[lstm] recurrent_weight: expected a numpy.ndarray or a vkrnn.Array, got float",
    ),
    Bad("gru", {"bias": 1.0}, TypeError, "[gru] bias: expected a numpy.ndarray or a vkrnn.Array, got float"),
    Bad("gru", {"descriptor": "tanh"}, TypeError, "[gru] descriptor: expected a GRUDescriptor, got a str"),
    Bad("gru", {"descriptor": GRUDescriptor}, TypeError, "[gru] descriptor: expected a GRUDescriptor, got a type"),
    Bad(
        "lstm",
        {"descriptor": GRUDescriptor()},
        TypeError,
        "[lstm] descriptor: expected an LSTMDescriptor, got a GRUDescriptor",
    ),
    Bad(
        "single_gate_rnn_gradients",
        {"descriptor": LSTMDescriptor()},
        TypeError,
        "[single_gate_rnn_gradients] descriptor: expected a SingleGateRNNDescriptor, got an LSTMDescriptor",
    ),
    Bad("lstm", {"name": 3}, TypeError, "[lstm] name: expected a str, got int"),
    Bad(
        "gru_gradients",
        {"name": "layer \ud800"},
        ValueError,
        "[gru_gradients] name: expected a str without lone surrogates, got 'layer \\ud800'",
    ),
    Bad(
        "lstm",
        {"device": 0.5},
        TypeError,
        "[lstm] device: expected a vkrnn.Device, an int or a str, got float",
    ),
    Bad(
        "lstm",
        {"peephole": np.zeros(16, np.float16), "name": "layer 2"},
        TypeError,
        "[lstm 'layer 2'] peephole: expected dtype float32 like source, got float16",
    ),
]


def dtype_message(function: str, name: str, dtype: str) -> str:
    """Return the error for an argument whose dtype is not float32, the dtype of the call's other arguments."""
    if name != "source":
        return f"[{function}] {name}: expected dtype float32 like source, got {dtype}"
    if dtype.startswith("float"):
        return f"[{function}] recurrent_weight: expected dtype {dtype} like source, got float32"
    return f"[{function}] source: expected dtype float32, float64, float16 or bfloat16, got {dtype}"


DTYPES = [
    Bad(
        function,
        {name: np.ones(SHAPES[function][name], dtype)},
        TypeError,
        dtype_message(function, name, np.dtype(dtype).name),
    )
    for (function, name), dtype in zip(
        ((function, name) for function in FUNCTIONS for name in SHAPES[function]),
        itertools.cycle([np.float64, np.float16, np.int32, np.bool_, np.complex64, object]),
        strict=False,
    )
]
ZERO_SIZES = [
    Bad(
        function,
        {name: (*SHAPES[function][name][:-1], 0)},
        ValueError,
        f"[{function}] {name}: every axis but the batch must be at least 1, got {[*SHAPES[function][name][:-1], 0]}",
    )
    for function in FUNCTIONS
    for name in SHAPES[function]
] + [
    Bad(
        "gru",
        {"source": (0, 3, 7)},
        ValueError,
        "[gru] source: every axis but the batch must be at least 1, got [0, 3, 7]",
    ),
]
SIZES = [
    Bad("lstm", {"source": (5, 21)}, ValueError, "[lstm] source: expected 3 axes [T, N, I], got [5, 21]"),
    Bad(
        "lstm",
        {"source": (5, 21), "input_weight": None},
        ValueError,
        "[lstm] source: expected 3 axes [T, N, 4H], got [5, 21]",
    ),
    Bad(
        "lstm",
        {"recurrent_weight": (512, 64)},
        ValueError,
        "[lstm] recurrent_weight: expected shape [4H, H] = [512, 128], got [512, 64] "
        "(H = 128 from recurrent_weight.shape[0] / 4)",
    ),
    *(
        Bad(
            f"{cell}{suffix}",
            {"recurrent_weight": (4, 4 * gates)},
            ValueError,
            f"[{cell}{suffix}] recurrent_weight: expected shape [{gates}H, H] = [{4 * gates}, 4], got [4, {4 * gates}] "
            "(it looks transposed)",
        )
        for cell, gates in (("lstm", 4), ("gru", 3))
        for suffix in ("", "_gradients")
    ),
    Bad(
        "lstm",
        {"input_weight": (7, 16)},
        ValueError,
        "[lstm] input_weight: expected shape [4H, I] = [16, 7], got [7, 16] (I = 7 from source.shape[2], "
        f"{H_LSTM}; it looks transposed)",
    ),
    Bad(
        "gru",
        {"recurrent_weight": (16, 4)},
        ValueError,
        "[gru] recurrent_weight: expected shape [3H, H], got [16, 4] (16 is no multiple of the 3 gates)",
    ),
    Bad(
        "single_gate_rnn",
        {"recurrent_weight": (4, 5)},
        ValueError,
        "[single_gate_rnn] recurrent_weight: expected shape [H, H] = [4, 4], got [4, 5] "
        "(H = 4 from recurrent_weight.shape[0])",
    ),
    Bad(
        "gru",
        {"input_weight": (12, 8)},
        ValueError,
        f"[gru] input_weight: expected shape [3H, I] = [12, 7], got [12, 8] (I = 7 from source.shape[2], {H_GRU})",
    ),
    Bad(
        "gru",
        {"input_weight": None},
        ValueError,
        f"[gru] source: expected shape [T, N, 3H] = [5, 3, 12], got [5, 3, 7] ({T_N}, {H_GRU}; without input_weight "
        "the source holds the gates)",
    ),
    Bad("lstm", {"bias": (4,)}, ValueError, f"[lstm] bias: expected shape [4H] = [16], got [4] ({H_LSTM})"),
    Bad(
        "gru",
        {"secondary_bias": (12,)},
        ValueError,
        f"[gru] secondary_bias: expected shape [H] = [4], got [12] ({H_GRU})",
    ),
    Bad("lstm", {"peephole": (12,)}, ValueError, f"[lstm] peephole: expected shape [4H] = [16], got [12] ({H_LSTM})"),
    *(
        Bad(
            "lstm",
            {name: (2, 4)},
            ValueError,
            f"[lstm] {name}: expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4], got [2, 4] "
            f"(N = 3 from source.shape[1], {H_LSTM})",
        )
        for name in ("init_state", "init_cell")
    ),
    Bad(
        "gru",
        {"mask": (3, 3, 4)},
        ValueError,
        "[gru] mask: expected a shape that broadcasts to [T, N, H] = [5, 3, 4] or [T, N, 3H] = [5, 3, 12], "
        f"got [3, 3, 4] ({T_N}, {H_GRU})",
    ),
    Bad(
        "single_gate_rnn",
        {"mask": (5, 3, 12)},
        ValueError,
        "[single_gate_rnn] mask: expected a shape that broadcasts to [T, N, H] = [5, 3, 4], got [5, 3, 12] "
        f"({T_N}, H = 4 from recurrent_weight.shape[0])",
    ),
    Bad(
        "gru",
        {"mask": (1, 5, 3, 4)},
        ValueError,
        "[gru] mask: expected a shape that broadcasts to [T, N, H] = [5, 3, 4] or [T, N, 3H] = [5, 3, 12], "
        f"got [1, 5, 3, 4] ({T_N}, {H_GRU})",
    ),
]
HEADS = [
    Bad(
        "lstm",
        {"descriptor": LSTMDescriptor(heads=3)},
        ValueError,
        f"[lstm] descriptor.heads: expected a divisor of H = 4, got 3 ({H_LSTM})",
    ),
    Bad(
        "gru_gradients",
        {"descriptor": GRUDescriptor(heads=2)},
        ValueError,
        f"[gru_gradients] recurrent_weight: expected shape [3H, H/2] = [12, 2], got [12, 4] ({H_GRU})",
    ),
    Bad(
        "gru",
        {"descriptor": GRUDescriptor(heads=2), "recurrent_weight": (2, 12)},
        ValueError,
        "[gru] recurrent_weight: expected shape [3H, H/2] = [12, 2], got [2, 12] (it looks transposed)",
    ),
    Bad(
        "lstm",
        {"descriptor": LSTMDescriptor(input_heads=3)},
        ValueError,
        f"[lstm] descriptor.input_heads: expected a divisor of H = 4, got 3 ({H_LSTM})",
    ),
    Bad(
        "lstm_gradients",
        {"descriptor": LSTMDescriptor(input_heads=2)},
        ValueError,
        "[lstm_gradients] descriptor.input_heads: expected a divisor of I = 7, got 2 (I = 7 from source.shape[2])",
    ),
    Bad(
        "gru",
        {"descriptor": GRUDescriptor(input_heads=4), "source": (5, 3, 8), "input_weight": (12, 8)},
        ValueError,
        f"[gru] input_weight: expected shape [3H, I/4] = [12, 2], got [12, 8] (I = 8 from source.shape[2], {H_GRU})",
    ),
    Bad(
        "gru",
        {"descriptor": GRUDescriptor(input_heads=2), "source": (5, 3, 12), "input_weight": None},
        ValueError,
        "[gru] descriptor.input_heads: expected 1 without input_weight, got 2",
    ),
]
DIRECTIONS = [
    Bad(
        "lstm",
        {"recurrent_weight": (2, 16, 4)},
        ValueError,
        "[lstm] recurrent_weight: expected shape [4H, H], got [2, 16, 4] "
        "(weights for two directions need bidirectional=True)",
    ),
    Bad(
        "single_gate_rnn",
        {"descriptor": SingleGateRNNDescriptor(bidirectional=True)},
        ValueError,
        "[single_gate_rnn] recurrent_weight: expected shape [2, H, H], got [4, 4] "
        "(bidirectional=True needs a weight for each of the two directions)",
    ),
    Bad(
        "gru",
        {"recurrent_weight": (2, 12, 4), "descriptor": GRUDescriptor(bidirectional=True)},
        ValueError,
        "[gru] input_weight: expected shape [6H, I] = [24, 7], got [12, 7] "
        "(I = 7 from source.shape[2], H = 4 from recurrent_weight.shape[1] / 3)",
    ),
]
TRAINING_STATES = [
    Bad(
        f"{cell}_gradients",
        {name: (4, *shape[1:])},
        ValueError,
        f"[{cell}_gradients] {name}: expected shape [T, N, {symbol}] = {list(shape)}, got {[4, *shape[1:]]} ({T_N}, "
        f"H = 4 from recurrent_weight.shape[0]{gates}); it must come from {cell} with training=True and these "
        "arguments",
    )
    for cell, gates in (("single_gate_rnn", ""), ("lstm", " / 4"), ("gru", " / 3"))
    for name, shape in STATES[cell].items()
    if name != "source_gradient"
    for symbol in ["H" if shape[-1] == 4 else f"{shape[-1] // 4}H"]
] + [
    Bad(
        "gru_gradients",
        {"source_gradient": (3, 4)},
        ValueError,
        f"[gru_gradients] source_gradient: expected shape [T, N, H] = [5, 3, 4], got [3, 4] ({T_N}, {H_GRU})",
    ),
    Bad(
        "lstm_gradients",
        {"cell_gradient": (2, 3, 4)},
        ValueError,
        "[lstm_gradients] cell_gradient: expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4] or [T, N, H] = "
        f"[5, 3, 4], got [2, 3, 4] ({T_N}, {H_LSTM})",
    ),
]
UNKNOWN = [
    Bad("gru", {"peephole": (16,)}, TypeError, "gru() got an unexpected keyword argument 'peephole'"),
    Bad("lstm", {"secondary_bias": (4,)}, TypeError, "lstm() got an unexpected keyword argument 'secondary_bias'"),
]
TABLE = [*TYPES, *DTYPES, *ZERO_SIZES, *SIZES, *HEADS, *DIRECTIONS, *TRAINING_STATES, *UNKNOWN]


@pytest.fixture(scope="module", name="closed")
def _closed() -> vkrnn.Device:
    device = vkrnn.Device()
    device.close()
    return device


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: f"{bad.function}-{'-'.join(bad.changes)}")
def test_message(bad: Bad, closed: vkrnn.Device) -> None:
    """The whole message is as listed. The device is closed, so the error must come before it is used."""
    rest = {} if "device" in bad.changes else {"device": closed}
    with pytest.raises(bad.error) as caught:
        bad.call(**rest)
    assert str(caught.value) == bad.message
    assert type(caught.value) is bad.error


@pytest.mark.parametrize("function", FUNCTIONS)
def test_right_arguments_reach_the_device(function: str, closed: vkrnn.Device) -> None:
    """Without the changes, the table's arguments pass all checks: the error is that of the closed device."""
    with pytest.raises(vkrnn.DeviceError) as caught:
        getattr(vkrnn, function)(**arguments(function), device=closed)
    assert str(caught.value) == f"[{function}] the device is closed; open a new vkrnn.Device"


@pytest.mark.parametrize("user", [vkrnn.plan, vkrnn.check])
def test_plan_and_check_report_the_same(user: Callable[..., Any], closed: vkrnn.Device) -> None:
    """`plan` and `check` report wrong arguments with the message of the call."""
    bad = SIZES[2]
    with pytest.raises(bad.error) as caught:
        user(getattr(vkrnn, bad.function), **arguments(bad.function, bad.changes), device=closed)
    assert str(caught.value) == bad.message


def test_plan_of_another_function() -> None:
    """`plan` accepts only the operations."""
    with pytest.raises(
        TypeError, match=r"^\[plan\] function: expected one of vkrnn\.single_gate_rnn, .*, got <built-in"
    ):
        vkrnn.plan(print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^\[lstm\] missing a required argument: 'recurrent_weight'$"):
        vkrnn.plan(vkrnn.lstm, np.ones((5, 3, 16), np.float32))


def test_wrong_arguments_are_reported_without_a_driver() -> None:
    """A wrong shape is reported even if there is no Vulkan driver and no such device."""
    program = "import numpy, vkrnn; vkrnn.lstm(numpy.ones((5, 3, 16), 'f4'), numpy.ones((16, 5), 'f4'))"
    run = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | NO_GPU, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        "ValueError: [lstm] recurrent_weight: expected shape [4H, H] = [16, 4], got [16, 5] "
        "(H = 4 from recurrent_weight.shape[0] / 4)"
    )


def test_arrays_of_any_layout_give_the_same_bits() -> None:
    """Strided, byte-swapped, read-only and unaligned arrays are accepted."""
    rng = np.random.default_rng(7)
    source, weight = (rng.standard_normal(shape).astype(np.float32) for shape in [(5, 3, 16), (16, 4)])
    (wanted,) = vkrnn.lstm(source, weight)
    swapped = source.astype(">f4")
    strided = np.repeat(source, 2, axis=2)[:, :, ::2]
    unaligned = np.frombuffer(b"\0" + source.tobytes(), np.uint8)[1:].view(np.float32).reshape(source.shape)
    fixed = source.copy()
    fixed.flags.writeable = False
    assert not strided.flags.c_contiguous
    assert not unaligned.flags.aligned
    for twin in (swapped, strided, unaligned, fixed, np.asfortranarray(source)):
        np.testing.assert_array_equal(vkrnn.lstm(twin, weight).output, wanted)
