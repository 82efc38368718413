"""Calls without a recurrent weight: the reference against other programs, the devices against the reference."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import CELLS, DIRECTIONS, GATES, OPTIONAL, UPSTREAM, Case, by_id, gradient_inputs, inputs, loss
from comparison import assert_close
from resets import draw_resets
from resident import dtype_of, position
from scale import FULL
from targets import Target, fits, targets
from tolerances import COMPLEX, COMPLEX_STEP, DTYPES, FLOAT32, SAME_IN_FLOAT64
from training import differentiated, trained
from vkrnn import mpsgraph

Array = NDArray[Any]

LENGTHS = np.array([6, 2, 0])
NONE = {"recurrent_weight": None}
OWN: dict[str, tuple[dict[str, Any], ...]] = {
    "single_gate_rnn": ({"activation": "tanh"},),
    "lstm": ({}, {"output_peephole_new_cell": True, "forget_gate_last": True}),
    "gru": ({}, {"reset_after": True, "reset_gate_first": True}, {"flip_z": True, "output_gate_activation": "none"}),
    "slstm": ({}, {"forget_gate": "exponential"}),
}
OTHER_DTYPES = ["float64", "float16", "bfloat16"]
RESETS = (None, ("bool", "states"), ("rows", "zeros"), ("units", "states of steps"))


def _cases() -> list[Case]:
    found = []
    for cell in GATES:
        given = frozenset((*OPTIONAL[cell], *UPSTREAM[cell])) - {"mask"}
        for (direction, options), projects in zip(
            itertools.product(DIRECTIONS, OWN[cell]), itertools.cycle((True, True, False))
        ):
            D = 1 + bool(direction.get("bidirectional"))
            features = 5 if projects else D * GATES[cell] * 7
            present = given if projects else given - {"input_weight"}
            found.append(Case(cell, 6, 3, features, 7, direction | options, present, each_cell=projects))
        heads = {"input_heads": 2, "gradient_clip": 0.125, "clip": 1.5}
        found.append(Case(cell, 6, 3, 6, 8, {"bidirectional": True} | heads | OWN[cell][-1], given))
        few = frozenset({"input_weight"})
        found += [replace(found[0], cell=cell, T=5, N=2, H=H, options=OWN[cell][0], present=few) for H in (1, 131)]
    return found


CASES = _cases()


def arguments(case: Case, resets: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return the arrays of a case but for the recurrent weight."""
    given: dict[str, Any] = inputs(case) | (draw_resets(case, *resets) if resets else {})
    del given["recurrent_weight"]
    return given


def converted(given: dict[str, Any], dtype: Any) -> dict[str, Any]:
    return {name: each if each.dtype == bool else each.astype(dtype) for name, each in given.items()}


# The reference


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_the_reference_has_the_numbers_of_a_weight_of_zeros(case: Case) -> None:
    zeros = {"recurrent_weight": np.zeros(case.shape("recurrent_weight"))}
    for resets, lengths in itertools.product(RESETS, (None, LENGTHS[: case.N])):
        if lengths is not None and case.T < 6:
            continue
        given = converted(arguments(case, resets), np.float64)
        wanted = trained(case, vkrnn.reference, given | zeros, lengths)
        found = trained(case, vkrnn.reference, given | NONE, lengths)
        assert_close(found._asdict(), wanted._asdict(), SAME_IN_FLOAT64)
        above = gradient_inputs(case, wanted)
        gradients = differentiated(case, vkrnn.reference, given | zeros, above, lengths)._asdict()
        del gradients["recurrent_weight"]
        found = differentiated(case, vkrnn.reference, given | NONE, above, lengths)
        assert_close(found._asdict(), gradients, SAME_IN_FLOAT64)
        with pytest.raises(AttributeError, match="no recurrent_weight was passed"):
            _ = found.recurrent_weight


@pytest.mark.parametrize("case", [case for case in CASES if case.is_smooth], ids=by_id)
def test_the_references_gradients_are_derivatives(case: Case) -> None:
    for resets in RESETS:
        given = converted(arguments(case, resets), np.float64)
        above = converted(gradient_inputs(case, trained(case, vkrnn.reference, given | NONE)), np.float64)
        gradients = differentiated(case, vkrnn.reference, given | NONE, above)
        rng = np.random.default_rng(1)
        for name, gradient in gradients._asdict().items():
            along = rng.standard_normal(gradient.shape)
            changed = given | {name: given[name] + 1j * COMPLEX_STEP * along}
            results = trained(case, vkrnn.reference, changed | NONE)
            slope = loss(case, changed, results, above).imag / COMPLEX_STEP
            assert abs(np.sum(gradient * along) - slope) <= COMPLEX * (1 + np.sum(np.abs(gradient * along))), name


def test_mingru_in_closed_form() -> None:
    """h[t] = (1 - z) h[t-1] + z o is a sum over all earlier steps, with the products of the later 1 - z as weights."""
    rng = np.random.default_rng(3)
    T, N, H = 9, 2, 5
    source, initial = rng.standard_normal((T, N, 3 * H)), rng.standard_normal((N, H))
    how = vkrnn.GRUDescriptor(flip_z=True, output_gate_activation="none")
    z, o = 1 / (1 + np.exp(-source[..., :H])), source[..., 2 * H :]
    wanted = []
    for t in range(T):
        stays = [np.prod(1 - z[s + 1 : t + 1], axis=0) for s in range(-1, t + 1)]
        wanted.append(stays[0] * initial + sum(stays[s + 1] * z[s] * o[s] for s in range(t + 1)))
    for module in (vkrnn, vkrnn.reference):
        found = module.gru(source, None, init_state=initial, descriptor=how).output
        np.testing.assert_allclose(found, np.stack(wanted), rtol=0, atol=SAME_IN_FLOAT64)


# The devices


def agrees(case: Case, given: dict[str, Any], lengths: Array | None, tolerance: float) -> None:
    """Compare a training call, and its gradients, with the reference."""
    got = trained(case, vkrnn, given | NONE, lengths)
    wanted = trained(case, vkrnn.reference, given | NONE, lengths)._asdict()
    assert_close(got._asdict(), wanted, tolerance)
    plain = getattr(vkrnn, case.cell)(**given, **NONE, lengths=lengths, descriptor=case.descriptor())
    np.testing.assert_array_equal(plain.output, got.output)
    dtype = given["source"].dtype
    above = converted(gradient_inputs(case, got), dtype)
    wanted = differentiated(case, vkrnn.reference, given | NONE, above, lengths)._asdict()
    assert_close(differentiated(case, vkrnn, given | NONE, above, lengths)._asdict(), wanted, tolerance)


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
@pytest.mark.parametrize("cell", GATES)
def test_every_strategy(target: Target, cell: str) -> None:
    """Those that run such calls agree with the reference, with lengths and without."""
    with target.opened() as device:
        ran = 0
        for number, case in target.share([*enumerate(case for case in CASES if case.cell == cell)], 3):
            lengths = LENGTHS if number % 2 and case.N == 3 else None
            given = arguments(case, RESETS[number % len(RESETS)])
            above = gradient_inputs(case, trained(case, vkrnn.reference, given | NONE, lengths))
            above, call = converted(above, np.float32), {**given, **NONE, "lengths": lengths}
            forward, backward = getattr(vkrnn, cell), getattr(vkrnn, f"{cell}_gradients")
            if fits(device, target, forward, **call, descriptor=case.descriptor(training=True)) and fits(
                device, target, backward, **call, **above, descriptor=case.descriptor()
            ):
                ran += 1
                agrees(case, given, lengths, FLOAT32)
        chosen = dict(target.options).get("schedule", "steps")
        assert bool(ran) == (chosen in ("native", "steps", "slices"))


@pytest.mark.parametrize("native", [True, False], ids=["native", "vulkan"])
@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("cell", GATES)
def test_other_dtypes(cell: str, dtype: str, *, native: bool) -> None:
    """A GPU has fewer cases, whose kernels take long to compile. Except in a full run, dtypes take turns at them."""
    chosen = [case for case in CASES if case.cell == cell]
    numbered = list(enumerate(chosen if native else chosen[1::4]))
    with vkrnn.Device(position(native=native)):
        for number, case in numbered if native or FULL else numbered[OTHER_DTYPES.index(dtype) % 2 :: 2]:
            lengths = LENGTHS if number % 3 == 1 and case.N == 3 else None
            agrees(case, converted(arguments(case, RESETS[number % 4]), dtype_of(dtype)), lengths, DTYPES[dtype])


@pytest.mark.parametrize("cell", GATES)
def test_bits_do_not_depend_on_threads(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are divided among threads that never wait for each other."""
    for projects in (True, False):
        features, present = (17, {"input_weight"}) if projects else (GATES[cell] * 261, set())
        case = Case(cell, 40, 3, features, 261, {}, frozenset(present | {"bias"}))
        given = arguments(case)
        found = []
        for count in ("1", "3"):
            monkeypatch.setenv("VKRNN_NUM_THREADS", count)
            with vkrnn.Device(position(native=True)):
                result = trained(case, vkrnn, given | NONE)
                above = gradient_inputs(case, result)
                found.append([*result, *differentiated(case, vkrnn, given | NONE, above)])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_plans_have_no_products_of_states() -> None:
    """Nor a weight to pack. A GRU's candidate needs no phase of its own."""
    for cell in GATES:
        case = Case(cell, 6, 3, GATES[cell] * 7, 7)
        given = arguments(case) | NONE
        above = gradient_inputs(case, trained(case, vkrnn.reference, given))
        for device in (position(native=True), position(native=False)):
            for name, call in ((cell, given), (f"{cell}_gradients", given | converted(above, np.float32))):
                plan = vkrnn.plan(getattr(vkrnn, name), **call, device=device)
                assert plan.flops == 0
                assert "recurrent" not in str(plan)
                assert "pack" not in str(plan)
                assert "candidate" not in str(plan)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("native", [True, False], ids=["native", "vulkan"])
def test_in_networks_and_streams(cell: str, *, native: bool) -> None:
    """Layers are those of functions, one after the other; on the CPU, streams have their bits."""
    given = frozenset(name for name in OPTIONAL[cell] if name != "mask" and not name.startswith("init_"))
    cases = [Case(cell, 6, 3, 5, 7, {}, given, seed=1), Case(cell, 6, 3, 7, 4, {}, given, seed=2)]
    weights = [{name: a for name, a in arguments(case).items() if name != "source"} for case in cases]
    source = arguments(cases[0])["source"]
    device = vkrnn.Device(position(native=native))
    with device:
        net = vkrnn.network([(cell, each) for each in weights])
        result = net.forward(source, training=True)
        upstream = np.cos(np.arange(result.output.size, dtype=np.float32)).reshape(result.output.shape)
        gradients = net.gradients(result, upstream)
        below = [source]
        kept = []
        for case, each in zip(cases, weights, strict=True):
            kept.append(trained(case, vkrnn, {"source": below[-1], **each, **NONE}))
            below.append(kept[-1].output)
        np.testing.assert_array_equal(result.output, below[-1])
        for number in (1, 0):
            case = cases[number]
            above = gradient_inputs(case, kept[number]) | {"source_gradient": upstream}
            wanted = differentiated(case, vkrnn, {"source": below[number], **weights[number], **NONE}, above)._asdict()
            upstream = wanted.pop("source")
            assert_close(gradients.layers[number]._asdict(), wanted)
        assert_close({"source": gradients.source}, {"source": upstream})
        stream = vkrnn.stream([(cell, each) for each in weights], batch=3)
        tolerance = 0.0 if native else FLOAT32
        assert_close({"steps": np.stack([stream.step(x) for x in source])}, {"steps": result.output}, tolerance)
        stream.reset()
        assert_close({"block": stream.step(source)}, {"block": result.output}, tolerance)
        layer = vkrnn.convert.Layer(getattr(vkrnn, cell), weights[0], None)
        assert layer.hidden_size == 7
        np.testing.assert_array_equal(layer(source).output, below[1])
    device.close()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_stream_of_one_row(batch: int) -> None:
    """A single row, and a single unit, which is a head of its own like all others."""
    for cell, H in itertools.product(GATES, (1, 37)):
        case = Case(cell, 6, batch, 5, H, {}, frozenset({"input_weight", "bias"}))
        given = arguments(case)
        wanted = getattr(vkrnn, cell)(**given, **NONE).output
        source = given.pop("source")
        stream = vkrnn.stream((cell, given | NONE), batch=batch)
        np.testing.assert_array_equal(np.stack([stream.step(x) for x in source]).reshape(wanted.shape), wanted)


# Messages

LSTM = Case("lstm", 5, 3, 7, 4, {}, frozenset(["input_weight"]))
BOTH = {"descriptor": vkrnn.LSTMDescriptor(bidirectional=True)}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mask": np.ones((5, 3, 4), np.float32)}, "mask: expected a recurrent_weight beside it, got none"),
    (
        {"descriptor": vkrnn.LSTMDescriptor(heads=2)},
        "descriptor.heads: expected 1 without recurrent_weight, got 2",
    ),
    (
        {"input_weight": np.ones((15, 7), np.float32)},
        "input_weight: expected shape [4H, I], got [15, 7] (15 is no multiple of the 4 gates)",
    ),
    (
        {"input_weight": np.ones((12, 7), np.float32), **BOTH},
        "input_weight: expected shape [8H, I], got [12, 7] (12 is no multiple of the 4 gates of 2 directions)",
    ),
    ({"input_weight": np.ones(16, np.float32)}, "input_weight: expected shape [4H, I], got [16]"),
    (
        {"input_weight": np.ones((16, 6), np.float32)},
        "input_weight: expected shape [4H, I] = [16, 7], got [16, 6] (I = 7 from source.shape[2], "
        "H = 4 from input_weight.shape[0] / 4)",
    ),
    (
        {"input_weight": None},
        "source: expected shape [T, N, 4H], got [5, 3, 7] (7 is no multiple of the 4 gates)",
    ),
    (
        {"bias": np.ones(15, np.float32)},
        "bias: expected shape [4H] = [16], got [15] (H = 4 from input_weight.shape[0] / 4)",
    ),
    (
        {"input_weight": None, "source": np.ones((5, 3, 16), np.float32), "bias": np.ones(15, np.float32), **BOTH},
        "bias: expected shape [8H] = [16], got [15] (H = 2 from source.shape[2] / 8)",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_messages(changes: dict[str, Any], message: str) -> None:
    """They are complete, and come before a device is used."""
    given = arguments(LSTM) | NONE | changes
    with pytest.raises(ValueError, match=f"^{re.escape(f'[lstm] {message}')}$"):
        vkrnn.lstm(**given, device="no such device")
    without = {name: value for name, value in given.items() if value is not None or name == "recurrent_weight"}
    with pytest.raises(ValueError, match=r"^\[lstm\] "):
        vkrnn.reference.lstm(**without)


def test_a_layer_needs_a_weight_that_h_comes_from() -> None:
    for make in (vkrnn.network, vkrnn.stream):
        message = r"^\[lstm 'layer 0'\] input_weight: expected an array in a layer without recurrent_weight, got none$"
        with pytest.raises(ValueError, match=message):
            make(("lstm", {"bias": np.ones(16, np.float32)}))


@pytest.mark.parametrize("method", mpsgraph.METHODS, ids=lambda method: method.swift)
def test_mpsgraphs_methods_refuse_it(method: mpsgraph.Method) -> None:
    """With labels and by position."""
    function = mpsgraph._NAMES[method.base].__name__
    given = dict.fromkeys(method.labels)
    calls: list[Callable[[], Any]] = [
        lambda: getattr(mpsgraph, method.base)(np.ones((5, 3, 4), np.float32), **given, descriptor=None),
        lambda: getattr(mpsgraph, method.python)(np.ones((5, 3, 4), np.float32), *given.values(), None, None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^\[{function}\] recurrent_weight: expected an array, got None$"):
            call()


@pytest.mark.parametrize("cell", GATES)
def test_check_compares_with_the_reference(cell: str) -> None:
    case = next(case for case in CASES if case.cell == cell and "input_weight" in case.present)
    given = arguments(case) | NONE
    report = vkrnn.check(getattr(vkrnn, cell), **given, descriptor=case.descriptor())
    assert report.ok, report
    own = getattr(vkrnn.reference, cell)(**given, descriptor=case.descriptor())
    assert vkrnn.check(getattr(vkrnn, cell), **given, descriptor=case.descriptor(), results=own.output).ok
    if not CELLS[cell]:
        return
    wrong = vkrnn.check(getattr(vkrnn, cell), **given, descriptor=case.descriptor(), results=own.output + 1)
    assert not wrong.ok
