"""Where a model runs: as a partition, in onnxruntime as a whole, or in ONNX's own evaluator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from onnx import ModelProto

from vkrnn._base.packages import import_package
from vkrnn.devices import Device
from vkrnn.onnx._partition import Partition
from vkrnn.onnx._sessions import Unsupported, find_onnxruntime, session_of

__all__ = ["Choice", "Runtime", "choose"]

Runtime: TypeAlias = Literal["auto", "partition", "onnxruntime", "evaluator"]

# Floating-point operations of the recurrent nodes, for each session, from which a partition is faster: a session takes
# about 20 us more than its nodes, and vkrnn saves about a fifth of the recurrent nodes' time.
WORTH = 5e6

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
        reason = f"its recurrent nodes have {partition.work:.2g} operations a run in {partition.sessions} sessions"
    except (NotImplementedError, Unsupported) as error:
        reason = str(error)
    on_cpu = device.type == "cpu"
    if on_cpu and (partition is None or partition.work < WORTH * partition.sessions):
        try:
            return Choice("onnxruntime", reason, session_of(library, model, spins=True))
        except Unsupported as error:
            reason = str(error)
    if partition is not None:
        return Choice("partition", reason, partition)
    return Choice("evaluator", reason, evaluator())
