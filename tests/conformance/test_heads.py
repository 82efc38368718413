"""Weights with heads in networks, streams and checks. test_conformance.py has the functions on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CASES, GATES, HEADS, OPTIONAL, Case, by_id, dense, gradient_inputs, inputs, without_heads
from comparison import assert_close
from tolerances import FLOAT32

Array = NDArray[Any]

WITH_HEADS = [case for case in CASES if case.options.keys() & set(HEADS.values())]


def test_cases_have_heads_of_every_cell() -> None:
    assert {case.cell for case in WITH_HEADS} == set(GATES)


def layers_of(cell: str, direction: dict[str, bool]) -> list[Any]:
    """Return the weights and descriptors of two layers, with other heads, that read each other."""
    made: list[Any] = []
    D = 1 + direction.get("bidirectional", False)
    for features, units, heads, input_heads in ((6, 12, 4, 3), (12 * D, 8, 2, 4)):
        options = {**direction, "heads": heads, "input_heads": input_heads}
        given = frozenset(name for name in OPTIONAL[cell] if name != "mask" and not name.startswith("init_"))
        case = Case(cell, 7, 3, features, units, options, given)
        weights = {name: array for name, array in inputs(case).items() if name != "source"}
        made.append((case, weights))
    return made


@pytest.mark.parametrize("direction", [{}, {"reverse": True}, {"bidirectional": True}], ids=["one", "reverse", "both"])
@pytest.mark.parametrize("cell", GATES)
def test_networks_have_the_numbers_of_dense_layers(cell: str, direction: dict[str, bool]) -> None:
    """Forward and gradients: heads are blocks of a dense network's weights."""
    layers = layers_of(cell, direction)
    first = layers[0][0]
    source = inputs(first)["source"]

    def run(*, has_heads: bool) -> tuple[Any, Any]:
        network = vkrnn.network(
            [
                (
                    case.cell,
                    weights if has_heads else dense(case, weights),
                    (case if has_heads else without_heads(case)).descriptor(),
                )
                for case, weights in layers
            ]
        )
        result = network.forward(source, training=True)
        upstream = np.cos(np.arange(result.output.size)).reshape(result.output.shape).astype(np.float32)
        return result, network.gradients(result, upstream)

    (found, back), (wanted, dense_back) = run(has_heads=True), run(has_heads=False)
    assert_close({"output": found.output}, {"output": wanted.output})
    assert_close({"source": back.source}, {"source": dense_back.source})
    for (case, weights), mine, other in zip(layers, back.layers, dense_back.layers, strict=True):
        for name, array in weights.items():
            assert getattr(mine, name).shape == array.shape
        of_blocks = {name: getattr(other, name) for name in weights}
        zeros = dense(case, {name: np.ones_like(array) for name, array in weights.items()})
        picked = dense(case, {name: getattr(mine, name) for name in weights})
        assert_close(picked, {name: of_blocks[name] * (zeros[name] != 0) for name in weights})


@pytest.mark.parametrize("cell", GATES)
def test_a_stream_gives_the_bits_of_a_call(cell: str) -> None:
    """Step by step, and in blocks."""
    ((case, weights), *_) = layers_of(cell, {})
    source = inputs(case)["source"]
    layer = (case.cell, weights, case.descriptor())
    wanted = getattr(vkrnn, cell)(source, **weights, descriptor=case.descriptor(), device="cpu").output
    stream = vkrnn.stream(layer, batch=case.N, device="cpu")
    np.testing.assert_array_equal(np.stack([stream.step(row) for row in source]), wanted)
    alone = getattr(vkrnn, cell)(source[:, :1], **weights, descriptor=case.descriptor(), device="cpu").output
    single = vkrnn.stream(layer, device="cpu")
    np.testing.assert_array_equal(np.stack([single.step(row) for row in source[:, :1]]), alone)


@pytest.mark.parametrize("case", WITH_HEADS[::3], ids=by_id)
def test_check_compares_with_the_reference(case: Case) -> None:
    """`vkrnn.check` takes the blocks."""
    assert vkrnn.check(getattr(vkrnn, case.cell), **inputs(case), descriptor=case.descriptor()).ok


@pytest.mark.parametrize("units", [1, 2, 3, 8, 16, 40])
@pytest.mark.parametrize("cell", GATES)
def test_heads_do_not_see_each_other(cell: str, units: int) -> None:
    """A head whose numbers are not finite leaves the others as they are, forward and in the gradients."""
    heads = 6
    case = Case(
        cell, 4, 5, 12, heads * units, {"heads": heads, "input_heads": heads}, frozenset(["input_weight", "bias"])
    )
    arrays = inputs(case)
    descriptor = case.descriptor(training=True)
    function, gradients = getattr(vkrnn, cell), getattr(vkrnn, f"{cell}_gradients")
    wanted = function(**arrays, descriptor=descriptor)
    saved = gradient_inputs(case, wanted)
    wanted_back = gradients(**arrays, **saved, descriptor=descriptor)
    spoilt = {name: array.copy() for name, array in arrays.items()}
    spoilt["source"][..., 2:4] = np.nan  # of head 1
    found = function(**spoilt, descriptor=descriptor)
    others = np.arange(heads * units) // units != 1
    np.testing.assert_array_equal(found.output[..., others], wanted.output[..., others])
    assert np.isnan(found.output[..., ~others]).all()
    found_back = gradients(**spoilt, **gradient_inputs(case, found), descriptor=descriptor)
    rows = np.tile(others, case.G)
    for name in ("recurrent_weight", "input_weight", "bias"):
        assert_close({name: getattr(found_back, name)[rows]}, {name: getattr(wanted_back, name)[rows]}, FLOAT32)
    assert_close(
        {"source": np.delete(found_back.source, [2, 3], -1)}, {"source": np.delete(wanted_back.source, [2, 3], -1)}
    )
