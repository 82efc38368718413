"""Nodes that ONNX's own evaluator computes wrong without an error, as of onnx 1.23."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vkrnn.convert._onnx_attributes import QUANTIZED, place
from vkrnn.onnx._graph import Scope, Shape, nodes_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["require_right"]


@dataclass(frozen=True)
class _Seen:
    """A node with what is known of its inputs."""

    node: NodeProto
    opset: int
    attributes: Mapping[str, Any]
    scope: Scope

    def input(self, at: int) -> str:
        """Return an input's name, empty if it is absent."""
        return self.node.input[at] if at < len(self.node.input) else ""

    def shape(self, at: int) -> Shape | None:
        return self.scope.shapes.get(self.input(at))


def _axes(shape: Shape | None) -> str:
    return "an unknown number of axes" if shape is None else f"{len(shape)} axes"


# A fault is the place, the right and the given values, and what the evaluator does wrong.
_Fault: TypeAlias = tuple[str, str, str] | None


def _batch_normalization(seen: _Seen) -> _Fault:
    momentum = seen.attributes.get("momentum", 0.9)
    if not 9 <= seen.opset <= 13 or momentum == 1:
        return None
    expected = f"expected 1, or an opset from 14 on, got {momentum:.3g} in opset {seen.opset}"
    return "momentum", expected, "mixes the mean and variance of the batch into the given ones"


def _conv_transpose(seen: _Seen) -> _Fault:
    group, weight = seen.attributes.get("group", 1), seen.shape(1)
    if group == 1 or (weight is not None and weight[:2] == [group, 1] and not seen.input(2)):
        return None
    expected = f"expected 1, or groups of one input and one output channel without a bias, got {group}"
    return "group", expected, "takes the weights and biases of other groups"


def _global_max_pool(seen: _Seen) -> _Fault:
    shape = seen.shape(0)
    if shape is not None and len(shape) == 4:
        return None
    return "X", f"expected 4 axes, got {_axes(shape)}", "reduces the last two axes of any number"


def _grid_sample(seen: _Seen) -> _Fault:
    if (seen.attributes.get("mode"), seen.attributes.get("padding_mode")) != ("cubic", "border"):
        return None
    return "padding_mode", "expected zeros or reflection with mode cubic, got border", "clamps the grid's points"


def _loop(seen: _Seen) -> _Fault:
    if not seen.input(1):
        return "cond", "expected an input, got none", "then does no iterations"
    body = seen.attributes["body"]
    for value in body.output[len(body.input) - 1 :]:
        known = value.type.tensor_type.HasField("shape")
        shape: Shape | None = [None] * len(value.type.tensor_type.shape.dim) if known else None
        if shape is None or len(shape) != 1:
            expected = f"expected scan outputs with 1 axis, got {value.name!r} with {_axes(shape)}"
            return "body", expected, "adds no axis for the iterations"
    return None


def _lp_normalization(seen: _Seen) -> _Fault:
    p = seen.attributes.get("p", 2)
    return None if p == 2 else ("p", f"expected 2, got {p}", "adds numbers instead of their magnitudes")


def _lp_pool(seen: _Seen) -> _Fault:
    kernel = seen.attributes["kernel_shape"]
    strides, dilations = (seen.attributes.get(key, [1] * len(kernel)) for key in ("strides", "dilations"))
    pads, sizes = seen.attributes.get("pads", [0] * 2 * len(kernel)), (seen.shape(0) or [])[2:]
    whole = len(sizes) == len(kernel) and all(
        size is not None and (size + sum(pads[axis :: len(kernel)]) - (length - 1) * dilation - 1) % stride == 0
        for axis, (size, length, dilation, stride) in enumerate(zip(sizes, kernel, dilations, strides, strict=True))
    )
    if not seen.attributes.get("ceil_mode", 0) or whole:
        return None
    expected = "expected 0, or windows that end where the padded input does, got 1"
    return "ceil_mode", expected, "scales up the sums of windows that reach beyond the end"


def _max_pool(seen: _Seen) -> _Fault:
    moves = any(number != 1 for key in ("strides", "dilations") for number in seen.attributes.get(key, ()))
    indices = len(seen.node.output) > 1 and seen.node.output[1]
    if not indices or moves or len(seen.attributes["kernel_shape"]) == 1:
        return None
    return "Indices", "expected no such output with all strides 1, got one", "returns wrong indices"


def _resize(seen: _Seen) -> _Fault:
    from onnx import numpy_helper  # noqa: PLC0415 - an extra

    if seen.attributes.get("coordinate_transformation_mode") != "align_corners" or not seen.input(2):
        return None
    tensor, shape = seen.scope.constants.get(seen.input(2)), seen.shape(0)
    scales: list[float] = [] if tensor is None else numpy_helper.to_array(tensor).tolist()
    sizes = [None] * len(scales) if shape is None else shape
    axes = zip(scales, sizes, strict=False)
    if scales and all(np.float32(scale * (size or 1)).is_integer() for scale, size in axes):
        return None
    expected = f"expected numbers that give whole lengths with align_corners, got {scales or 'unknown ones'}"
    return "scales", expected, "does not round the lengths"


def _roi_align(seen: _Seen) -> _Fault:
    if seen.opset >= 16:  # which has another default
        return None
    return "X", f"expected an opset from 16 on, got {seen.opset}", "moves the regions by half a pixel"


def _softmax(seen: _Seen) -> _Fault:
    axis, shape = seen.attributes.get("axis", 1), seen.shape(0)
    # Before opset 13 the default is 1. The evaluator's is -1, whatever the opset.
    if seen.opset >= 13 or axis == -1 or (shape is not None and axis == len(shape) - 1):
        return None
    expected = f"expected the last axis, or an opset from 13 on, got {axis} of {_axes(shape)} in opset {seen.opset}"
    return "axis", expected, "does not take this axis and those after it as one"


_FAULTS: dict[str, Callable[[_Seen], _Fault]] = {
    "BatchNormalization": _batch_normalization,
    "ConvTranspose": _conv_transpose,
    "GlobalMaxPool": _global_max_pool,
    "GridSample": _grid_sample,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "Loop": _loop,
    "LpNormalization": _lp_normalization,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "Softmax": _softmax,
}


def require_right(model: ModelProto) -> None:
    """Check that ONNX's evaluator computes the model's nodes right.

    Raises
    ------
    NotImplementedError
        If it does not, or if that depends on a number of axes that ONNX's shape inference does not find.
    """
    from onnx import ModelProto, helper, shape_inference  # noqa: PLC0415 - an extra

    if not any(node.op_type in _FAULTS for node, _ in nodes_of(model.graph)):
        return
    known = ModelProto()
    known.CopyFrom(model)
    for node, _ in nodes_of(known.graph):
        if node.op_type == QUANTIZED:  # its outputs have the shapes of an LSTM's
            node.op_type, node.domain = "LSTM", ""
            del node.input[8:]
    known = shape_inference.infer_shapes(known)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    for node, scope in nodes_of(known.graph):
        if node.op_type not in _FAULTS or node.domain not in ("", "ai.onnx"):
            continue
        values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        attributes = {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}
        fault = _FAULTS[node.op_type](_Seen(node, opset, attributes, scope))
        if fault is not None:
            where, expected, wrong = fault
            raise NotImplementedError(f"{place(node.op_type, node.name, where)} {expected}: ONNX's evaluator {wrong}")
