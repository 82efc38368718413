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


def own_call(D: int = 1) -> tuple[dict[str, Any], Any]:
    """Return the arguments of an LSTM in float64, and its descriptor."""
    rng = np.random.default_rng(5)
    recurrent = (16, 4) if D == 1 else (2, 16, 4)
    shapes = {"source": (5, 3, 6), "recurrent_weight": recurrent, "input_weight": (16 * D, 6), "bias": (16 * D,)}
    given = {name: rng.standard_normal(shape) * 0.5 for name, shape in shapes.items()}
    return given, vkrnn.LSTMDescriptor(training=True, bidirectional=D == 2)


@pytest.mark.parametrize("own", [False, True])
def test_float16_may_round(*, own: bool) -> None:
    """Ten times its rounding is accepted, and no more."""
    given, descriptor = own_call()
    half = {name: array.astype(np.float16) for name, array in given.items()}
    output = np.asarray(vkrnn.lstm(**half, descriptor=descriptor).output)
    report = vkrnn.check(vkrnn.lstm, **half, descriptor=descriptor, results=output if own else None)
    assert report.ok
    assert report.tolerance == 5e-3
    assert max(comparison.error for comparison in report.comparisons) > 5e-6
    assert not vkrnn.check(vkrnn.lstm, **half, descriptor=descriptor, results=output + np.float16(0.01)).ok


def test_own_results_are_compared_with_the_reference() -> None:
    """They may be all results, one by position, or some by name."""
    given, descriptor = own_call()
    right = vkrnn.reference.lstm(**given, descriptor=descriptor)
    report = vkrnn.check(vkrnn.lstm, **given, descriptor=descriptor, results=right)
    assert report.ok
    assert [c.name for c in report.comparisons] == ["output", "cell_output", "z_state"]
    assert repr(report).splitlines()[0] == "lstm of the caller agrees with the reference (tolerance 5e-06)"
    assert vkrnn.check(vkrnn.lstm, **given, descriptor=descriptor, results=right.output).ok
    assert vkrnn.check(vkrnn.lstm, **given, descriptor=descriptor, results={"z_state": right.z_state}).ok


def test_a_wrong_gate_is_named() -> None:
    """The gates of a direction are compared one by one."""
    given, descriptor = own_call(D=2)
    right = vkrnn.reference.lstm(**given, descriptor=descriptor)
    mine = {name: array.copy() for name, array in right._asdict().items()}
    mine["z_state"][2, 1, 16 + 4 + 1] += 0.5  # the forget gate of the second direction
    report = vkrnn.check(vkrnn.lstm, **given, descriptor=descriptor, results=mine)
    assert not report.ok
    assert report.findings == ("z_state: wrong in the gates forget (5.0e-01)",)
    assert [c.name for c in report.comparisons if c.error > report.tolerance] == ["z_state"]


@pytest.mark.parametrize("D", [1, 2])
def test_another_order_of_the_gates_is_named(D: int) -> None:
    """Weights in ONNX's order explain the numbers of who took them to be in that order."""
    given, descriptor = own_call(D)

    def onnxs(array: Any, axis: int) -> Any:  # input, output, forget, cell
        blocks = np.split(array, 4 * (D if array.ndim < 3 else 1), axis)
        order = [4 * d + gate for d in range(len(blocks) // 4) for gate in (0, 3, 1, 2)]
        return np.concatenate([blocks[block] for block in order], axis)

    axes = {"recurrent_weight": -2, "input_weight": 0, "bias": 0}
    right = vkrnn.reference.lstm(**given, descriptor=descriptor)
    mistaken = given | {name: onnxs(given[name], axis) for name, axis in axes.items()}
    report = vkrnn.check(vkrnn.lstm, **mistaken, descriptor=descriptor, results=right.output)
    assert report.findings == (
        "the numbers are right if the gates of the weights are in the order input, output, forget, cell; "
        "vkrnn has them in the order input, forget, cell, output",
    )
    assert report.findings[0] in report._repr_html_()


def test_own_gradients_are_compared_with_the_reference() -> None:
    """A gradient by name, with the order of the gates that the descriptor says."""
    given, _ = own_call()
    descriptor = vkrnn.LSTMDescriptor(forget_gate_last=True, training=True)
    forward = vkrnn.reference.lstm(**given, descriptor=descriptor)
    more: dict[str, Any] = {"z_state": forward.z_state, "cell_output_fwd": forward.cell_output}
    more |= given | {"source_gradient": np.ones_like(forward.output), "descriptor": descriptor}
    bias = vkrnn.reference.lstm_gradients(**more).bias
    assert vkrnn.check(vkrnn.lstm_gradients, **more, results={"bias": bias}).ok
    bias[4:8] *= 2
    report = vkrnn.check(vkrnn.lstm_gradients, **more, results={"bias": bias})
    assert [finding.partition(" (")[0] for finding in report.findings] == ["bias: wrong in the gates cell"]


def test_own_results_of_another_kind_are_refused() -> None:
    """Names, numbers and shapes must be those of the call."""
    given, descriptor = own_call()

    def message(results: Any) -> str:
        with pytest.raises(ValueError) as caught:
            vkrnn.check(vkrnn.lstm, **given, descriptor=descriptor, results=results)
        return str(caught.value)

    assert message({"outptu": SOURCE}) == "[check] results: expected some of output, cell_output, z_state, got outptu"
    assert message((SOURCE,) * 4) == "[check] results: expected at most 3, output, cell_output, z_state, got 4"
    assert message(()) == "[check] results: expected some of output, cell_output, z_state, got none"
    assert message(SOURCE[:4]) == "[check] output: expected shape [5, 3, 4], got [4, 3, 4]"
