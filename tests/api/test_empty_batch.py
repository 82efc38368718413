"""Calls with N = 0: results have no elements, and the gradients of the weights are zero."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import GATES, OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from resident import put

CASES = [
    Case(cell, 5, 0, 7, 4, {"bidirectional": cell == "gru"}, frozenset((*OPTIONAL[cell], *UPSTREAM[cell])))
    for cell in GATES
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cell)
@pytest.mark.parametrize("options", [{}, {"lengths": np.zeros(0, np.int64)}], ids=["", "lengths"])
def test_results_and_gradients(kind: vkrnn.Device, case: Case, options: dict[str, Any]) -> None:
    """NumPy and device arrays give the reference's shapes and values, and nothing is dispatched."""
    rest: dict[str, Any] = {"descriptor": case.descriptor(training=True), **options}
    given = inputs(case)
    before = kind.statistics()["dispatches"]
    forward, backward = getattr(vkrnn, case.cell), getattr(vkrnn, f"{case.cell}_gradients")
    wanted = getattr(vkrnn.reference, case.cell)(**given, **rest)
    got = forward(**given, **rest, device=kind)
    resident = forward(**put(given, kind), **rest)
    upstream = gradient_inputs(case, got)
    wanted_back = getattr(vkrnn.reference, f"{case.cell}_gradients")(**given, **upstream, **rest)
    got_back = backward(**given, **upstream, **rest, device=kind)
    out = [vkrnn.asarray(np.ones(array.shape, np.float32), device=kind) for array in got_back]
    resident_back = backward(**put(given, kind), **put(upstream, kind), **rest, out=out)
    for found, ideal in ((got, wanted), (resident, wanted), (got_back, wanted_back), (resident_back, wanted_back)):
        assert found._fields == ideal._fields
        for one, other in zip(found, ideal, strict=True):
            assert one.dtype == np.float32
            np.testing.assert_array_equal(np.asarray(one), other)
    assert got.output.shape == (5, 0, 4 * (2 if case.cell == "gru" else 1))
    assert not got_back.recurrent_weight.any()
    assert kind.statistics()["dispatches"] == before
    assert vkrnn.check(forward, **given, **rest, device=kind).ok
    assert vkrnn.check(backward, **given, **upstream, **rest, device=kind).ok


def test_zeros_go_into_a_part_of_an_array(kind: vkrnn.Device) -> None:
    """Only the part given as `out` is cleared, in a device array and in a NumPy array."""
    given = {"source": np.zeros((5, 0, 4), np.float32), "recurrent_weight": np.ones((4, 4), np.float32)}
    upstream = dict.fromkeys(("source_gradient", "z_state"), given["source"])
    whole = vkrnn.asarray(np.ones((3, 4, 4), np.float32), device=kind)
    vkrnn.single_gate_rnn_gradients(**given, **upstream, out=(None, whole[1]))
    np.testing.assert_array_equal(whole.numpy()[:, 0, 0], [1, 0, 1])
    plain = np.ones((3, 4, 4), np.float32)
    vkrnn.single_gate_rnn_gradients(**given, **upstream, out=(None, plain[1]), device=kind)
    np.testing.assert_array_equal(plain[:, 0, 0], [1, 0, 1])


def test_plan() -> None:
    """The plan has the strategy of a batch of one; its only steps clear the gradients of weights."""
    source, weight = np.zeros((5, 0, 4), np.float32), np.ones((4, 4), np.float32)
    plan = vkrnn.plan(vkrnn.single_gate_rnn, source, weight, device="cpu (")
    assert (plan.dispatches, plan.steps, plan.flops) == (0, [], 0)
    assert plan.buffers == [("source", "input", 0), ("recurrent_weight", "input", 64), ("output", "result", 0)]
    one = vkrnn.plan(vkrnn.single_gate_rnn, np.zeros((5, 1, 4), np.float32), weight, device="cpu (")
    assert plan.strategy == one.strategy
    back = vkrnn.plan(vkrnn.single_gate_rnn_gradients, source, weight, source, source, device="cpu (")
    assert back.steps == [{"kind": "clear", "buffer": "gradient of recurrent_weight"}]


def test_only_the_batch_may_be_empty() -> None:
    """Other axes of size 0 are refused, and so are arguments that disagree about the batch."""
    source, weight = np.zeros((5, 0, 4), np.float32), np.ones((4, 4), np.float32)
    wrong = {
        "source: every axis but the batch must be at least 1, got [0, 3, 4]": {"source": np.zeros((0, 3, 4), "f4")},
        "init_state: every axis but the batch must be at least 1, got [0, 0]": {"init_state": weight[:0, :0]},
    }
    for message, changes in wrong.items():
        with pytest.raises(ValueError, match=f"^{re.escape(f'[single_gate_rnn] {message}')}$"):
            vkrnn.single_gate_rnn(**{"source": source, "recurrent_weight": weight, **changes})
    message = "[single_gate_rnn] init_state: expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4], got [0, 4] "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        vkrnn.single_gate_rnn(np.ones((5, 3, 4), np.float32), weight, init_state=np.zeros((0, 4), np.float32))
