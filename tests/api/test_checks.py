"""`vkrnn.check` and `vkrnn.plan`: their results and how these are displayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from vkrnn.checks import Comparison, Report

SOURCE = np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 3, 4)
WEIGHT = np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4)


def comparison(got: Any, wanted: Any) -> Comparison:
    """Compare two small arrays."""
    return Comparison.of("output", np.asarray(got, np.float32), np.asarray(wanted, np.float64))


def test_errors_are_relative_to_absmax() -> None:
    """The scale is the reference's absmax, or 1 if that is smaller."""
    assert comparison([0.5, 0.25], [0.5, 0.0]) == Comparison("output", (2,), 0.25, (1,))
    assert comparison([[8.0], [10.0]], [[8.0], [16.0]]) == Comparison("output", (2, 1), 6 / 16, (1, 0))


def test_non_finite_values_are_errors() -> None:
    """NaN and infinity are errors unless both sides have the same."""
    assert comparison([1.0, np.nan], [1.0, 2.0]).error == np.inf
    assert comparison([1.0, np.inf], [1.0, 2.0]).error == np.inf
    assert comparison([1.0, 2.0], [1.0, np.inf]).error == np.inf
    assert comparison([np.inf, -np.inf], [np.inf, np.inf]) == Comparison("output", (2,), np.inf, (1,))
    assert comparison([np.inf, np.nan, 3.0], [np.inf, np.nan, 3.0]).error == 0


def test_report_of_an_operation() -> None:
    """There is one row per result, and a verdict."""
    report = vkrnn.check(
        vkrnn.gru, np.tile(SOURCE, 3), np.tile(WEIGHT, (3, 1)), descriptor=vkrnn.GRUDescriptor(training=True)
    )
    assert report.ok
    assert [(c.name, c.shape) for c in report.comparisons] == [("output", (5, 3, 4)), ("z_state", (5, 3, 12))]
    assert report.function == "gru"
    assert report.device == vkrnn.default_device().name
    assert not vkrnn.check(vkrnn.gru, np.tile(SOURCE, 3), np.tile(WEIGHT, (3, 1)), tolerance=-1).ok


def test_report_of_gradients() -> None:
    """Gradients are compared with the reference on the same training state."""
    training = vkrnn.SingleGateRNNDescriptor(training=True, activation="tanh")
    output, z_state = vkrnn.single_gate_rnn(SOURCE, WEIGHT, descriptor=training)
    report = vkrnn.check(vkrnn.single_gate_rnn_gradients, SOURCE, WEIGHT, output, z_state, descriptor=training)
    assert report.ok, report
    assert [c.name for c in report.comparisons] == ["source", "recurrent_weight"]


@pytest.mark.parametrize("index", range(len(vkrnn.devices())))
def test_report_names_the_device_that_computed(index: int) -> None:
    """It is the device that was named or that an argument or result lives on, not the default device."""
    device = vkrnn.Device(index)
    others = [other for other in vkrnn.devices() if other.index != index]
    with others[0] if others else device:
        named = vkrnn.check(vkrnn.single_gate_rnn, SOURCE, WEIGHT, device=device)
        weight = vkrnn.asarray(WEIGHT, device=device)
        of_argument = vkrnn.check(vkrnn.single_gate_rnn, SOURCE, weight)
        out = vkrnn.empty(SOURCE.shape, device=device)
        of_result = vkrnn.check(vkrnn.single_gate_rnn, SOURCE, WEIGHT, out=out)
    assert [report.device for report in (named, of_argument, of_result)] == [device.name] * 3
    assert named.ok
    assert of_argument.ok
    assert of_result.ok


def test_report_is_shown_as_a_table() -> None:
    """The report is a text table, and an HTML table in notebooks."""
    comparisons = (Comparison("output", (5, 3, 4), 2.5e-7, (1, 0, 2)), Comparison("z_state", (5, 3, 4), 0.5, (0, 0, 0)))
    report = Report("lstm", "<some GPU>", 5e-6, comparisons)
    assert not report.ok
    assert repr(report) == (
        "lstm on <some GPU> DISAGREES with the reference (tolerance 5e-06)\n"
        "  result   shape      worst error  at\n"
        "  output   [5, 3, 4]  2.5e-07      [1, 0, 2]  ok\n"
        "  z_state  [5, 3, 4]  5.0e-01      [0, 0, 0]  WRONG"
    )
    table = report._repr_html_()
    assert table.startswith("<table><caption>lstm on &lt;some GPU&gt; DISAGREES")
    assert table.count("<tr>") == 3


def test_plans_are_values() -> None:
    """Plans of equal shapes are equal, and can be read as text and as plain values."""
    plan = vkrnn.plan(vkrnn.single_gate_rnn, SOURCE, WEIGHT)
    assert plan == vkrnn.plan(vkrnn.single_gate_rnn, SOURCE * 2, WEIGHT, name="other")
    assert plan != vkrnn.plan(vkrnn.single_gate_rnn, SOURCE[:4], WEIGHT)
    assert plan != "plan"
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan)
    assert repr(plan).startswith("single_gate_rnn  T=5 N=3 I=4 H=4 D=1")
    buffers = {name: (role, size) for name, role, size in plan.buffers}
    assert buffers["source"] == ("input", SOURCE.nbytes)
    assert buffers["output"] == ("result", SOURCE.nbytes)
    assert plan.bytes == sum(size for _, size in buffers.values())
    dispatches = {"clear": 0, "dispatch": 1}
    assert plan.dispatches == sum(
        step["count"] * len(step["body"]) if step["kind"] == "loop" else dispatches[step["kind"]] for step in plan.steps
    )
    assert plan.flops == 2 * 5 * 3 * 4 * 4
    strategies = vkrnn.default_device().strategies
    assert all(plan.strategy[part] in names for part, names in strategies.items())
