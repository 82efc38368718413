"""Resets: the reference is checked by one call for each document and by the complex step, the devices against it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CELLS, DIRECTIONS, GATES, OPTIONAL, UPSTREAM, Case, by_id, gradient_inputs, inputs, loss
from comparison import assert_close
from resets import KINDS, STARTS, draw_resets
from resident import dtype_of, position
from scale import sample
from targets import Target, fits, targets
from tolerances import COMPLEX, COMPLEX_STEP, DTYPES, FLOAT32, SAME_IN_FLOAT64
from training import differentiated, trained

Array = NDArray[Any]

LENGTHS = np.array([6, 2, 0])


OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "single_gate_rnn": ({"activation": "tanh"},),
    "lstm": ({},),
    "gru": ({}, {"reset_after": True}),
    "slstm": ({}, {"forget_gate": "exponential"}),
}


def _cases() -> Iterator[Case]:
    for cell in GATES:
        given = frozenset((*OPTIONAL[cell], *UPSTREAM[cell]))
        for direction, options in itertools.product(DIRECTIONS, OWN[cell]):
            yield Case(cell, 6, 3, 5, 7, direction | options, given, each_cell=direction == {})
        heads = {"heads": 2, "input_heads": 2}
        yield Case(cell, 6, 3, 6, 8, {"bidirectional": True} | heads | OWN[cell][-1], given)
        if GATES[cell] > 1:
            masks_of_gates = (6, 3, 2 * GATES[cell] * 7)
            yield Case(cell, 6, 3, 5, 7, {"bidirectional": True} | OWN[cell][0], given, masks_of_gates)


CASES = list(_cases())
COMBINATIONS = list(itertools.product(KINDS, STARTS))
# Each case with every kind of reset and of start over all cases.
CHOSEN = [(case, *COMBINATIONS[(5 * i + j) % len(COMBINATIONS)]) for i, case in enumerate(CASES) for j in (0, 1, 2, 3)]


def in_doubles(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array if array.dtype == bool else array.astype(np.float64) for name, array in arrays.items()}


def documents(starts_anew: Array) -> list[tuple[int, int]]:
    """Return the first and the last row, exclusive, of each document in a row of a batch."""
    edges = [0, *np.flatnonzero(starts_anew[1:]) + 1, len(starts_anew)]
    return list(itertools.pairwise(edges))


# The reference


@pytest.mark.parametrize(
    "case", [replace(case, present=case.present - {"mask"}) for case in CASES if case.mask_shape is None], ids=by_id
)
def test_the_reference_runs_each_document_alone(case: Case) -> None:
    """A document has the rows of a call of its own, which begins with the states that resets start from."""
    arrays, resets = in_doubles(inputs(case)), in_doubles(draw_resets(case, "bool", "states of steps"))
    whole = trained(case, vkrnn.reference, arrays | resets)._asdict()
    backwards = bool(case.options.get("reverse"))
    names = [name for name in arrays if name.startswith("init_")]
    for n in range(case.N):
        for first, end in documents(resets["reset"][:, n]):
            own = dict(arrays)
            rows = slice(case.T - end, case.T - first) if backwards else slice(first, end)
            own["source"] = arrays["source"][rows, n : n + 1]
            for name in names:
                start = resets.get(name.replace("init", "reset"), np.zeros((case.T, case.N, case.D * case.H)))[:, n]
                given = arrays[name][n]
                ahead = start[first] if first > 0 or resets["reset"][0, n] else given
                behind = start[end] if end < case.T else given  # of the backward direction
                halves = [ahead[: case.H], *([behind[case.H :]] if case.D == 2 else [])]
                own[name] = np.concatenate(halves)[None]
            alone = trained(replace(case, N=1, T=end - first), vkrnn.reference, own)._asdict()
            for name, array in alone.items():
                np.testing.assert_allclose(whole[name][first:end, n], array[:, 0], rtol=0, atol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_the_references_gradients_are_derivatives(case: Case, kind: str, lengths: Array | None) -> None:
    """Gradients of the outputs and of the last states, compared with the complex step."""
    for starts in STARTS:
        arrays = in_doubles(inputs(case) | draw_resets(case, kind, starts))
        upstream = in_doubles(gradient_inputs(case, trained(case, vkrnn.reference, arrays, lengths)))
        gradients = differentiated(case, vkrnn.reference, arrays, upstream, lengths)
        rng = np.random.default_rng(1)
        assert list(gradients._fields) == [name for name in ordered(case.cell) if name in arrays]
        for name, gradient in gradients._asdict().items():
            along = rng.standard_normal(gradient.shape)
            changed = arrays | {name: arrays[name] + 1j * COMPLEX_STEP * along}
            results = trained(case, vkrnn.reference, changed, lengths)
            slope = loss(case, changed, results, upstream, lengths).imag / COMPLEX_STEP
            assert abs(np.sum(gradient * along) - slope) <= COMPLEX * (1 + np.sum(np.abs(gradient * along))), name


def ordered(cell: str) -> list[str]:
    """Return the names of the gradients: those of resets follow all others."""
    names = ["source", "recurrent_weight", *(name for name in OPTIONAL[cell] if name != "mask")]
    return [*names, "reset", "reset_state", "reset_cell"]


# The devices


def agrees(case: Case, resets: dict[str, Array], lengths: Array | None, tolerance: float, dtype: Any = None) -> None:
    """Compare a training call, and its gradients, with the reference."""

    def converted(given: dict[str, Any]) -> dict[str, Any]:
        return {name: each if each.dtype == bool else each.astype(dtype or np.float32) for name, each in given.items()}

    arrays = converted(inputs(case) | resets)
    got = trained(case, vkrnn, arrays, lengths)
    assert_close(got._asdict(), trained(case, vkrnn.reference, arrays, lengths)._asdict(), tolerance)
    upstream = converted(gradient_inputs(case, got))
    wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()
    assert_close(differentiated(case, vkrnn, arrays, upstream, lengths)._asdict(), wanted, tolerance)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
@pytest.mark.parametrize("cell", GATES)
def test_every_strategy(target: Target, cell: str) -> None:
    """Each agrees with the reference, with lengths and without."""
    device = target.opened()
    for number, (case, kind, starts) in target.share(list(enumerate(CHOSEN)), 5):
        if case.cell != cell:
            continue
        resets, lengths = draw_resets(case, kind, starts), LENGTHS if number % 2 else None
        forward, backward = getattr(vkrnn, cell), getattr(vkrnn, f"{cell}_gradients")
        given = inputs(case) | resets
        above = gradient_inputs(case, trained(case, vkrnn.reference, given, lengths))
        above = {name: array.astype(np.float32) for name, array in above.items()}
        training = case.descriptor(training=True)
        if fits(device, target, forward, **given, lengths=lengths, descriptor=training) and fits(
            device, target, backward, **given, **above, lengths=lengths, descriptor=case.descriptor()
        ):
            with device:
                agrees(case, resets, lengths, FLOAT32)
    device.close()


@pytest.mark.parametrize("kind", ["bool", "rows", "units"])
@pytest.mark.parametrize("cell", GATES)
def test_gradient_clip_limits_what_a_reset_lets_through(cell: str, kind: str) -> None:
    """The reference agrees with gradients of single steps, between which the gradient of h is limited."""
    options = {"activation": "tanh"} if cell == "single_gate_rnn" else {}
    limit, names = 0.125, ["state", *CELLS[cell]]
    states = [f"{prefix}{name}{suffix}" for name in names for prefix, suffix in (("init_", ""), ("", "_gradient"))]
    case = Case(cell, 6, 3, 5, 7, options | {"gradient_clip": limit}, frozenset(["input_weight", *states]))
    single, resets = replace(case, options=options), draw_resets(case, kind, "zeros")
    arrays = in_doubles(inputs(case) | resets)
    results = trained(case, vkrnn.reference, arrays)
    upstream = in_doubles(gradient_inputs(case, results))
    found = differentiated(case, vkrnn.reference, arrays, upstream)
    down = {f"{name}_gradient": upstream[f"{name}_gradient"] for name in names}
    limited = False
    for k in reversed(range(case.T)):
        step = {name: array[k : k + 1] if name in ("source", "reset") else array for name, array in arrays.items()}
        if k > 0:
            sequences = [results.output, *(getattr(results, f"{name}_output") for name in CELLS[cell])]
            step |= {f"init_{name}": each[k - 1] for name, each in zip(names, sequences, strict=True)}
        kept = {name: upstream[name][k : k + 1] for name in upstream if name.endswith("_fwd") or name == "z_state"}
        above = {"source_gradient": upstream["source_gradient"][k : k + 1]}
        gradients = differentiated(single, vkrnn.reference, step, kept | above | down)
        np.testing.assert_allclose(found.source[k], gradients.source[0], rtol=0, atol=SAME_IN_FLOAT64)
        down = {f"{name}_gradient": getattr(gradients, f"init_{name}") for name in names}
        limited |= bool(np.any(np.abs(down["state_gradient"]) > limit))
        down["state_gradient"] = np.clip(down["state_gradient"], -limit, limit)
    assert limited
    for name in names:
        wanted = down[f"{name}_gradient"]
        np.testing.assert_allclose(getattr(found, f"init_{name}"), wanted, rtol=0, atol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
@pytest.mark.parametrize("cell", GATES)
def test_gradient_clip_on_every_strategy(target: Target, cell: str) -> None:
    case = next(case for case in CASES if case.cell == cell)
    case = replace(case, options=case.options | {"gradient_clip": 0.125})
    for kind in target.share(("rows", "units"), 2):
        resets = draw_resets(case, kind, "states")
        forward, backward = getattr(vkrnn, cell), getattr(vkrnn, f"{cell}_gradients")
        with target.opened() as device:
            given = inputs(case) | resets
            above = gradient_inputs(case, trained(case, vkrnn.reference, given))
            above = {name: array.astype(np.float32) for name, array in above.items()}
            how = {"descriptor": case.descriptor()}
            if fits(device, target, forward, **given, descriptor=case.descriptor(training=True)) and fits(
                device, target, backward, **given, **above, **how
            ):
                agrees(case, resets, None, FLOAT32)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("case", "kind", "starts"), sample(CHOSEN, 4), ids=by_id)
def test_in_other_dtypes(case: Case, kind: str, starts: str, dtype: str) -> None:
    """Each dtype agrees with the reference on the same numbers."""
    agrees(case, draw_resets(case, kind, starts), None, DTYPES[dtype], dtype_of(dtype))


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_bits(case: Case) -> None:
    """A bool has the bits of factors 0 and 1, and factors 1 those of a call without resets."""
    arrays, resets = inputs(case), draw_resets(case, "bool", "states")
    floats = resets | {"reset": 1 - resets["reset"].astype(np.float32)}
    never = resets | {"reset": np.zeros_like(resets["reset"])}
    for one, other in ((resets, floats), (never, {})):
        found = []
        for given in (one, other):
            forward = trained(case, vkrnn, arrays | given)
            upstream = gradient_inputs(case, trained(case, vkrnn, arrays | one))
            gradients = differentiated(case, vkrnn, arrays | given, upstream)._asdict()
            found.append([*forward, *(array for name, array in gradients.items() if "reset" not in name)])
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cell", ["lstm", "slstm"])
def test_what_comes_before_a_reset_does_not_matter(cell: str) -> None:
    """Not even an infinity: a factor of 0 drops the state, and gradients that would pass it."""
    states = [f"init_{name}" for name in ("state", *CELLS[cell])]
    case = Case(cell, 4, 2, 3, 5, {}, frozenset(["input_weight", *states]))
    arrays, function = inputs(case), getattr(vkrnn, cell)
    for kind in ("bool", "float"):
        reset = np.array([[1, 1], [0, 0], [1, 0], [0, 0]])
        given = {"reset": reset.astype(bool) if kind == "bool" else 1 - reset.astype(np.float32)}
        plain = function(**arrays, **given).output
        infinite = arrays | {name: np.full_like(arrays[name], np.inf) for name in states}
        np.testing.assert_array_equal(function(**infinite, **given).output, plain)


@pytest.mark.parametrize("cell", ["lstm", "slstm"])
def test_in_a_network(cell: str) -> None:
    """All layers have the reset, and each its own gradient; results are those of one function after the other."""
    case = Case(cell, 6, 3, 7, 7, {}, frozenset(["input_weight", "bias"]))
    for kind, starts in COMBINATIONS:
        layers = [{name: a for name, a in inputs(replace(case, seed=s)).items() if name != "source"} for s in (1, 2)]
        given = draw_resets(case, kind, starts)
        reset, more = given["reset"], {name: [array, array] for name, array in given.items() if name != "reset"}
        source = inputs(case)["source"]
        net = vkrnn.network([(cell, layer) for layer in layers])
        result = net.forward(source, reset=reset, training=True, **more)
        found = [trained(case, vkrnn, {"source": source, **layers[0], **given})]
        found.append(trained(case, vkrnn, {"source": found[0].output, **layers[1], **given}))
        np.testing.assert_array_equal(result.output, found[1].output)
        upstream = np.ones_like(result.output)
        gradients = net.gradients(result, upstream)
        for number, below in ((1, found[0].output), (0, source)):
            forward = found[number]
            own = gradient_inputs(case, forward) | {"source_gradient": upstream}
            wanted = differentiated(case, vkrnn, {"source": below, **layers[number], **given}, own)._asdict()
            upstream = wanted.pop("source")
            assert list(gradients.layers[number]._fields) == list(wanted)
            for name, array in wanted.items():
                np.testing.assert_array_equal(getattr(gradients.layers[number], name), array)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["bool", "rows", "units"])
def test_in_a_wavefront(kind: str, *, native: bool) -> None:
    """Pieces of the time axis have the bits of whole layers."""
    case = Case("lstm", 24, 3, 7, 7, {}, frozenset(["input_weight", "bias"]))
    layers = [{name: a for name, a in inputs(replace(case, seed=s)).items() if name != "source"} for s in (1, 2, 3)]
    given = draw_resets(case, kind, "states of steps")
    reset, more = given["reset"], {name: [array] * 3 for name, array in given.items() if name != "reset"}
    found = []
    for steps in (0, 5):
        with vkrnn.Device(position(native=native), wavefront=steps) as device:
            net = vkrnn.network([("lstm", layer) for layer in layers], device=device)
            result = net.forward(inputs(case)["source"], reset=reset, training=True, **more)
            gradients = net.gradients(result, np.ones_like(result.output))
            planned = vkrnn.plan(net.gradients, result, np.ones_like(result.output))
            assert ("wavefront" in [step["kind"] for step in planned.steps]) == (steps > 0)
            found.append([result.output, gradients.source, *itertools.chain(*gradients.layers)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_in_a_network_with_the_batch_axis_first() -> None:
    """Rows of resets are then [N, T], too."""
    case = Case("gru", 6, 3, 7, 7, {}, frozenset(["input_weight"]))
    arrays = inputs(case)
    layer = vkrnn.convert.Layer(vkrnn.gru, {n: a for n, a in arrays.items() if n != "source"}, vkrnn.GRUDescriptor())
    net = vkrnn.network([replace(layer, batch_first=True)])
    for kind in KINDS:
        given = draw_resets(case, kind, "states of steps")
        wanted = vkrnn.gru(**arrays, **given).output
        swapped = {name: array.swapaxes(0, 1) for name, array in given.items()}
        states = {"reset_state": [swapped["reset_state"]]}
        result = net.forward(arrays["source"].swapaxes(0, 1), reset=swapped["reset"], training=True, **states)
        np.testing.assert_array_equal(result.output.swapaxes(0, 1), wanted)
        gradients = net.gradients(result, np.ones_like(result.output)).layers[0]
        assert gradients.reset_state.shape == swapped["reset_state"].shape
        if kind != "bool":
            assert gradients.reset.shape == swapped["reset"].shape


@pytest.mark.parametrize("kind", ["bool", "rows"])
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_in_a_stream(cell: str, kind: str, *, batch_first: bool) -> None:
    """Steps and blocks have the bits of a call, whose resets start from the stream's start."""
    case = Case(cell, 6, 3, 5, 7, {}, frozenset({"input_weight", "init_state", "init_cell"} & set(OPTIONAL[cell])))
    arrays, reset = inputs(case), draw_resets(case, kind, "zeros")["reset"]
    starts = {n.replace("init", "reset"): arrays[n] for n in ("init_state", "init_cell") if n in arrays}
    wanted = getattr(vkrnn, cell)(**arrays, reset=reset, **starts).output
    weights = {name: array for name, array in arrays.items() if name != "source"}
    layer = vkrnn.convert.Layer(getattr(vkrnn, cell), weights, case.descriptor())
    stream = vkrnn.stream(replace(layer, batch_first=batch_first), batch=case.N)
    steps = [stream.step(x, reset=r) for x, r in zip(arrays["source"], reset, strict=True)]
    np.testing.assert_array_equal(np.stack(steps), wanted)
    stream.reset()
    if batch_first:
        block = stream.step(arrays["source"].swapaxes(0, 1), reset=reset.swapaxes(0, 1)).swapaxes(0, 1)
    else:
        block = stream.step(arrays["source"], reset=reset)
    np.testing.assert_array_equal(block, wanted)


# Messages

CASE = Case("lstm", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
ROWS = np.zeros((5, 3), bool)
STATE = np.zeros((3, 4), np.float32)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"reset": ROWS.astype(np.int32)}, TypeError, "reset: expected dtype bool or float32 like source, got int32"),
    ({"reset": ROWS.astype(np.float64)}, TypeError, "reset: expected dtype bool or float32 like source, got float64"),
    (
        {"reset": ROWS.T},
        ValueError,
        "reset: expected shape [T, N] = [5, 3] or [T, N, 1] = [5, 3, 1] or [T, N, H] = [5, 3, 4], got [3, 5] "
        "(T = 5 from source.shape[0], N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)",
    ),
    ({"reset_state": STATE}, ValueError, "reset_state: expected a reset beside it, got none"),
    ({"reset_cell": STATE}, ValueError, "reset_cell: expected a reset beside it, got none"),
    (
        {"reset": ROWS, "reset_state": STATE[:2]},
        ValueError,
        "reset_state: expected shape [N, H] = [3, 4] or [T, N, H] = [5, 3, 4], got [2, 4] (T = 5 from source.shape[0], "
        "N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)",
    ),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_messages(given: dict[str, Any], error: type[Exception], message: str) -> None:
    """They are complete, and come before a device is used."""
    with pytest.raises(error, match=f"^{re.escape(f'[lstm] {message}')}$"):
        vkrnn.lstm(**inputs(CASE), **given, device="no such device")


@pytest.mark.parametrize("shape", [(3,), (4, 3), (5, 3, 1, 1)])
def test_messages_of_streams(shape: tuple[int, ...]) -> None:
    """A stream says what shape its input needs."""
    weights = {name: array for name, array in inputs(CASE).items() if name != "source"}
    stream = vkrnn.stream(("lstm", weights), batch=3)
    message = f"[stream] reset: expected shape [T, N] = [5, 3], got {list(shape)}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        stream.step(inputs(CASE)["source"], reset=np.zeros(shape, bool))
    with pytest.raises(TypeError, match=r"^\[stream\] reset: expected dtype bool or float32, got int64$"):
        stream.step(inputs(CASE)["source"], reset=np.zeros((5, 3), np.int64))


def test_check_takes_resets() -> None:
    """`vkrnn.check` passes them to the device and to the reference."""
    for kind, starts in COMBINATIONS:
        report = vkrnn.check(vkrnn.lstm, **inputs(CASE), **draw_resets(CASE, kind, starts))
        assert report.ok, report
