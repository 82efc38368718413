"""Properties of the device's forward and gradient calls for any numbers, drawn by hypothesis.

test_reference_properties.py tests the same of the reference. Here every option is used, at random sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vkrnn
from cases import (
    ACTIVATIONS,
    FLAGS,
    GATES,
    NAMES,
    OPTIONAL,
    UPSTREAM,
    Case,
    blocks_of,
    dense,
    gradient_inputs,
    inputs,
    without_heads,
)
from comparison import assert_close
from tolerances import FLOAT32

Array = NDArray[Any]
Arrays = dict[str, Array]

FORWARD: tuple[dict[str, bool], ...] = ({},)
REVERSE: tuple[dict[str, bool], ...] = ({"reverse": True},)
BIDIRECTIONAL: tuple[dict[str, bool], ...] = ({"bidirectional": True}, {"bidirectional": True, "reverse": True})
OTHER_ORDER = {"lstm": ("forget_gate_last", (0, 2, 1, 3)), "gru": ("reset_gate_first", (1, 0, 2))}

# Names by the axes of their arrays. The gradient of an argument is called "d <argument>" and has its axes.
CELL_STATES = ("cell", "normalizer", "stabilizer")
GRADIENTS = {f"init_{name}": f"{name}_gradient" for name in ("state", *CELL_STATES)}
SEQUENCES = {"init_state": "output", **{f"init_{name}": f"{name}_output" for name in CELL_STATES}}
STATES = {*GRADIENTS, *GRADIENTS.values()}  # [N, DH]
# [T, N, ...] in the order of the output
STEPS = {*SEQUENCES.values(), "z_state", "source_gradient", "mask"}
PER_DIRECTION = {"recurrent_weight", "peephole"}  # [2, ...] where bidirectional
GATED = {"recurrent_weight": -2, "input_weight": 0, "bias": -1, "peephole": -1, "z_state": -1}  # axis of the gates

quick = settings(max_examples=20, deadline=None, derandomize=True)


@st.composite
def calls(
    draw: st.DrawFn,
    cells: tuple[str, ...] = tuple(GATES),
    directions: tuple[dict[str, bool], ...] = FORWARD + REVERSE + BIDIRECTIONAL,
    least_steps: int = 1,
    always: frozenset[str] = frozenset(),
) -> Case:
    """Draw a call: cell, flags, activations, arguments and sizes, some larger than a subgroup."""
    cell = draw(st.sampled_from(cells))
    options: dict[str, Any] = dict(draw(st.sampled_from(directions)))
    options |= {name: True for name in FLAGS[cell] if draw(st.booleans())}
    options |= {name: draw(st.sampled_from(NAMES)) for name in ACTIVATIONS[cell] if draw(st.booleans())}
    present = frozenset(name for name in (*OPTIONAL[cell], *UPSTREAM[cell]) if name in always or draw(st.booleans()))
    T, N, H, features = (draw(st.integers(least, most)) for least, most in [(least_steps, 6), (1, 10), (1, 18), (1, 9)])
    if "input_weight" not in present:
        features = (2 if options.get("bidirectional") else 1) * GATES[cell] * H
    return Case(cell, T, N, features, H, options, present, seed=draw(st.integers(1, 1 << 30)))


def numbers(case: Case) -> tuple[Arrays, Arrays]:
    """Return the arguments and the upstream gradients."""
    forward: Callable[..., Any] = getattr(vkrnn.reference, case.cell)
    arrays: Arrays = dict(inputs(case))
    given_ = gradient_inputs(case, forward(**arrays, descriptor=case.descriptor(training=True)))
    return arrays, {name: array for name, array in given_.items() if name.endswith("gradient")}


def run(case: Case, arrays: Mapping[str, Array], upstream: Mapping[str, Array], **changes: Any) -> Arrays:
    """Return all results of a call and of its gradients on the device, by name."""
    descriptor = case.descriptor(**{**changes, "training": True})
    arrays, upstream = (
        {k: v if v is None else np.asarray(v, np.float32) for k, v in given_.items()} for given_ in (arrays, upstream)
    )
    forward = getattr(vkrnn, case.cell)(**arrays, descriptor=descriptor)
    saved = {k: v for k, v in gradient_inputs(case, forward).items() if not k.endswith("gradient")}
    gradients = getattr(vkrnn, f"{case.cell}_gradients")(**arrays, **upstream, **saved, descriptor=descriptor)
    everything: Arrays = forward._asdict() | {f"d {name}": array for name, array in gradients._asdict().items()}
    return everything


def plain(name: str) -> str:
    """Return the name without "d ". If it names a gradient, that is the name of the argument."""
    return name.removeprefix("d ")


def apply(change: Callable[[str, Array], Array], arrays: Mapping[str, Array]) -> Arrays:
    """Return the arrays after a change that depends on the name."""
    return {name: change(name, array) for name, array in arrays.items()}


@given(calls(directions=FORWARD))
@quick
def test_reverse_is_forward_of_the_flipped_source(case: Case) -> None:
    """Results of a reversed call come in the order of its steps."""
    arrays, upstream = numbers(case)
    wanted = run(case, {**arrays, "source": arrays["source"][::-1]}, upstream)
    wanted["d source"] = wanted["d source"][::-1]
    assert_close(run(case, arrays, upstream, reverse=True), wanted)


@given(calls(directions=BIDIRECTIONAL))
@quick
def test_bidirectional_is_two_passes(case: Case) -> None:
    """One pass is forward. The other one is forward over flipped arrays, with its results flipped back."""
    arrays, upstream = numbers(case)
    shared = "input_weight" in arrays  # then both directions read the whole source; else each has its own channels
    options = {name: value for name, value in case.options.items() if name not in ("bidirectional", "reverse")}
    one_way = replace(case, I=case.I if shared else case.I // 2, options=options)
    passes = []
    for direction in (0, 1):

        def half(name: str, array: Array, direction: int = direction) -> Array:
            if name == "source" and shared:
                return array
            if name in PER_DIRECTION:
                return np.asarray(array[direction])
            return np.split(array, 2, axis=0 if name == "input_weight" else -1)[direction]

        def turn(name: str, array: Array, direction: int = direction) -> Array:
            return array[::-1] if direction and plain(name) in STEPS | {"source"} else array

        mine, above = (apply(turn, apply(half, some)) for some in (arrays, upstream))
        passes.append(apply(turn, run(one_way, mine, above)))

    def join(name: str, first: Array, second: Array) -> Array:
        if name == "d source" and shared:
            return np.asarray(first + second)
        if plain(name) in PER_DIRECTION:
            return np.stack([first, second])
        return np.concatenate([first, second], axis=0 if plain(name) == "input_weight" else -1)

    forth, back = passes
    assert_close(run(case, arrays, upstream), {name: join(name, forth[name], back[name]) for name in forth})


@given(calls())
@quick
def test_absent_arguments_have_neutral_values(case: Case) -> None:
    """An absent mask is ones, an absent input weight the identity, and anything else zeros."""
    arrays, upstream = numbers(case)
    wanted = run(case, arrays, upstream)
    full = replace(case, present=frozenset((*OPTIONAL[case.cell], *UPSTREAM[case.cell])))
    fill: dict[str, Callable[..., Array]] = {"mask": np.ones, "input_weight": lambda shape: np.eye(*shape)}
    for name in full.present - case.present:
        (upstream if name in UPSTREAM[case.cell] else arrays)[name] = fill.get(name, np.zeros)(full.shape(name))
    got = run(full, arrays, upstream)
    assert_close({name: array for name, array in got.items() if name in wanted}, wanted)


@given(calls())
@quick
def test_an_absent_source_gradient_is_zeros(case: Case) -> None:
    """The loss then depends on the last states alone."""
    arrays, upstream = numbers(case)
    zeros = upstream | {"source_gradient": np.zeros_like(upstream["source_gradient"])}
    absent: Any = upstream | {"source_gradient": None}
    assert_close(run(case, arrays, absent), run(case, arrays, zeros))


@given(calls(), st.randoms(use_true_random=False))
@quick
def test_the_batch_may_be_permuted(case: Case, random: Any) -> None:
    """Permuting the batch permutes the results and leaves the weights' gradients."""
    arrays, upstream = numbers(case)
    order = random.sample(range(case.N), case.N)

    def permute(name: str, array: Array) -> Array:
        if plain(name) in STATES:
            return array[order]
        return array[:, order] if plain(name) in STEPS | {"source"} else array

    got = run(case, apply(permute, arrays), apply(permute, upstream))
    assert_close(got, apply(permute, run(case, arrays, upstream)))


@given(calls(directions=FORWARD + REVERSE, least_steps=2, always=frozenset(SEQUENCES)), st.data())
@quick
def test_time_may_be_split_with_the_state_carried(case: Case, data: st.DataObject) -> None:
    """States are passed on to the second part, and their gradients back to the first."""
    arrays, upstream = numbers(case)
    wanted = run(case, arrays, upstream)
    cut = data.draw(st.integers(1, case.T - 1), label="steps in the first part")
    backwards = "reverse" in case.options
    carried, sequence = GRADIENTS, SEQUENCES

    def part(name: str, array: Array, which: int) -> Array:
        if name == "source" and backwards:
            return array[: case.T - cut] if which else array[case.T - cut :]
        if name in STEPS | {"source"}:
            return array[cut:] if which else array[:cut]
        return array

    early, late = ({name: part(name, array, which) for name, array in arrays.items()} for which in (0, 1))
    above_early, above_late = ({name: part(name, array, which) for name, array in upstream.items()} for which in (0, 1))
    first, second = replace(case, T=cut), replace(case, T=case.T - cut)
    above_early = {"source_gradient": above_early["source_gradient"]}  # the last step's belong to the second part
    begun = run(first, early, above_early)
    late |= {name: begun[sequence[name]][-1] for name in carried if name in arrays}
    ended = run(second, late, above_late)
    above_early |= {back: ended[f"d {name}"] for name, back in carried.items() if name in arrays}
    begun = run(first, early, above_early)

    def join(name: str) -> Array:
        one, two = begun[name], ended[name]
        if plain(name) in STEPS | {"source"}:
            return np.concatenate([two, one] if backwards and name == "d source" else [one, two])
        return one if plain(name) in STATES else np.asarray(one + two)

    assert_close({name: join(name) for name in wanted}, wanted)


@given(calls(cells=tuple(OTHER_ORDER)))
@quick
def test_gate_order_flags_are_permuted_weights(case: Case) -> None:
    """The flag permutes every axis of gates, also in gradients, and changes nothing else."""
    flag, order = OTHER_ORDER[case.cell]
    arrays, upstream = numbers(case)
    axes = GATED if "input_weight" in arrays else GATED | {"source": -1}

    def permute(name: str, array: Array) -> Array:
        if plain(name) not in axes:
            return array
        axis = axes[plain(name)]
        blocks = np.split(array, array.shape[axis] // case.H, axis=axis)
        return np.concatenate([blocks[i - i % case.G + order[i % case.G]] for i in range(len(blocks))], axis=axis)

    wanted = apply(permute, run(case, arrays, upstream, **{flag: False}))
    assert_close(run(case, apply(permute, arrays), upstream, **{flag: True}), wanted)


@given(calls(), st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))
@quick
def test_gradients_are_linear_in_the_upstream_gradients(case: Case, one: float, two: float) -> None:
    """Gradients of a sum are the sum of the gradients."""
    arrays, upstream = numbers(case)
    other = {name: np.flip(array) + np.float32(0.5) for name, array in upstream.items()}
    both = {name: one * upstream[name] + two * other[name] for name in upstream}
    first, second = run(case, arrays, upstream), run(case, arrays, other)
    got = run(case, arrays, both)
    for name in (name for name in got if name.startswith("d ")):
        terms = [weight * part[name].astype(np.float64) for weight, part in ((one, first), (two, second))]
        size = max(1.0, sum(float(np.abs(term).max()) for term in terms))  # they may cancel
        np.testing.assert_allclose(got[name], sum(terms), rtol=0, atol=FLOAT32 * size, err_msg=name)


@given(calls(always=frozenset({"mask"})), st.sets(st.sampled_from([0, 1, 2])), st.integers(0, 3))
@quick
def test_a_mask_broadcasts_as_in_numpy(case: Case, ones: set[int], dropped: int) -> None:
    """Axes may have size 1 or, if they lead, be left out; the result is that of the full mask."""
    arrays, upstream = numbers(case)
    ones |= set(range(dropped))
    small = arrays["mask"][tuple(slice(1) if axis in ones else slice(None) for axis in range(3))]
    small = small.reshape(small.shape[dropped:])
    written_out = np.broadcast_to(small, arrays["mask"].shape)
    got, wanted = (run(case, {**arrays, "mask": mask}, upstream) for mask in (small, written_out.copy()))
    assert_close(got, wanted)
    # A broadcast view is not contiguous, so it is copied.
    assert_close(run(case, {**arrays, "mask": written_out}, upstream), wanted, 0.0)


@given(calls(), st.integers(1, 4), st.integers(1, 4))
@quick
def test_heads_are_blocks_of_dense_weights(case: Case, heads: int, input_heads: int) -> None:
    """A call with heads is the call with zeros outside of the blocks, and its gradients are the blocks' gradients."""
    D = case.D
    if "input_weight" in case.present:
        sizes = {"H": case.H * heads * input_heads, "I": case.I * input_heads}
        options = {"heads": heads, "input_heads": input_heads}
    else:
        sizes = {"H": case.H * heads, "I": D * case.G * case.H * heads}
        options = {"heads": heads}
    case = replace(case, options={**case.options, **options}, **sizes)
    arrays, upstream = numbers(case)
    wanted = run(without_heads(case), dense(case, arrays), upstream)
    of_weights = blocks_of(case, {plain(name): array for name, array in wanted.items() if name.startswith("d ")})
    assert_close(run(case, arrays, upstream), wanted | {f"d {name}": array for name, array in of_weights.items()})


@given(calls())
@quick
def test_the_same_call_gives_the_same_bits(case: Case) -> None:
    """A call gives the same bits after another call has reused the device's memory."""
    arrays, upstream = numbers(case)
    first = run(case, arrays, upstream)
    vkrnn.single_gate_rnn(np.full((7, 11, 13), np.nan, np.float32), np.full((13, 13), np.nan, np.float32))
    for name, array in run(case, arrays, upstream).items():
        np.testing.assert_array_equal(array.view(np.uint32), first[name].view(np.uint32), err_msg=name)


@pytest.mark.parametrize("cell", GATES)
def test_arrays_need_not_be_contiguous_or_in_native_byte_order(cell: str) -> None:
    """Such arrays are copied and give the same bits."""
    given_ = frozenset((*OPTIONAL[cell], *UPSTREAM[cell]))
    case = Case(cell, 5, 3, 7, 4, present=given_)
    arrays, upstream = numbers(case)
    wanted = run(case, arrays, upstream)

    def strided(array: Array) -> Array:
        return np.repeat(array, 2, axis=-1)[..., ::2]

    def swapped(array: Array) -> Array:
        return array.astype(array.dtype.newbyteorder())

    def odd(array: Array) -> Array:  # not aligned to a float
        held = np.zeros(array.nbytes + 1, np.uint8)[1:]
        held[:] = np.frombuffer(array.tobytes(), np.uint8)
        return held.view(np.float32).reshape(array.shape)

    for change in (np.asfortranarray, strided, swapped, odd):
        changed = {name: change(array) for name, array in arrays.items()}
        forward = getattr(vkrnn, cell)(**changed, descriptor=case.descriptor(training=True))
        np.testing.assert_array_equal(forward.output, wanted["output"])
        back = {name: change(array) for name, array in gradient_inputs(case, forward).items()}
        gradients = getattr(vkrnn, f"{cell}_gradients")(**changed, **back, descriptor=case.descriptor())
        for name, array in gradients._asdict().items():
            np.testing.assert_array_equal(array, wanted[f"d {name}"], err_msg=name)
