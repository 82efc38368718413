"""Calls of all operations on random data, for checking and timing devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import _core, gradients, operations
from vkrnn._base.text import table
from vkrnn._ops.calls import saved_results
from vkrnn.checks import Report, check
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.results import Gradients, Outputs

__all__ = ["SAMPLES", "Sample", "check_samples", "draw_weights", "table_of", "time_calls"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """A cell with the usual options: PyTorch's except for the order of a GRU's gates.

    `saved` are the arguments of the gradients that are results of the forward call.
    """

    forward: Callable[..., Outputs[Any]]
    backward: Callable[..., Gradients[Any]]
    gates: int
    descriptor: Any
    saved: dict[str, str]

    def arguments(self, rng: np.random.Generator, features: int, hidden: int) -> dict[str, Any]:
        """Draw the weights; the descriptor is among the arguments."""
        return {**draw_weights(rng, self.gates, features, hidden), "descriptor": self.descriptor}

    def saved_from(self, kept: Outputs[Any]) -> dict[str, Any]:
        """Return the forward results that the gradients take, by argument name."""
        return {name: getattr(kept, result) for name, result in self.saved.items()}


_DESCRIPTORS = {
    "single_gate_rnn": SingleGateRNNDescriptor(activation="tanh", training=True),
    "lstm": LSTMDescriptor(training=True),
    "gru": GRUDescriptor(reset_after=True, training=True),
    "slstm": SLSTMDescriptor(training=True),
}
SAMPLES = tuple(
    Sample(
        getattr(operations, cell.name),
        getattr(gradients, cell.gradients_name),
        len(cell.gates),
        _DESCRIPTORS[cell.name],
        saved_results(cell),
    )
    for cell in _core.cells()
)


def draw_weights(rng: np.random.Generator, gates: int, features: int, hidden: int) -> dict[str, Floats]:
    """Draw weights and biases as PyTorch does."""
    bound = hidden**-0.5
    return {
        "recurrent_weight": rng.uniform(-bound, bound, (gates * hidden, hidden)).astype(np.float32),
        "input_weight": rng.uniform(-bound, bound, (gates * hidden, features)).astype(np.float32),
        "bias": rng.uniform(-bound, bound, gates * hidden).astype(np.float32),
    }


def time_calls(call: Callable[[], object], seconds: float, *, least: int = 1) -> list[float]:
    """Return the seconds of each of several calls: as many as fit in about this time, but no fewer than `least`."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def check_samples(source: Floats, hidden: int, rng: np.random.Generator) -> Iterator[Report]:
    """Compare each cell's results and gradients on the source with the reference, on the current device."""
    upstream = rng.standard_normal((*source.shape[:2], hidden), np.float32)
    for sample in SAMPLES:
        given = sample.arguments(rng, source.shape[2], hidden)
        saved = sample.saved_from(sample.forward(source, **given))
        yield check(sample.forward, source, **given)
        yield check(sample.backward, source, source_gradient=upstream, **saved, **given)


def table_of(reports: Sequence[Report]) -> list[str]:
    """Return a line for each report: its worst result."""
    rows = [("operation", "worst error", "of", "float32", "")]
    for report in reports:
        worst = max(report.comparisons, key=lambda comparison: comparison.error)
        rows.append((report.function, f"{worst.error:.1e}", worst.name, report.float32, "ok" if report.ok else "WRONG"))
    return table(rows)
