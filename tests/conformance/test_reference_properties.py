"""Properties of the reference's forward and gradient calls for any numbers, drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkrnn.reference
from cases import ACTIVATIONS, CELLS, FLAGS, GATES, NAMES, OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from tolerances import SAME_IN_FLOAT64

Array = NDArray[Any]
Arrays = dict[str, Array]

DIRECTIONS: tuple[dict[str, bool], ...] = ({}, {"reverse": True}, {"bidirectional": True})
PERMUTED = {"lstm": ("forget_gate_last", (0, 2, 1, 3)), "gru": ("reset_gate_first", (1, 0, 2))}
CELL_STATES = ("cell", "normalizer", "stabilizer")
STATES = [f"{name}_gradient" for name in ("state", *CELL_STATES)] + [f"init_{name}" for name in ("state", *CELL_STATES)]
ROWS = ("output", *(f"{name}_output" for name in CELL_STATES), "z_state", "source_gradient", "mask")

quick = settings(max_examples=40, deadline=None, derandomize=True)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    cell: str | None = None,
    directions: tuple[dict[str, bool], ...] = DIRECTIONS,
    least_steps: int = 1,
    everything: bool = False,
) -> Case:
    """Draw a case: any cell, flags, activations, arguments and small sizes."""
    cell = cell or draw(st.sampled_from(sorted(GATES)))
    options: dict[str, Any] = dict(draw(st.sampled_from(directions)))
    options |= {name: True for name in FLAGS[cell] if draw(st.booleans())}
    options |= {name: draw(st.sampled_from(NAMES)) for name in ACTIVATIONS[cell] if draw(st.booleans())}
    known = (*OPTIONAL[cell], *UPSTREAM[cell])
    present = frozenset(name for name in known if everything or draw(st.booleans()))
    T, N, H, features = (draw(st.integers(least, 5)) for least in (least_steps, 1, 1, 1))
    if "input_weight" not in present:
        features = (2 if options.get("bidirectional") else 1) * GATES[cell] * H
    return Case(cell, T, N, features, H, options, present, seed=draw(st.integers(1, 1 << 30)))


def draw_arrays(case: Case) -> tuple[Arrays, Arrays]:
    """Return the inputs and the upstream gradients, both float64."""
    arrays: Arrays = {name: array.astype(np.float64) for name, array in inputs(case).items()}
    forward: Callable[..., Any] = getattr(vkrnn.reference, case.cell)
    given_back = gradient_inputs(case, forward(**arrays, descriptor=case.descriptor(training=True)))
    upstream = {name: array.astype(np.float64) for name, array in given_back.items() if name.endswith("gradient")}
    return arrays, upstream


def run(case: Case, arrays: Mapping[str, Array], upstream: Mapping[str, Array], **changes: Any) -> Arrays:
    """Return all results: outputs by name, gradients as "d " + name."""
    descriptor = case.descriptor(**{**changes, "training": True})
    results = getattr(vkrnn.reference, case.cell)(**arrays, descriptor=descriptor)
    saved = {k: v for k, v in gradient_inputs(case, results).items() if not k.endswith("gradient")}
    function = getattr(vkrnn.reference, f"{case.cell}_gradients")
    gradients = function(**arrays, **upstream, **saved, descriptor=descriptor)
    everything: Arrays = results._asdict() | {f"d {name}": array for name, array in gradients._asdict().items()}
    return everything


def same(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Compare all expected arrays; each must be in `got`."""
    assert expected.keys() <= got.keys()
    for name, array in expected.items():
        limit = SAME_IN_FLOAT64 * max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(got[name], array, rtol=0, atol=limit, err_msg=name)


@given(cases(directions=({},)))
@quick
def test_reverse_is_forward_of_the_flipped_source(case: Case) -> None:
    arrays, upstream = draw_arrays(case)
    expected = run(case, arrays | {"source": arrays["source"][::-1]}, upstream)
    expected["d source"] = expected["d source"][::-1]  # in the source's order; other results are in that of the steps
    same(run(case, arrays, upstream, reverse=True), expected)


@given(cases(directions=({"bidirectional": True},)))
@quick
def test_bidirectional_is_two_passes(case: Case) -> None:
    arrays, upstream = draw_arrays(case)
    whole = run(case, arrays, upstream)
    shared = "input_weight" in arrays  # then both directions read the same source
    one_way = {key: value for key, value in case.options.items() if key != "bidirectional"}
    single = replace(case, I=case.I if shared else case.I // 2, options=one_way)
    parts = []
    for half in (0, 1):

        def take(name: str, array: Array, half: int = half) -> Array:
            if name == "source" and shared:
                return array
            if name in ("recurrent_weight", "peephole"):
                part: Array = array[half]
                return part
            axis = 0 if name == "input_weight" else -1
            return np.split(array, 2, axis=axis)[half]

        def turn(name: str, array: Array, half: int = half) -> Array:
            return array[::-1] if half and name.removeprefix("d ") in (*ROWS, "source") else array

        mine, ups = ({k: turn(k, take(k, v)) for k, v in given_.items()} for given_ in (arrays, upstream))
        parts.append({k: turn(k, v) for k, v in run(single, mine, ups).items()})
    first, second = parts
    for name, array in whole.items():
        if name == "d source" and shared:
            expected = first[name] + second[name]
        elif name in ("d recurrent_weight", "d peephole"):
            expected = np.stack([first[name], second[name]])
        else:
            expected = np.concatenate([first[name], second[name]], axis=0 if name == "d input_weight" else -1)
        same({name: array}, {name: expected})


@given(cases())
@quick
def test_absent_arguments_have_neutral_values(case: Case) -> None:
    arrays, upstream = draw_arrays(case)
    filled = replace(case, present=case.present | {*OPTIONAL[case.cell], *UPSTREAM[case.cell]})
    plain = run(case, arrays, upstream)
    for name in {*OPTIONAL[case.cell], *UPSTREAM[case.cell]} - case.present:
        if name == "input_weight":
            arrays[name] = np.eye(case.I)
        elif name in UPSTREAM[case.cell]:
            upstream[name] = np.zeros(filled.shape(name))
        else:
            arrays[name] = np.ones(filled.shape(name)) if name == "mask" else np.zeros(filled.shape(name))
    same(run(filled, arrays, upstream), plain)


@given(cases(), st.randoms(use_true_random=False))
@quick
def test_the_batch_may_be_permuted(case: Case, random: Any) -> None:
    arrays, upstream = draw_arrays(case)
    order = random.sample(range(case.N), case.N)

    def permute(name: str, array: Array) -> Array:
        name = name.removeprefix("d ")
        if name in STATES:
            array = array[order]
        return array[:, order] if name in (*ROWS, "source") else array

    mine, ups = ({k: permute(k, v) for k, v in given_.items()} for given_ in (arrays, upstream))
    same(run(case, mine, ups), {name: permute(name, array) for name, array in run(case, arrays, upstream).items()})


@given(cases(directions=({}, {"reverse": True}), least_steps=2, everything=True), st.data())
@quick
def test_time_may_be_split_with_the_state_carried(case: Case, data: st.DataObject) -> None:
    arrays, upstream = draw_arrays(case)
    whole = run(case, arrays, upstream)
    cut = data.draw(st.integers(1, case.T - 1), label="cut")  # steps in the first part
    backwards = bool(case.options.get("reverse"))

    def piece(name: str, array: Array, *, second: bool) -> Array:
        if name == "source" and backwards:
            return array[: case.T - cut] if second else array[case.T - cut :]
        if name in ("source", *ROWS):
            return array[cut:] if second else array[:cut]
        return array

    one, two = (replace(case, T=steps) for steps in (cut, case.T - cut))
    early, late = ({k: piece(k, v, second=second) for k, v in arrays.items()} for second in (False, True))
    up_early, up_late = ({k: piece(k, v, second=second) for k, v in upstream.items()} for second in (False, True))
    first = run(one, early, up_early)
    late["init_state"] = first["output"][-1]
    for name in CELLS[case.cell]:
        late[f"init_{name}"] = first[f"{name}_output"][-1]
    second = run(two, late, up_late)
    # The gradient of the state that was carried over goes on into the first part.
    up_early["state_gradient"] = second["d init_state"]
    for name in CELLS[case.cell]:
        up_early[f"{name}_gradient"] = second[f"d init_{name}"]
    first = run(one, early, up_early)
    for name, array in whole.items():
        bare = name.removeprefix("d ")
        if bare == "source" and backwards:
            expected = np.concatenate([second[name], first[name]])
        elif bare in ("source", *ROWS):
            expected = np.concatenate([first[name], second[name]])
        else:
            expected = first[name] if bare in STATES else first[name] + second[name]
        same({name: array}, {name: expected})


@given(st.sampled_from(sorted(PERMUTED)).flatmap(lambda cell: cases(cell=cell)))
@quick
def test_gate_order_flags_are_permuted_weights(case: Case) -> None:
    flag, order = PERMUTED[case.cell]
    arrays, upstream = draw_arrays(case)

    def permute(name: str, array: Array) -> Array:
        bare = name.removeprefix("d ")
        gated = {"recurrent_weight": -2, "input_weight": 0, "bias": -1, "peephole": -1, "z_state": -1}
        if "input_weight" not in case.present:
            gated["source"] = -1
        if bare not in gated:
            return array
        axis = gated[bare] % array.ndim
        blocks = np.split(array, array.shape[axis] // case.H, axis=axis)
        slots = [direction + slot for direction in range(0, len(blocks), case.G) for slot in order]
        return np.concatenate([blocks[slot] for slot in slots], axis=axis)

    permuted = {name: permute(name, array) for name, array in arrays.items()}
    expected = run(case, arrays, upstream, **{flag: False})
    same(
        run(case, permuted, upstream, **{flag: True}), {name: permute(name, array) for name, array in expected.items()}
    )


@given(cases(cell="gru"))
@quick
def test_flip_z_is_a_sigmoid_of_the_opposite_sign(case: Case) -> None:
    # 1 - sigmoid(a) = sigmoid(-a), so negating everything that feeds the update gate undoes flip_z.
    case = replace(case, options={**case.options, "update_gate_activation": "sigmoid"})
    arrays, upstream = draw_arrays(case)
    slot = 1 if case.options.get("reset_gate_first") else 0

    def turn(name: str, array: Array) -> Array:
        axes = {"recurrent_weight": -2, "input_weight": 0, "bias": -1}
        if "input_weight" not in case.present:
            axes["source"] = -1
        if name.removeprefix("d ") not in axes:
            return array
        moved = np.moveaxis(array.copy(), axes[name.removeprefix("d ")], -1)
        for block in range(slot, moved.shape[-1] // case.H, 3):
            moved[..., block * case.H : (block + 1) * case.H] *= -1
        return np.moveaxis(moved, -1, axes[name.removeprefix("d ")])

    flipped = run(case, {name: turn(name, array) for name, array in arrays.items()}, upstream, flip_z=True)
    expected = {name: turn(name, array) for name, array in run(case, arrays, upstream, flip_z=False).items()}
    expected.pop("z_state")  # z and 1 - z
    same(flipped, expected)


@given(cases(), st.floats(-2, 2), st.floats(-2, 2))
@quick
def test_gradients_are_linear_in_the_upstream_gradients(case: Case, one: float, two: float) -> None:
    arrays, upstream = draw_arrays(case)
    other = {name: array[..., ::-1] + 0.5 for name, array in upstream.items()}
    both = {name: one * upstream[name] + two * other[name] for name in upstream}
    first, second = run(case, arrays, upstream), run(case, arrays, other)
    expected = {name: one * first[name] + two * second[name] for name in first if name.startswith("d ")}
    same(run(case, arrays, both), expected)


@given(cases())
@quick
def test_the_first_step_of_a_stateless_call_never_reads_the_recurrent_weight(case: Case) -> None:
    absent = {"init_state", *(f"init_{name}" for name in CELL_STATES)}
    case = replace(case, T=1, present=case.present - absent, options=dict(case.options))
    arrays, upstream = draw_arrays(case)
    gradient = run(case, arrays, upstream)["d recurrent_weight"]
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))
