"""Layers as users give them: to streams and networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import _core, operations, results
from vkrnn._base.warnings import warn_of_unused_bias
from vkrnn._interop.foreign import as_numpy
from vkrnn._ops.layer import Layer
from vkrnn.arrays import Array as DeviceArray

__all__ = ["STATES", "as_tuples", "flat_layers", "with_arrays"]

Array = npt.NDArray[Any]

_FUNCTIONS: dict[str, Callable[..., Any]] = {cell.name: getattr(operations, cell.name) for cell in _core.cells()}
STATES = tuple(state.initial for state in results.STATES)
_DTYPES = ("float32", "float64", "float16", "bfloat16")
_CONVERTERS = {"torch.nn.modules.": "from_torch", "keras.src.layers.": "from_keras", "onnx.": "from_onnx"}


def flat_layers(layers: Any, user: str) -> Iterator[Layer]:
    if isinstance(layers, Layer):
        yield layers
    elif not isinstance(layers, (tuple, list)):
        raise TypeError(
            f"[{user}] layers: expected a vkrnn.convert.Layer, a tuple (name, weights, descriptor) or a list of these, "
            f"got {type(layers).__name__}{_converter_of(layers)}"
        )
    elif layers and _names_an_operation(layers[0]):
        yield _layer_of(user, *layers)
    else:
        for layer in layers:
            yield from flat_layers(layer, user)


def _names_an_operation(value: Any) -> bool:
    is_layer = isinstance(value, Layer) or bool(_converter_of(value))
    return isinstance(value, str) or (callable(value) and not is_layer)


def _converter_of(value: object) -> str:
    """Return a hint at the function of `vkrnn.convert` for a layer of another library; empty for anything else."""
    for kind in type(value).__mro__:
        for owner, function in _CONVERTERS.items():
            if kind.__module__.startswith(owner):
                return f"; see vkrnn.convert.{function}"
    return ""


def _layer_of(user: str, function: Any = None, weights: Any = None, descriptor: Any = None, *more: Any) -> Layer:
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name not in _FUNCTIONS or more:
        known = ", ".join(repr(each) for each in _FUNCTIONS)
        raise TypeError(
            f"[{user}] layers: expected a tuple (name, weights, descriptor) with a name of {known}, got {function!r}"
            + (f" and {2 + len(more)} more" if more else "")
        )
    if not isinstance(weights, Mapping):
        raise TypeError(f"[{user}] layers: expected a dict of weights by name, got {type(weights).__name__}")
    return Layer(_FUNCTIONS[name], dict(weights), descriptor)


def as_tuples(layers: Iterable[Layer]) -> list[tuple[str, dict[str, Array], Any]]:
    """Return the layers as the core takes them, without initial states."""
    return [
        (
            layer.function.__name__,
            {name: array for name, array in layer.arguments.items() if name not in STATES},
            layer.descriptor,
        )
        for layer in layers
    ]


def with_arrays(layer: Layer, number: int, dtype: npt.DTypeLike | None, user: str) -> Layer:
    """Return the layer with NumPy arrays, converted to `dtype` unless that is None."""
    if dtype is not None and np.dtype(dtype).name not in _DTYPES:
        raise TypeError(f"[{user}] dtype: expected {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}, got {np.dtype(dtype)}")
    arguments: dict[str, Array] = {}
    given: Mapping[str, Any] = layer.arguments  # whatever the caller's dict has
    for name, value in given.items():
        if value is None:
            continue
        where = f"[{layer.function.__name__} 'layer {number}'] {name}:"
        array = as_numpy(value.numpy() if isinstance(value, DeviceArray) else value, where)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{where} expected a numpy.ndarray, got {type(value).__name__}")
        arguments[name] = array if dtype is None else array.astype(dtype)
    where = f"[{layer.function.__name__} 'layer {number}']"
    warn_of_unused_bias(where, arguments.get("secondary_bias"), layer.descriptor)
    return replace(layer, arguments=arguments)
