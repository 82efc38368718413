"""Random calls of the functions from a seed, with any options, sizes, dtypes and layouts; half have a mistake.

A call without a mistake must agree with the reference. A call with one must raise a documented class of error, whose
message begins with the function's name, or be valid after all and agree with the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from blends import KINDS as BLENDS
from blends import draw_blends
from cases import (
    ACTIVATIONS,
    CELLS,
    DESCRIPTORS,
    FLAGS,
    GATES,
    HEADS,
    NAMES,
    NUMBERS,
    OPTIONAL,
    UPSTREAM,
    WORDS,
    Case,
    gradient_inputs,
    inputs,
)
from comparison import assert_close, scaled_error
from resets import KINDS, STARTS, draw_resets
from resident import dtype_of
from tolerances import DTYPES

Array = NDArray[Any]
Generator = np.random.Generator

# Every sum and step is rounded; rounding the arguments stands for one of these.
CHANGES = 4
LARGEST = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}
DOCUMENTED = (TypeError, ValueError, NotImplementedError, MemoryError, vkrnn.DeviceError)


@dataclass
class Drawn:
    """A call: the function's name, its arguments, the descriptor's class and options, and the mistake."""

    function: str
    arguments: dict[str, Any]
    descriptor: type[Any]
    options: dict[str, Any]
    spoilt: str = ""

    def __str__(self) -> str:
        """Return the call as readable text."""
        arguments = [f"{name}={_shown(value)}" for name, value in self.arguments.items()]
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        shown = ", ".join([*arguments, f"descriptor={self.descriptor.__name__}({options})"])
        return f"{self.function}({shown})" + (f"  # spoilt: {self.spoilt}" if self.spoilt else "")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.dtype.str} {list(value.shape)}, strides {list(value.strides)}>"
    return repr(value)


@dataclass(frozen=True)
class Options:
    """The options for which a Vulkan driver compiles kernels; a few others follow from sizes."""

    cell: str
    of_descriptor: Mapping[str, Any]
    present: frozenset[str]
    dtype: np.dtype[Any]
    has_lengths: bool
    gradients: bool
    resets: tuple[str, str] | None  # the kind of the reset, and what it starts from
    recurs: bool = True  # whether there is a recurrent weight
    blends: str | None = None  # their kind


def draw_options(rng: Generator) -> Options:
    """Draw a cell, its options, its optional arguments and their dtype."""
    cell = str(rng.choice(list(GATES)))
    options: dict[str, Any] = {}
    direction = rng.integers(4)
    options |= {"reverse": True} if direction == 1 else {"bidirectional": True} if direction == 2 else {}
    options |= {name: True for name in FLAGS[cell] if rng.random() < 0.4}
    options |= {name: str(rng.choice(NAMES)) for name in ACTIVATIONS[cell] if rng.random() < 0.3}
    options |= {name: str(rng.choice(words)) for name, words in WORDS[cell].items() if rng.random() < 0.5}
    options |= {name: float(rng.uniform(0.1, 1)) for name in NUMBERS[cell] if rng.random() < 0.15}
    gradients = bool(rng.random() < 0.5)
    if not gradients:
        names = ["training"] + ["produce_cell"] * bool(CELLS[cell])
        options |= {name: True for name in names if rng.random() < 0.4}
    names = [*OPTIONAL[cell], *UPSTREAM[cell]]
    present = frozenset(name for name in names if rng.random() < 0.6)
    options |= {name: 1 for name in HEADS.values() if rng.random() < 0.2}  # draw_case draws the number
    recurs = bool(rng.random() < 0.85)
    if not recurs:
        present -= {"mask"}
        options.pop("heads", None)
    if "input_weight" not in present:
        options.pop("input_heads", None)
    dtype = dtype_of(str(rng.choice(list(DTYPES), p=[0.2, 0.5, 0.15, 0.15])))
    has_lengths = bool(rng.random() < 0.3)
    resets = (str(rng.choice(KINDS)), str(rng.choice(STARTS))) if rng.random() < 0.3 else None
    blends = str(rng.choice(BLENDS)) if rng.random() < 0.25 else None
    return Options(cell, options, present, dtype, has_lengths, gradients, resets, recurs, blends)


def draw_case(rng: Generator, of: Options) -> Case:
    """Draw sizes, sometimes large ones."""
    largest = 40 if rng.random() < 0.05 else 7
    T, N, H, features = (int(rng.integers(1, largest + 1)) for _ in range(4))
    T = min(T, 16)
    directions = 2 if of.of_descriptor.get("bidirectional") else 1
    options = dict(of.of_descriptor)
    for weight, name in HEADS.items():
        if name in options:  # the number itself follows from the sizes
            H *= int(rng.integers(1, 4))
            features *= int(rng.integers(1, 4))
            sizes = [H] if weight == "recurrent_weight" else [H, features]
            options[name] = int(rng.choice([n for n in range(1, H + 1) if all(size % n == 0 for size in sizes)]))
    if "input_weight" not in of.present:
        features = directions * GATES[of.cell] * H
    mask_shape = None
    if "mask" in of.present and rng.random() < 0.5:
        gates = GATES[of.cell] if rng.random() < 0.4 else 1
        mask_shape = tuple(size if rng.random() < 0.6 else 1 for size in (T, N, directions * gates * H))
    seed, lenient, each_cell = int(rng.integers(1, 1 << 30)), bool(rng.random() < 0.1), bool(rng.random() < 0.3)
    return Case(of.cell, T, N, features, H, options, of.present, mask_shape, seed, lenient=lenient, each_cell=each_cell)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda a: a,
    "Fortran": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a,
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1] if a.ndim else a,
    "other bytes": lambda a: a.astype(a.dtype.newbyteorder()) if a.dtype.kind == "f" else a,
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "the first everywhere": lambda a: np.broadcast_to(a[:1], a.shape) if a.ndim else a,
}


def lay_out(rng: Generator, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Give each array a random layout, or put all of them on the device."""
    if rng.random() < 0.2:
        return {name: array if array.dtype == bool else vkrnn.asarray(array) for name, array in arrays.items()}
    layouts = list(LAYOUTS.values())
    chosen = {name: layouts[rng.integers(len(layouts)) if rng.random() < 0.4 else 0] for name in arrays}
    return {name: chosen[name](array) for name, array in arrays.items()}


class _Odd:
    """An object without any protocol."""


def garbage(rng: Generator) -> Any:
    """Draw a value that is hardly ever valid."""
    some: list[Any] = [
        None, True, 3, -1, 2**70, 1.5, float("nan"), "x", "\ud800", b"y", [], [[1.0]], (), {}, set(), _Odd(), _Odd, len,
        np.float32(2), np.array("x"), np.array(None), np.array([{}]), np.zeros((2, 2), "M8[s]"), np.zeros(0, "V8"),
        np.zeros((0, 3), np.float32), np.zeros((1,) * 20, np.float32), np.zeros(3, np.complex64), np.ma.masked_all(3),
        memoryview(b"abcd"), np.broadcast_to(np.float32(0), (2**40, 2**20)), np.broadcast_to(np.float32(0), (2**60, 1)),
        Ellipsis, slice(3),
    ]  # fmt: skip
    return some[rng.integers(len(some))]


def _pick(rng: Generator, call: Drawn) -> str:
    names = list(call.arguments)
    return names[rng.integers(len(names))]


def _pick_array(rng: Generator, call: Drawn) -> str:
    """Pick an argument other than the lengths and make a NumPy array of it."""
    names = [name for name, value in call.arguments.items() if name != "lengths" and value is not None]
    name = names[rng.integers(len(names))]
    call.arguments[name] = _on_host(call.arguments[name])
    return name


def _an_argument_is_garbage(rng: Generator, call: Drawn) -> None:
    call.arguments[_pick(rng, call)] = garbage(rng)


def _a_size_is_another(rng: Generator, call: Drawn) -> None:
    name = _pick_array(rng, call)
    shape = list(call.arguments[name].shape) or [1]
    axis = int(rng.integers(len(shape)))
    shape[axis] = max(0, shape[axis] + int(rng.choice([-1, 1, 7, -shape[axis]])))
    call.arguments[name] = np.resize(call.arguments[name], shape)


def _an_axis_more_or_less(rng: Generator, call: Drawn) -> None:
    name = _pick_array(rng, call)
    array = call.arguments[name]
    call.arguments[name] = array[0] if array.ndim and array.shape[0] and rng.random() < 0.5 else array[None]


def _a_dtype_is_another(rng: Generator, call: Drawn) -> None:
    name = _pick_array(rng, call)
    dtype = str(rng.choice(["f2", "f4", "f8", ">f4", "i4", "u1", "?", "c8", "O", "U3", "f16"]))
    call.arguments[name] = call.arguments[name].astype(np.float64).astype(dtype)


def _cancels(function: str, name: str) -> bool:
    """Return whether a large number in the argument makes differences of large numbers, which have large errors.

    The parts in a blend, or of a reset, add up to 1. The gradients of the sLSTM's gates take away the stabilizer's,
    which has the same terms; they are small if the states before and after a step belong together.
    """
    states = ("init_cell", "init_normalizer", "cell_output_fwd", "normalizer_output_fwd")
    parts = ("reset", "zoneout_mask", "zoneout_cell_mask", "leak")
    return name in parts or (function == "slstm_gradients" and name in states)


def _numbers_are_not_finite(rng: Generator, call: Drawn) -> None:
    name = _pick_array(rng, call)
    array = np.array(call.arguments[name])
    flat = array.reshape(-1)
    if flat.size:
        number = rng.choice([np.nan, np.inf, -np.inf, 3e4, -1e-8])
        flat[rng.integers(flat.size)] = min(number, 1.0) if _cancels(call.function, name) else number
    call.arguments[name] = array


def _an_argument_is_left_out(rng: Generator, call: Drawn) -> None:
    del call.arguments[_pick(rng, call)]


def _an_argument_too_many(rng: Generator, call: Drawn) -> None:
    names = [
        "sauce",
        "reset",
        "reset_state",
        "zoneout_mask",
        "zoneout_cell_mask",
        "leak",
        "output_fwd",
        "peephole",
        "init_cell",
        "secondary_bias",
        "cell_gradient",
        "z_state",
        "out",
        "device",
        "lengths",
    ]
    call.arguments[str(rng.choice(names))] = garbage(rng)


def _the_descriptor_is_another(rng: Generator, call: Drawn) -> None:
    classes = list(DESCRIPTORS.values())
    if rng.random() < 0.5:
        call.descriptor, call.options = classes[rng.integers(len(classes))], {}
        return
    properties = ["activation", "reverse", "bidirectional", "training", "forget_gate_last", "reset_after", "nonsense"]
    values = [garbage(rng), str(rng.choice(NAMES)), bool(rng.integers(2)), int(rng.integers(5))]
    call.options[str(rng.choice([*properties, *HEADS.values()]))] = values[rng.integers(4)]


def _lengths_are_wrong(rng: Generator, call: Drawn) -> None:
    steps = call.arguments["source"].shape[0]
    rows = max(0, call.arguments["source"].shape[1] + int(rng.integers(-1, 2)))
    lengths = rng.integers(-1, steps + 2, rows).astype(str(rng.choice(["i1", "u8", "i8", "f4", "?"])))
    call.arguments["lengths"] = lengths.tolist() if rng.random() < 0.3 else lengths


SPOIL = (
    _an_argument_is_garbage, _a_size_is_another, _an_axis_more_or_less, _a_dtype_is_another, _numbers_are_not_finite,
    _an_argument_is_left_out, _an_argument_too_many, _the_descriptor_is_another, _lengths_are_wrong,
)  # fmt: skip


def _converted(array: Array, dtype: np.dtype[Any]) -> Array:
    return array if array.dtype == bool else array.astype(dtype)


def draw(rng: Generator, of: Options) -> Drawn:
    """Draw a call. Gradient calls use the results of a forward call on the device."""
    case = draw_case(rng, of)
    drawn_arrays = inputs(case) | (draw_resets(case, *of.resets, case.seed) if of.resets else {})
    drawn_arrays |= draw_blends(case, of.blends, case.seed) if of.blends else {}
    arrays: dict[str, Any] = {name: _converted(array, of.dtype) for name, array in drawn_arrays.items()}
    more: dict[str, Any] = {}
    if not of.recurs:
        del arrays["recurrent_weight"]
        more["recurrent_weight"] = None
    if of.has_lengths:
        drawn = rng.integers(0, case.T + 1, case.N)
        more["lengths"] = drawn.tolist() if rng.random() < 0.3 else drawn.astype(str(rng.choice(["i4", "u1"])))
    function = case.cell
    if of.gradients:
        training = case.descriptor(training=True)
        results = getattr(vkrnn, function)(**arrays, **more, descriptor=training)
        above = gradient_inputs(case, results) | ({"output_fwd": results.output} if of.blends else {})
        arrays |= {name: array.astype(of.dtype, copy=False) for name, array in above.items()}
        function += "_gradients"
    call = Drawn(function, lay_out(rng, arrays) | more, DESCRIPTORS[case.cell], dict(case.options))
    if rng.random() < 0.5:
        spoil = SPOIL[rng.integers(len(SPOIL))]
        spoil(rng, call)
        call.spoilt = spoil.__name__[1:].replace("_", " ")
    return call


def drawn(seed: int, number: int, calls_of_options: int = 1) -> Drawn:
    """Return the n-th call of a seed. This many successive calls have the same options."""
    of = draw_options(np.random.default_rng([seed, number // calls_of_options]))
    return draw(np.random.default_rng([seed, number, 1]), of)


def check(call: Drawn) -> str:
    """Make the call and check how it ends. Return "right" or the error's class."""
    function = getattr(vkrnn, call.function)
    try:
        descriptor = call.descriptor(**call.options)
        got = function(**call.arguments, descriptor=descriptor)
    except DOCUMENTED as error:
        if not call.spoilt:
            raise
        text = str(error)
        name = call.descriptor.__name__
        pythons_own = isinstance(error, TypeError) and text.startswith((f"{call.function}()", f"{name}.__init__()"))
        assert text.startswith((f"[{call.function}] ", f"[{name}] ")) or pythons_own, f"no prefix: {text}"
        return type(error).__name__
    on_host = {name: _on_host(value) for name, value in call.arguments.items() if name not in ("out", "device")}
    wanted = _of_reference(call, on_host, descriptor)
    results = {name: _on_host(array) for name, array in got._asdict().items()}
    assert list(results) == list(wanted)
    dtype = next(iter(results.values())).dtype.name
    # Non-finite numbers may differ: a device does not multiply by an absent state, but multiplies padding
    # by zero.
    compared = [*wanted.values(), *(results.values() if call.spoilt == "numbers are not finite" else ())]
    if not all(np.isfinite(array.astype(np.float64)).all() for array in results.values()):
        compared += _hidden_from_caller(call, on_host)
    if not all((np.abs(array) < LARGEST[dtype]).all() for array in compared):
        assert [array.shape for array in results.values()] == [array.shape for array in wanted.values()]
        return "not finite"
    try:
        assert_close(results, wanted, DTYPES[dtype])
    except AssertionError:
        assert_close(results, wanted, _change_by_rounding(call, on_host, descriptor, wanted, dtype))
    return "right"


def _of_reference(call: Drawn, arguments: Mapping[str, Any], descriptor: Any) -> dict[str, Array]:
    """Return the reference's results by name. Growing states may overflow."""
    with np.errstate(all="ignore"):
        return dict(getattr(vkrnn.reference, call.function)(**arguments, descriptor=descriptor)._asdict())


def _hidden_from_caller(call: Drawn, arguments: Mapping[str, Any]) -> list[Array]:
    """Return all intermediate arrays of a forward call: a cell state may overflow though the output is finite."""
    if call.function.endswith("_gradients"):
        return []
    return [*_of_reference(call, arguments, call.descriptor(**{**call.options, "training": True})).values()]


def _change_by_rounding(
    call: Drawn, arguments: Mapping[str, Any], descriptor: Any, wanted: Mapping[str, Array], dtype: str
) -> dict[str, float]:
    """Return limits for ill-conditioned calls, such as a gate that is a tanh and lets the state grow.

    They are `CHANGES` times the change of the reference's results when its arguments are rounded differently.
    """
    rounding = 2.0**-52 if dtype == "float64" else 2.0**-23
    limits = dict.fromkeys(wanted, DTYPES[dtype])
    for seed in range(6):
        rng = np.random.default_rng(seed)

        def moved(value: Any, rng: Generator = rng) -> Any:
            if not isinstance(value, np.ndarray) or value.dtype.kind in "iub":
                return value
            return value.astype(np.float64) * (1 + rounding * rng.choice([-1, 1], value.shape))

        changed = {name: moved(value) for name, value in arguments.items()}
        other = _of_reference(call, changed, descriptor)
        for name, array in wanted.items():
            limits[name] = max(limits[name], DTYPES[dtype] + CHANGES * scaled_error(other[name], array))
    return limits


def _on_host(value: Any) -> Any:
    return value.numpy() if isinstance(value, vkrnn.Array) else value
