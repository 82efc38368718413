"""Where a model runs: as a partition, in onnxruntime as a whole, or in ONNX's own evaluator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from onnx import ModelProto

from vkrnn._base.packages import import_package
from vkrnn.convert._onnx_attributes import QUANTIZED
from vkrnn.devices import Device
from vkrnn.onnx._graph import nodes_of
from vkrnn.onnx._partition import Partition
from vkrnn.onnx._sessions import Unsupported, find_onnxruntime, session_of

__all__ = ["Choice", "Runtime", "choose"]

Runtime: TypeAlias = Literal["auto", "partition", "onnxruntime", "evaluator"]

# Floating-point operations (see `Partition.run_counted`) for each session, from which a partition is faster: a session
# takes about 20 us more than its nodes, and vkrnn saves a part of the recurrent nodes' time.
WORTH = 1e7

MOST_SHAPES = 1000  # that are remembered

_logger = logging.getLogger("vkrnn")


@dataclass(frozen=True)
class Choice:
    """What runs a model: `runner.run(None, inputs)` returns the outputs. `reason` says why, for users."""

    runtime: Runtime
    reason: str
    runner: Any


def choose(
    model: ModelProto, prepared: ModelProto, device: Device, runtime: Runtime, evaluator: Callable[[], Any]
) -> Choice:
    """Return what runs a model, and log it.

    Parameters
    ----------
    model : onnx.ModelProto
    prepared : onnx.ModelProto
        The same without functions, with weights folded.
    device : Device
        Where recurrent nodes run, but for a model that runs in onnxruntime as a whole.
    runtime : str
        "auto" or what the caller wants.
    evaluator : callable
        Returns ONNX's evaluator for the model, or raises an error.

    Raises
    ------
    ImportError
        If onnxruntime is wanted and cannot be imported.
    NotImplementedError
        If onnxruntime is wanted and does not run the model.
    """
    if runtime not in get_args(Runtime):
        raise ValueError(f"[Backend] runtime: expected one of {', '.join(get_args(Runtime))}, got {runtime!r}")
    if runtime == "auto":
        choice = _automatic(model, prepared, device, evaluator)
    elif runtime == "evaluator":
        choice = Choice(runtime, "as asked for", evaluator())
    else:
        library = import_package("onnxruntime", f"[Backend] runtime {runtime!r}")
        try:
            runner = Partition(library, prepared) if runtime == "partition" else session_of(library, model, spins=True)
        except Unsupported as error:
            raise NotImplementedError(f"[Backend] runtime: expected another than {runtime!r}: {error}") from error
        choice = Choice(runtime, "as asked for", runner)
    _logger.info("model %r runs with runtime %r: %s", model.graph.name, choice.runtime, choice.reason)
    return choice


def _automatic(model: ModelProto, prepared: ModelProto, device: Device, evaluator: Callable[[], Any]) -> Choice:
    library = find_onnxruntime()
    if library is None:
        return Choice("evaluator", "onnxruntime is not installed", evaluator())
    partition = None
    try:
        partition = Partition(library, prepared)
        reason = f"recurrent nodes run on {device.name}"
    except (NotImplementedError, Unsupported) as error:
        reason = str(error)
    if device.type == "cpu":
        try:
            return _on_cpu(library, model, partition, reason)
        except Unsupported as error:
            reason = str(error)
    if partition is not None:
        return Choice("partition", reason, partition)
    return Choice("evaluator", reason, evaluator())


def _on_cpu(library: Any, model: ModelProto, partition: Partition | None, reason: str) -> Choice:
    if any(node.op_type == QUANTIZED for node, _ in nodes_of(model.graph)):
        partition, reason = None, f"{QUANTIZED} is an operator of onnxruntime's own"
    if partition is None:
        return Choice("onnxruntime", reason, session_of(library, model, spins=True))
    least = WORTH * partition.sessions
    rule = f"a partition pays from {least:.2g} operations in recurrent nodes on, without their first step"
    if partition.work is None:
        whole = session_of(library, model, spins=True)
        return Choice("auto", f"{rule}; that depends on the sizes of each run", _BySizes(partition, whole, least))
    reason = f"{rule}, and the model has {partition.work:.2g}"
    if partition.work >= least:
        return Choice("partition", reason, partition)
    return Choice("onnxruntime", reason, session_of(library, model, spins=True))


class _BySizes:
    """A model that runs as a partition if the recurrent nodes do at least so much work, and else as a whole.

    The first run with inputs of some shapes counts the work. All runs with these shapes have the same bits.
    """

    def __init__(self, partition: Partition, whole: Any, least: float) -> None:
        self._partition, self._whole, self._least = partition, whole, least
        self._is_worth: dict[tuple[tuple[str, tuple[int, ...]], ...], bool] = {}

    def run(self, names: None, inputs: Mapping[str, Any]) -> Any:
        shapes = tuple((name, array.shape) for name, array in inputs.items())
        is_worth = self._is_worth.get(shapes)
        if is_worth is None:
            results, work = self._partition.run_counted(inputs)
            is_worth = work >= self._least
            if len(self._is_worth) >= MOST_SHAPES:
                self._is_worth.clear()
            self._is_worth[shapes] = is_worth
            if is_worth:
                return results
        return (self._partition if is_worth else self._whole).run(names, inputs)
