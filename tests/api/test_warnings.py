"""Warnings of calls that are right by the documentation and probably a mistake."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require
from vkrnn import GRUDescriptor, mpsgraph

T, N, H = 4, 2, 3
SOURCE, WEIGHT, BIAS = (np.ones(shape, np.float32) for shape in ((T, N, 3 * H), (3 * H, H), (H,)))
TRAINED = (SOURCE, WEIGHT, SOURCE[..., :H], SOURCE, SOURCE[..., :H])
ENDING = (
    "secondary_bias: it has no effect without reset_after=True; PyTorch's GRU is "
    "GRUDescriptor(reset_gate_first=True, reset_after=True)"
)


def of_torch(**options: Any) -> Any:
    """Call vkrnn.torch.gru."""
    torch, ours = require("torch"), require("vkrnn.torch")
    given = {name: torch.from_numpy(value) if name == "secondary_bias" else value for name, value in options.items()}
    return ours.gru(torch.from_numpy(SOURCE), torch.from_numpy(WEIGHT), **given)


def of_jax(**options: Any) -> Any:
    """Call vkrnn.jax.gru in a program."""
    jax, ours = require("jax"), require("vkrnn.jax")
    return jax.jit(lambda source: ours.gru(source, WEIGHT, **options))(SOURCE)


def of_stream(descriptor: GRUDescriptor | None = None, **weights: Any) -> Any:
    """Make a stream."""
    return vkrnn.stream([("gru", {"recurrent_weight": WEIGHT, **weights}, descriptor)])


def of_network(descriptor: GRUDescriptor | None = None, **weights: Any) -> Any:
    """Make a network."""
    return vkrnn.network([("gru", {"recurrent_weight": WEIGHT, **weights}, descriptor)])


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "gru": (lambda **options: vkrnn.gru(SOURCE, WEIGHT, **options), "[gru]"),
    "gru_gradients": (lambda **options: vkrnn.gru_gradients(*TRAINED, **options), "[gru_gradients]"),
    "check": (lambda **options: vkrnn.check(vkrnn.gru, SOURCE, WEIGHT, **options), "[gru]"),
    "stream": (of_stream, "[gru 'layer 0']"),
    "network": (of_network, "[gru 'layer 0']"),
    "torch": (of_torch, "[vkrnn.torch.gru]"),
    "jax": (of_jax, "[vkrnn.jax.gru]"),
}


def found(call: Callable[..., Any], **options: Any) -> list[warnings.WarningMessage]:
    """Return the warnings of a call."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        call(**options)
    return shown


@pytest.mark.parametrize("way", CALLS)
def test_a_secondary_bias_without_reset_after(way: str) -> None:
    """One warning names the caller's line. There is none with the option, or without the bias."""
    call, where = CALLS[way]
    for descriptor in (None, GRUDescriptor(flip_z=True)):
        (warning,) = found(call, secondary_bias=BIAS, descriptor=descriptor)
        assert (warning.category, str(warning.message), warning.filename) == (
            UserWarning,
            f"{where} {ENDING}",
            __file__,
        )
    assert not found(call, secondary_bias=BIAS, descriptor=GRUDescriptor(reset_after=True))
    assert not found(call, descriptor=GRUDescriptor())


def test_functions_that_do_not_warn() -> None:
    """MPSGraph's names, the reference, and plans."""
    labels: Any = {
        "recurrentWeight": WEIGHT,
        "inputWeight": None,
        "bias": None,
        "initState": None,
        "mask": None,
        "secondaryBias": BIAS,
        "descriptor": mpsgraph.MPSGraphGRUDescriptor(),
    }
    assert not found(lambda: mpsgraph.GRU(SOURCE, **labels))
    above = {"sourceGradient": TRAINED[2], "zState": TRAINED[3], "outputFwd": TRAINED[4], "stateGradient": None}
    assert not found(lambda: mpsgraph.GRUGradients(SOURCE, **labels, **above))
    assert not found(vkrnn.reference.gru, source=SOURCE, recurrent_weight=WEIGHT, secondary_bias=BIAS)
    assert not found(lambda: vkrnn.plan(vkrnn.gru, SOURCE, WEIGHT, secondary_bias=BIAS))


def test_compiled_functions() -> None:
    """torch.compile compiles a call whole that would warn."""
    torch = require("torch")
    given = {name: torch.from_numpy(value) for name, value in (("source", SOURCE), ("recurrent_weight", WEIGHT))}
    ours = require("vkrnn.torch")
    compiled = torch.compile(
        lambda bias: ours.gru(**given, secondary_bias=bias).output, fullgraph=True, backend="eager"
    )
    assert torch.equal(compiled(torch.from_numpy(BIAS)), ours.gru(**given).output)
