"""Sessions of onnxruntime, where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper

__all__ = ["Unsupported", "find_onnxruntime", "model_of", "session_of", "value_of"]

# The types of tensors that onnxruntime exchanges as arrays of NumPy, by its names.
_TYPES: dict[str, int] = {
    "bool": TensorProto.BOOL,
    "double": TensorProto.DOUBLE,
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "string": TensorProto.STRING,
    **{
        f"{sign}int{bits}": getattr(TensorProto, f"{sign}int{bits}".upper())
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


class Unsupported(Exception):  # noqa: N818 - never reaches a user
    """Why a model, or a part of it, cannot run in onnxruntime."""


def find_onnxruntime() -> Any | None:
    """Return the package onnxruntime; None if it cannot be imported."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        return None


def session_of(onnxruntime: Any, model: ModelProto, *, spins: bool) -> Any:
    """Return a session of the model on the CPU. `spins` says whether its threads may spin after a run.

    Raises
    ------
    Unsupported
        If onnxruntime refuses the model, or has inputs or outputs of it that are no arrays of NumPy.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors, which are raised as well
    if not spins:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class but this one; a model above 2 GB fails, too
        raise Unsupported(f"onnxruntime refuses it: {error}") from error
    for value in (*session.get_inputs(), *session.get_outputs()):
        _type_of(value)
    return session


def _type_of(value: Any) -> int:
    kind: str = value.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise Unsupported(f"{value.name} has the type {value.type}")
    return _TYPES[kind]


def value_of(found: Any) -> ValueInfoProto:
    """Return an output of a session as an input of another one."""
    shape = [size if isinstance(size, int) else None for size in found.shape]
    return helper.make_tensor_value_info(found.name, _type_of(found), shape)


def model_of(
    model: ModelProto,
    nodes: Sequence[Any],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str],
    constants: Sequence[TensorProto],
) -> ModelProto:
    """Return a model of some of a model's nodes."""
    graph = GraphProto(
        name="part",
        node=nodes,
        input=inputs,
        output=[ValueInfoProto(name=name) for name in outputs],
        initializer=constants,
    )
    return ModelProto(graph=graph, opset_import=model.opset_import, ir_version=model.ir_version)
