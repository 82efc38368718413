"""Zoneout and leaks: the reference is checked by single steps and by the complex step, the devices against it."""

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
from blends import KINDS, draw_blends, with_output
from cases import CELLS as CELL_STATES
from cases import DIRECTIONS, GATES, OPTIONAL, UPSTREAM, Case, by_id, gradient_inputs, inputs, loss
from comparison import assert_close
from resets import CELLS as CELLS_WITH_RESETS
from resets import draw_resets
from resident import dtype_of, position
from scale import sample
from targets import Target, fits, targets
from tolerances import COMPLEX, COMPLEX_STEP, DTYPES, FLOAT32, SAME_IN_FLOAT64
from training import differentiated, trained

Array = NDArray[Any]

LENGTHS = np.array([6, 2, 0])
OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "single_gate_rnn": ({"activation": "tanh"},),
    "lstm": ({}, {"output_peephole_new_cell": True}),
    "gru": ({}, {"reset_after": True}),
    "slstm": ({},),
}


def _cases() -> Iterator[Case]:
    for cell in GATES:
        given = frozenset((*OPTIONAL[cell], *UPSTREAM[cell]))
        for direction, options in itertools.product(DIRECTIONS, OWN[cell]):
            yield Case(cell, 6, 3, 5, 7, direction | options, given, each_cell=direction == {})
        more = {"heads": 2, "input_heads": 2, "gradient_clip": 0.25}
        yield Case(cell, 6, 3, 6, 8, {"bidirectional": True} | more | OWN[cell][-1], given)


CASES = list(_cases())
# Each case with two kinds, with resets in every other one.
CHOSEN = [(case, KINDS[(i + 2 * j + (i // 4)) % 4]) for i, case in enumerate(CASES) for j in (0, 1)]


def drawn(case: Case, kind: str, *, resets: bool) -> dict[str, Array]:
    """Return the arguments of a case with blends, and perhaps with resets."""
    more = draw_resets(case, "units", "states of steps") if resets and case.cell in CELLS_WITH_RESETS else {}
    return inputs(case) | draw_blends(case, kind) | more


def in_doubles(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float64) for name, array in arrays.items()}


# The reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in CASES if not case.options.get("bidirectional")], ids=by_id)
def test_the_reference_blends_the_states_of_single_steps(case: Case, kind: str) -> None:
    """A step is one of a call without blends, whose states are blended with those before it."""
    arrays, blends = in_doubles(inputs(case)), in_doubles(draw_blends(case, kind))
    whole = trained(case, vkrnn.reference, arrays | blends)
    names = [f"init_{name}" for name in ("state", *CELL_STATES[case.cell])]
    states = [arrays.get(name, np.zeros((1, case.N, case.H))) for name in names]
    single = replace(case, T=1, options={name: v for name, v in case.options.items() if name != "reverse"})
    parts = [blends.get("zoneout_mask", blends.get("leak")), blends.get("zoneout_cell_mask")]
    for k in range(case.T):
        source = arrays["source"][case.T - 1 - k if case.options.get("reverse") else k][None]
        given = arrays | {"source": source} | dict(zip(names, states, strict=True))
        if "mask" in arrays:
            given["mask"] = arrays["mask"][k : k + 1]
        step = trained(single, vkrnn.reference, given)
        made = [step.output, *(getattr(step, f"{name}_output") for name in CELL_STATES[case.cell])]
        for number, part in enumerate(parts):
            if part is not None:
                now = part[k] if part.ndim == 3 else part
                made[number] = now * made[number] + (1 - now) * states[number]
        states = made
        for state, name in zip(states, ("output", *(f"{n}_output" for n in CELL_STATES[case.cell])), strict=True):
            np.testing.assert_allclose(getattr(whole, name)[k], state[0], rtol=0, atol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in CASES if "gradient_clip" not in case.options], ids=by_id)
def test_the_references_gradients_are_derivatives(case: Case, kind: str, lengths: Array | None) -> None:
    """Gradients of the outputs and of the last states, compared with the complex step."""
    for resets in (False, True):
        arrays = in_doubles(drawn(case, kind, resets=resets))
        results = trained(case, vkrnn.reference, arrays, lengths)
        upstream = in_doubles(gradient_inputs(case, results))
        gradients = differentiated(case, vkrnn.reference, arrays, with_output(upstream, results), lengths)
        rng = np.random.default_rng(1)
        for name, gradient in gradients._asdict().items():
            along = rng.standard_normal(gradient.shape)
            changed = arrays | {name: arrays[name] + 1j * COMPLEX_STEP * along}
            slope = loss(case, changed, trained(case, vkrnn.reference, changed, lengths), upstream, lengths)
            slope = slope.imag / COMPLEX_STEP
            assert abs(np.sum(gradient * along) - slope) <= COMPLEX * (1 + np.sum(np.abs(gradient * along))), name
        assert (list(gradients._fields)[-1] == "leak") == ("leak" in arrays)


# The devices


def agrees(case: Case, given: dict[str, Array], lengths: Array | None, tolerance: float, dtype: Any = None) -> None:
    """Compare a training call, and its gradients, with the reference."""

    def converted(arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: each.astype(dtype or np.float32) for name, each in arrays.items()}

    arrays = converted(given)
    got = trained(case, vkrnn, arrays, lengths)
    assert_close(got._asdict(), trained(case, vkrnn.reference, arrays, lengths)._asdict(), tolerance)
    upstream = converted(with_output(gradient_inputs(case, got), got))
    wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)._asdict()
    assert_close(differentiated(case, vkrnn, arrays, upstream, lengths)._asdict(), wanted, tolerance)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
@pytest.mark.parametrize("cell", GATES)
def test_every_strategy(target: Target, cell: str) -> None:
    """Each agrees with the reference, with lengths and resets and without."""
    device = target.opened()
    for number, (case, kind) in target.share(list(enumerate(CHOSEN)), 3):
        if case.cell != cell:
            continue
        given, lengths = drawn(case, kind, resets=number % 4 > 1), LENGTHS if number % 2 else None
        forward, backward = getattr(vkrnn, cell), getattr(vkrnn, f"{cell}_gradients")
        results = trained(case, vkrnn.reference, given, lengths)
        above = with_output(gradient_inputs(case, results), results)
        above = {name: array.astype(np.float32) for name, array in above.items()}
        training = case.descriptor(training=True)
        if fits(device, target, forward, **given, lengths=lengths, descriptor=training) and fits(
            device, target, backward, **given, **above, lengths=lengths, descriptor=case.descriptor()
        ):
            with device:
                agrees(case, given, lengths, FLOAT32)
    device.close()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("cell", GATES)
def test_each_back_end_has_a_strategy(cell: str, *, native: bool) -> None:
    case = Case(cell, 4, 2, 3, 5, {}, frozenset(["input_weight"]))
    with vkrnn.Device(position(native=native)):
        for kind in KINDS:
            agrees(case, drawn(case, kind, resets=False), None, FLOAT32)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("case", "kind"), sample(CHOSEN, 4), ids=by_id)
def test_in_other_dtypes(case: Case, kind: str, dtype: str) -> None:
    """Each dtype agrees with the reference on the same numbers."""
    agrees(case, drawn(case, kind, resets=False), None, DTYPES[dtype], dtype_of(dtype))


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_bits(case: Case) -> None:
    """Parts of 1 have the bits of a call without blends, and parts of 0 keep the first state."""
    arrays, width = inputs(case), case.D * case.H
    plain = trained(case, vkrnn, arrays)
    for kind in KINDS:
        ones = {name: np.ones_like(array) for name, array in draw_blends(case, kind).items()}
        forward = trained(case, vkrnn, arrays | ones)
        for one, other in zip(forward, plain, strict=True):
            np.testing.assert_array_equal(one, other)
        upstream = with_output(gradient_inputs(case, plain), plain)
        found = differentiated(case, vkrnn, arrays | ones, upstream)._asdict()
        wanted = differentiated(case, vkrnn, arrays, upstream)._asdict()
        for name, array in wanted.items():
            # h is then read instead of computed again, and cells that are blended are computed again.
            np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-6 * max(1, np.abs(array).max()))
        zeros = {name: np.zeros_like(array) for name, array in ones.items()}
        kept = trained(case, vkrnn, arrays | zeros).output
        first = np.broadcast_to(arrays["init_state"].reshape(case.N, width), kept.shape)
        np.testing.assert_array_equal(kept, first)


def test_h_of_the_forward_call_is_ignored_without_blends() -> None:
    case = Case("lstm", 4, 2, 3, 5, {}, frozenset(["input_weight"]))
    results = trained(case, vkrnn, inputs(case))
    upstream = gradient_inputs(case, results)
    call = {**inputs(case), **upstream, "descriptor": case.descriptor()}
    nans = np.full_like(results.output, np.nan)
    for one, other in zip(vkrnn.lstm_gradients(**call), vkrnn.lstm_gradients(**call, output_fwd=nans), strict=True):
        np.testing.assert_array_equal(one, other)
    assert vkrnn.plan(vkrnn.lstm_gradients, **call) == vkrnn.plan(vkrnn.lstm_gradients, **call, output_fwd=nans)


def _layers(case: Case, count: int) -> list[dict[str, Array]]:
    return [
        {name: a for name, a in inputs(replace(case, seed=seed)).items() if name != "source"}
        for seed in range(1, count + 1)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", GATES)
def test_in_a_network(cell: str, kind: str) -> None:
    """Masks of steps are arguments of a call, the others belong to a layer; results are those of functions in turn."""
    case = Case(cell, 6, 3, 7, 7, {}, frozenset(["input_weight", "bias"]))
    blends = [draw_blends(case, kind, seed) for seed in (1, 2)]
    of_steps = kind == "mask"
    layers = [layer | ({} if of_steps else own) for layer, own in zip(_layers(case, 2), blends, strict=True)]
    source = inputs(case)["source"]
    net = vkrnn.network([(cell, layer) for layer in layers])
    more: dict[str, Any] = {name: [own[name] for own in blends] for name in blends[0]} if of_steps else {}
    result = net.forward(source, training=True, **more)
    found = [trained(case, vkrnn, {"source": source, **layers[0], **blends[0]})]
    found.append(trained(case, vkrnn, {"source": found[0].output, **layers[1], **blends[1]}))
    np.testing.assert_array_equal(result.output, found[1].output)
    upstream = np.ones_like(result.output)
    gradients = net.gradients(result, upstream)
    for number, below in ((1, found[0].output), (0, source)):
        own = {name: each for name, each in gradient_inputs(case, found[number]).items() if name.endswith("_fwd")}
        own |= {"z_state": found[number].z_state, "source_gradient": upstream, "output_fwd": found[number].output}
        given = {"source": below, **layers[number], **blends[number]}
        wanted = differentiated(case, vkrnn, given, own)._asdict()
        upstream = wanted.pop("source")
        assert list(gradients.layers[number]._fields) == list(wanted)
        for name, array in wanted.items():
            np.testing.assert_array_equal(getattr(gradients.layers[number], name), array)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["mask", "leak of units"])
def test_in_a_wavefront(kind: str, *, native: bool) -> None:
    """Pieces of the time axis have the bits of whole layers."""
    case = Case("lstm", 24, 3, 7, 7, {}, frozenset(["input_weight", "bias"]))
    blends = draw_blends(case, kind)
    layers = [layer | ({} if kind == "mask" else blends) for layer in _layers(case, 3)]
    more: dict[str, Any] = {name: [array] * 3 for name, array in blends.items()} if kind == "mask" else {}
    found = []
    for steps in (0, 5):
        with vkrnn.Device(position(native=native), wavefront=steps) as device:
            net = vkrnn.network([("lstm", layer) for layer in layers], device=device)
            result = net.forward(inputs(case)["source"], training=True, **more)
            gradients = net.gradients(result, np.ones_like(result.output))
            planned = vkrnn.plan(net.gradients, result, np.ones_like(result.output))
            assert ("wavefront" in [step["kind"] for step in planned.steps]) == (steps > 0)
            found.append([result.output, gradients.source, *itertools.chain(*gradients.layers)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("cell", GATES)
def test_in_a_stream(cell: str, kind: str, N: int, *, native: bool) -> None:
    """Steps and blocks agree with a call. On the CPU they have its bits."""
    given = frozenset({"input_weight", "init_state", "init_cell"} & set(OPTIONAL[cell]))
    case = Case(cell, 6, N, 5, 7, {}, given)
    arrays, blends = inputs(case), draw_blends(case, kind)
    with vkrnn.Device(position(native=native)):
        wanted = getattr(vkrnn, cell)(**arrays, **blends).output
        weights = {name: array for name, array in (arrays | blends).items() if name != "source"}
        stream = vkrnn.stream((cell, weights), batch=N)
        blocks = [np.stack([stream.step(x) for x in arrays["source"]])]
        stream.reset()
        blocks.append(stream.step(arrays["source"]))
        for block in blocks:
            np.testing.assert_allclose(block, wanted, rtol=0, atol=0 if native else FLOAT32)


# Messages

CASE = Case("lstm", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
MASK = np.ones((5, 3, 4), np.float32)
UNITS = MASK[0, 0]
FROM = "(T = 5 from source.shape[0], N = 3 from source.shape[1], H = 4 from recurrent_weight.shape[0] / 4)"
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"zoneout_mask": MASK.astype(bool)}, TypeError, "zoneout_mask: expected dtype float32 like source, got bool"),
    (
        {"zoneout_mask": MASK[:, :2]},
        ValueError,
        f"zoneout_mask: expected shape [H] = [4] or [T, N, H] = [5, 3, 4], got [5, 2, 4] {FROM}",
    ),
    (
        {"zoneout_cell_mask": MASK[0]},
        ValueError,
        f"zoneout_cell_mask: expected shape [H] = [4] or [T, N, H] = [5, 3, 4], got [3, 4] {FROM}",
    ),
    (
        {"leak": UNITS[:3]},
        ValueError,
        "leak: expected shape [] = [] or [1] = [1] or [H] = [4], got [3] (H = 4 from recurrent_weight.shape[0] / 4)",
    ),
    ({"leak": UNITS, "zoneout_mask": MASK}, ValueError, "leak: expected no zoneout_mask beside it, got both"),
    ({"leak": 0.5, "zoneout_cell_mask": MASK}, ValueError, "leak: expected no zoneout_cell_mask beside it, got both"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_messages(given: dict[str, Any], error: type[Exception], message: str) -> None:
    """They are complete, and come before a device is used."""
    with pytest.raises(error, match=f"^{re.escape(f'[lstm] {message}')}$"):
        vkrnn.lstm(**inputs(CASE), **given, device="no such device")


def test_a_wrong_source_beside_a_number_as_leak() -> None:
    """A leak that is a number gets the source's dtype, if it has one."""
    with pytest.raises(TypeError, match=r"^\[lstm\] source: expected a numpy.ndarray or a vkrnn.Array, got bytes$"):
        vkrnn.lstm(b"", inputs(CASE)["recurrent_weight"], leak=0.5)


@pytest.mark.parametrize("name", ["zoneout_mask", "zoneout_cell_mask", "leak"])
@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "slstm"])
def test_gradients_need_h(cell: str, name: str) -> None:
    """Both vkrnn and the reference say so."""
    if name == "zoneout_cell_mask" and cell != "lstm":
        return
    case = Case(cell, 5, 3, 7, 4, {}, frozenset(["input_weight"]))
    call = {**inputs(case), **gradient_inputs(case, trained(case, vkrnn, inputs(case))), name: UNITS}
    message = f"[{cell}_gradients] output_fwd: expected an array beside {name}, got none"
    for module in (vkrnn, vkrnn.reference):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            getattr(module, f"{cell}_gradients")(**call, descriptor=case.descriptor())


@pytest.mark.parametrize("cell", ["single_gate_rnn", "gru", "slstm"])
def test_only_an_lstm_has_a_mask_of_c(cell: str) -> None:
    layer = {name: array for name, array in inputs(replace(CASE, cell=cell)).items() if name != "source"}
    with pytest.raises(TypeError, match=rf"^\[{cell} 'layer 0'\] zoneout_cell_mask: unknown argument; "):
        vkrnn.network([(cell, layer | {"zoneout_cell_mask": UNITS})])


def test_messages_of_networks() -> None:
    """Masks of steps are no weights, and an argument of a layer and of a call exclude each other."""
    layer = {name: array for name, array in inputs(CASE).items() if name != "source"}
    with pytest.raises(TypeError, match=r"^\[lstm 'layer 0'\] zoneout_mask: expected only weights in a layer$"):
        vkrnn.network([("lstm", layer | {"zoneout_mask": MASK})])
    net = vkrnn.network([("lstm", layer | {"zoneout_mask": UNITS})])
    message = "[network] zoneout_mask[0]: expected none, because the layer has one, got an array"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        net.forward(inputs(CASE)["source"], zoneout_mask=[MASK])


def test_a_number_is_a_leak() -> None:
    """It is of the source's type."""
    for dtype in (np.float32, np.float64):
        arrays = {name: array.astype(dtype) for name, array in inputs(CASE).items()}
        wanted = vkrnn.lstm(**arrays, leak=np.asarray(0.25, dtype)).output
        np.testing.assert_array_equal(vkrnn.lstm(**arrays, leak=0.25).output, wanted)


def test_check_takes_blends() -> None:
    """`vkrnn.check` passes them to the device and to the reference."""
    for kind in KINDS:
        report = vkrnn.check(vkrnn.lstm, **inputs(CASE), **draw_blends(CASE, kind))
        assert report.ok, report
