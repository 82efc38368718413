"""ONNX's interface for backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep as _BackendRep
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from vkrnn import _core
from vkrnn._interop.foreign import as_numpy
from vkrnn.convert._onnx_attributes import attributes_of
from vkrnn.devices import Device, DeviceLike, resolve
from vkrnn.onnx._choice import Choice, Runtime, choose
from vkrnn.onnx._evaluator import require_right
from vkrnn.onnx._fold import fold_weights
from vkrnn.onnx._graph import nodes_of, weights_of
from vkrnn.onnx._node import Inputs, run_node
from vkrnn.onnx._operators import operators_of

__all__ = ["Backend", "BackendRep"]

Array: TypeAlias = npt.NDArray[Any]


def _with_shapes(model: ModelProto) -> ModelProto:
    """Return the model, or a copy with the types and shapes that ONNX's check requires.

    Any shape will do, because the check does not compare it with a tensor.
    """
    if all(_is_complete(value) for value in (*model.graph.input, *model.graph.output)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    return copy


def _is_complete(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.HasField("shape"))


class BackendRep(_BackendRep):
    """A model that `Backend.prepare` has prepared to run on a device.

    Attributes
    ----------
    device : Device
    runtime : str
        "partition": recurrent nodes run on the device, and all others in onnxruntime. "onnxruntime": the whole model
        runs in onnxruntime, on the CPU. "evaluator": recurrent nodes run on the device, and all others in ONNX's own
        evaluator. "auto": "partition" or "onnxruntime", by the sizes of a run.
    reason : str
        Why, in words.
    """

    def __init__(self, model: ModelProto, choice: Choice, device: Device) -> None:
        self.device = device
        self.runtime, self.reason, self._runner = choice.runtime, choice.reason, choice.runner
        self._names = [value.name for value in model.graph.input]
        self._required = {*self._names} - {value.name for value in model.graph.initializer}

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Array, ...]:  # noqa: ARG002 - the interface has them
        """Return the model's outputs, in its order.

        Parameters
        ----------
        inputs : sequence of arrays, or mapping of str to arrays
            In the order of the model's inputs, or by their names.

        Raises
        ------
        ValueError
            If the number of inputs is wrong, or a name. A node may raise other errors.
        TypeError
            If the inputs are a single array.
        """
        inputs = self._named(inputs)
        if self.runtime == "onnxruntime":
            return tuple(self._runner.run(None, _as_arrays(inputs)))
        given = dict(inputs) if self.runtime == "evaluator" else _as_arrays(inputs)
        with self.device:
            return tuple(self._runner.run(None, given))

    def _named(self, inputs: Inputs) -> Mapping[str, Any]:
        names = self._names
        expected = f"[Backend] inputs: expected {', '.join(names)}"
        if isinstance(inputs, Mapping):
            if unknown := inputs.keys() - names:
                raise ValueError(f"{expected}, got {', '.join(sorted(unknown))}")
            if missing := self._required - inputs.keys():
                raise ValueError(f"{expected}, got no {', '.join(sorted(missing))}")
            return inputs
        if hasattr(inputs, "shape"):
            raise TypeError(f"{expected} in a dict or a list, got an array")
        if len(inputs) != len(names):
            raise ValueError(f"{expected}, which are {len(names)}, got {len(inputs)}")
        return dict(zip(names, inputs, strict=True))


def _as_arrays(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return the inputs as the arrays that onnxruntime takes."""
    return {
        name: value if isinstance(value, np.ndarray) else np.asarray(as_numpy(value, f"[Backend] {name}:"))
        for name, value in inputs.items()
    }


class Backend(_Backend):
    """ONNX's interface for backends. RNN, GRU and LSTM run on a device, everything else in onnxruntime.

    Without onnxruntime, ONNX's own evaluator computes everything else.

    ``device`` is a `Device`, its position in `devices()` or part of its name. The default is ONNX's ``"CPU"``, which is
    the CPU device.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import helper
    >>> node = helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=4)
    >>> X, W, R = (np.ones(shape, np.float32) for shape in [(5, 3, 7), (1, 4, 7), (1, 4, 4)])
    >>> Backend.run_node(node, [X, W, R])[0].shape
    (5, 1, 3, 4)
    """

    @classmethod
    def prepare(
        cls, model: ModelProto, device: DeviceLike = "CPU", *, runtime: Runtime = "auto", **kwargs: Any
    ) -> BackendRep:
        """Check the model and prepare it to run on the device.

        Parameters
        ----------
        model : onnx.ModelProto
        device : Device or int or str
        runtime : {"auto", "partition", "onnxruntime", "evaluator"}
            What runs the model; see `BackendRep.runtime`. "auto" is "evaluator" without onnxruntime. With it, a model
            runs as a partition, or on a CPU as a whole in onnxruntime if its recurrent nodes are too small for a
            partition or within If, Loop or Scan. `BackendRep.reason` and the log (level INFO) say why.

        Raises
        ------
        onnx.checker.ValidationError
            If ONNX's own check fails. As in onnxruntime, inputs and outputs may lack shapes, and outputs types.
        ValueError, TypeError
            If an attribute of a recurrent node is malformed, or `runtime` is none of these.
        NotImplementedError
            If `runtime` is "partition" or "onnxruntime" and onnxruntime does not run the model. If the evaluator runs
            it and computes another node wrong; the message then begins with the node's operator and its name.
        ImportError
            If `runtime` needs onnxruntime, which cannot be imported.
        """
        if not isinstance(model, ModelProto):
            got = type(model).__name__
            raise TypeError(f"[Backend] model: expected an onnx.ModelProto, as from onnx.load(path), got {got}")
        super().prepare(_with_shapes(model), "CPU", **kwargs)
        # Inside functions of the model, the evaluator would use its own operators.
        inlined = inline_local_functions(model)
        for node, _ in nodes_of(inlined.graph):
            if weights_of(node) is not None:
                attributes_of(node)
        fold_weights(inlined)

        def evaluator() -> ReferenceEvaluator:
            require_right(inlined)
            return ReferenceEvaluator(inlined, new_ops=operators_of(inlined))

        resolved = resolve(device, "[Backend]")
        return BackendRep(model, choose(model, inlined, resolved, runtime, evaluator), resolved)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Inputs, device: DeviceLike = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Check and compute one recurrent node; see `vkrnn.onnx.run_node`."""
        super().run_node(node, inputs, "CPU", outputs_info, **kwargs)
        return run_node(node, inputs, device=device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is a device of that name."""
        try:
            resolve(device, "[Backend]")
        except (ValueError, _core.DeviceError):
            return False
        return True
