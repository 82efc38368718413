"""A case's training call and its gradients, by vkrnn or by the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from cases import Case
from vkrnn.results import Results

Array = NDArray[Any]


def trained(case: Case, module: Any, arrays: Mapping[str, Array], lengths: Array | None = None) -> Results:
    """Return the results of the training call of `module`, which is vkrnn or its reference."""
    results: Results = getattr(module, case.cell)(**arrays, lengths=lengths, descriptor=case.descriptor(training=True))
    return results


def differentiated(
    case: Case, module: Any, arrays: Mapping[str, Array], upstream: Mapping[str, Array], lengths: Array | None = None
) -> Results:
    """Return the gradients."""
    results: Results = getattr(module, f"{case.cell}_gradients")(
        **arrays, **upstream, lengths=lengths, descriptor=case.descriptor()
    )
    return results
