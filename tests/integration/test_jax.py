"""vkrnn.jax gives vkrnn's results inside JAX, and gradients that agree with cells written in plain JAX."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CELLS, GATES, OPTIONAL, Case, by_id, gradient_inputs, gradient_names, inputs, lengths_of
from comparison import assert_close
from jax_ways import both_ways, take
from oracles import require
from scale import sample
from tolerances import FLOAT32, JAX_IN_FLOAT64

jax = require("jax")
import jax.numpy as jnp  # noqa: E402

import vkrnn.jax as ours  # noqa: E402

T, N, I, H = 5, 3, 7, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "single_gate_rnn": {"activation": "tanh"},
    "lstm": {"produce_cell": True},
    "gru": {"reset_after": True},
    "slstm": {"produce_cell": True},
}
EVERYTHING = {cell: frozenset(OPTIONAL[cell]) for cell in GATES}
FIRST = frozenset(["input_weight"])
every_cell = pytest.mark.parametrize("cell", GATES)
with_and_without_lengths = pytest.mark.parametrize("lengths", [False, True], ids=["full", "with lengths"])


def cases_of(cell: str) -> Iterator[Case]:
    for way, present in itertools.product(("", "reverse", "bidirectional"), (FIRST, EVERYTHING[cell])):
        options = OPTIONS[cell] | ({way: True} if way else {})
        yield Case(cell, T, N, I, H, options, present)
    yield Case(cell, T, N, 8, H, OPTIONS[cell] | {"heads": 2, "input_heads": 4}, EVERYTHING[cell])


CASES = [case for cell in GATES for case in cases_of(cell)]
every_case = pytest.mark.parametrize("case", CASES, ids=by_id)


@pytest.fixture
def _float64() -> Iterator[None]:
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003
    yield
    jax.config.update("jax_enable_x64", False)  # noqa: FBT003


def arguments_of(case: Case, *, lengths: bool, dtype: Any = np.float32) -> dict[str, Any]:
    given: dict[str, Any] = {name: array.astype(dtype) for name, array in inputs(case).items()}
    return given | ({"lengths": lengths_of(case).astype(np.int32)} if lengths else {})


def call(case: Case, given: Mapping[str, Any]) -> vkrnn.Results:
    results: vkrnn.Results = getattr(ours, case.cell)(**given, descriptor=case.descriptor())
    return results


def gradients_by_jax(case: Case, given: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return JAX's gradients of our functions by name, for the upstream gradients `above`."""
    names = gradient_names(case)

    def function(own: Mapping[str, Any]) -> dict[str, Any]:
        return call(case, {**given, **own})._asdict()

    _, backward = jax.jit(lambda own: jax.vjp(function, own))({name: given[name] for name in names})
    (found,) = backward({name: jnp.asarray(array) for name, array in above.items()})
    return {name: np.asarray(found[name]) for name in names}


def flipped(rows: Any, ends: Any) -> Any:
    """Return rows [T, N, ...] in reverse order, each batch row within its own length."""
    steps = np.arange(T)[:, np.newaxis]
    return rows[np.where(steps < ends, ends - 1 - steps, steps), np.arange(N)]


def blocks(weight: Any, heads: int) -> Any:
    """Return the dense weight of its blocks."""
    split = weight.reshape(-1, heads, H // heads, 1, weight.shape[-1])
    return split * jnp.eye(heads, dtype=weight.dtype)[:, np.newaxis, :, np.newaxis]


def plain(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a call with JAX's operations, from the equations in the docstrings."""
    ends = given.get("lengths", np.full(N, T))
    outputs, D, G = [], case.D, case.G
    R = blocks(given["recurrent_weight"], case.heads("recurrent_weight")).reshape(D, G, H, H)
    W = blocks(given["input_weight"], case.heads("input_weight")).reshape(D, G, H, case.I)
    zeros = jnp.zeros(D * H * G, R.dtype)
    b = given.get("bias", zeros).reshape(D, G, H)
    p = given.get("peephole", zeros).reshape(D, G, H)
    b2 = given.get("secondary_bias", zeros[: D * H]).reshape(D, H)
    m = jnp.broadcast_to(given.get("mask", jnp.ones((), R.dtype)), (T, N, D * H))
    names = ["init_state", *(f"init_{name}" for name in CELLS[case.cell])]
    starts = [given.get(name, jnp.zeros((N, D * H), R.dtype)) for name in names]
    for d in range(D):
        part = np.s_[..., d * H : (d + 1) * H]
        source, mask = given["source"], m[part]
        if d == 1 or case.options.get("reverse"):
            source = flipped(source, ends)
        if d == 1:
            mask = flipped(mask, ends)
        x = jnp.einsum("tni,ghi->tgnh", source, W[d]) + b[d][:, np.newaxis]

        def step(carry: Any, at: Any, d: int = d) -> Any:
            (h, *cells), (x, m) = carry, at
            c = cells[0] if cells else None
            product = jnp.einsum("nk,ghk->gnh", h * m, R[d])
            if case.cell == "single_gate_rnn":
                h = jnp.tanh(x[0] + product[0])
            elif case.cell == "lstm":
                a = x + product + p[d][:, np.newaxis] * c
                i, f, o = (jax.nn.sigmoid(a[gate]) for gate in (0, 1, 3))
                c = f * c + i * jnp.tanh(a[2])
                h = o * jnp.tanh(c)
                cells = [c]
            elif case.cell == "slstm":
                a = x + product
                c, n, stabilizer = cells
                stays = jax.nn.log_sigmoid(a[1]) + stabilizer
                stabilizer = jnp.where(n == 0, a[0], jnp.maximum(stays, a[0]))
                i, f = jnp.exp(a[0] - stabilizer), jnp.exp(jnp.minimum(stays - stabilizer, 0))
                cells = [f * c + i * jnp.tanh(a[2]), f * n + i, stabilizer]
                h = jax.nn.sigmoid(a[3]) * cells[0] / cells[1]
            else:
                z, r = jax.nn.sigmoid(x[0] + product[0]), jax.nn.sigmoid(x[1] + product[1])
                h = z * h + (1 - z) * jnp.tanh(x[2] + r * (product[2] + b2[d]))
            return (h, *cells), (h, *cells)

        _, states = jax.lax.scan(step, tuple(start[part] for start in starts), (x, mask))
        inside = (np.arange(T)[:, np.newaxis] < ends)[:, :, np.newaxis]
        states = [jnp.where(inside, rows, 0) for rows in states]
        outputs.append([flipped(rows, ends) for rows in states] if d == 1 else states)
    joined = (jnp.concatenate(both, axis=-1) for both in zip(*outputs, strict=True))
    return dict(zip(("output", *(f"{name}_output" for name in CELLS[case.cell])), joined, strict=True))


def of_all_steps(case: Case, name: str) -> Any:
    """Draw the gradient of a cell state of all steps."""
    return np.random.default_rng(len(name)).uniform(-1, 1, (T, N, case.D * H)).astype(np.float32)


@every_case
@with_and_without_lengths
@both_ways
def test_values_and_gradients(case: Case, way: str, monkeypatch: pytest.MonkeyPatch, *, lengths: bool) -> None:
    """Both equal vkrnn's functions bit for bit, also under jit."""
    take(way, monkeypatch)
    given = arguments_of(case, lengths=lengths)
    wanted = getattr(vkrnn, case.cell)(**given, descriptor=case.descriptor())
    for found in (call(case, given), jax.jit(lambda given: call(case, given))(given)):
        assert list(found._asdict()) == list(wanted._asdict())
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))

    kept = getattr(vkrnn, case.cell)(**given, descriptor=case.descriptor(training=True))
    upstream = gradient_inputs(case, kept)
    above = {"output": upstream["source_gradient"]}
    for name in CELLS[case.cell]:
        above[f"{name}_output"] = upstream[f"{name}_gradient"] = of_all_steps(case, name)
    function = getattr(vkrnn, f"{case.cell}_gradients")
    gradients = function(**given, **upstream, descriptor=case.descriptor())
    by_jax = gradients_by_jax(case, given, above)
    assert list(by_jax) == list(gradients._asdict())
    assert all(np.array_equal(by_jax[name], array) for name, array in gradients._asdict().items())


def compare_with_plain(case: Case, given: Mapping[str, Any], tolerance: float) -> None:
    names = gradient_names(case)
    above = {"output": case._draw("source_gradient").astype(given["source"].dtype)}
    for name in CELLS[case.cell]:
        above[f"{name}_output"] = of_all_steps(case, name).astype(given["source"].dtype)
    wanted, backward = jax.vjp(lambda own: plain(case, {**given, **own}), {name: given[name] for name in names})
    found = call(case, given)._asdict()
    assert_close(
        {name: np.asarray(array) for name, array in found.items()},
        {name: np.asarray(wanted[name]) for name in found},
        tolerance,
    )
    (gradients,) = backward({name: jnp.asarray(array) for name, array in above.items()})
    by_jax = {name: np.asarray(gradients[name]) for name in names}
    assert_close(gradients_by_jax(case, given, above), by_jax, tolerance)


@pytest.mark.parametrize(
    ("case", "lengths"),
    # With and without lengths in turn; the comparison with vkrnn's functions has both for each case.
    sample([(case, (i + i // 2) % 2 == 1) for i, case in enumerate(CASES)], 5),
    ids=lambda value: value.id if isinstance(value, Case) else ("full", "with lengths")[value],
)
@pytest.mark.usefixtures("_float64")
def test_agrees_with_plain_jax_in_float64(case: Case, *, lengths: bool) -> None:
    """JAX's derivatives of the plain equations agree."""
    compare_with_plain(case, arguments_of(case, lengths=lengths, dtype=np.float64), JAX_IN_FLOAT64)


@pytest.mark.parametrize("case", CASES[5::6], ids=by_id)
def test_agrees_with_plain_jax(case: Case) -> None:
    """Values and gradients in float32 agree with a program in plain JAX."""
    compare_with_plain(case, arguments_of(case, lengths=True), FLOAT32)


@every_cell
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_16_bits(cell: str, dtype: Any) -> None:
    """Values and gradients have the dtype of the arguments."""
    case = Case(cell, T, N, I, H, OPTIONS[cell], FIRST)
    given = arguments_of(case, lengths=False, dtype=dtype)
    wanted = getattr(vkrnn, cell)(**given, descriptor=case.descriptor()).output
    for results in (call(case, given), jax.jit(lambda given: call(case, given))(given)):
        output = np.asarray(results.output)
        assert output.dtype == wanted.dtype == dtype
        assert np.array_equal(output, wanted)
    above = {name: jnp.zeros_like(array) for name, array in call(case, given)._asdict().items()}
    above["output"] = jnp.ones_like(output)
    found = gradients_by_jax(case, given, above)
    assert {array.dtype for array in found.values()} == {np.dtype(dtype)}
    assert all(np.any(array) for array in found.values())


def examples(case: Case, count: int) -> list[dict[str, Any]]:
    """Return the arguments of several calls with different numbers."""
    given = arguments_of(case, lengths=True)
    return [
        {name: value if name == "lengths" else value * np.float32(1 - 0.25 * at) for name, value in given.items()}
        | {"lengths": np.roll(given["lengths"], at)}
        for at in range(count)
    ]


MAPPED = ("rows", "weights", "everything", "everything, mask too")


@pytest.mark.parametrize(
    ("cell", "mapped", "direction"),
    [
        (cell, mapped, ("reverse", "bidirectional")[(i + k) % 2])
        for i, cell in enumerate(GATES)
        for k, mapped in enumerate(MAPPED)
    ],
)
@both_ways
def test_vmap(cell: str, mapped: str, direction: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example gives the same values and gradients as alone, also in nested vmaps."""
    take(way, monkeypatch)
    present = EVERYTHING[cell] - (frozenset() if "mask" in mapped else {"mask"})
    case = Case(cell, T, N, I, H, OPTIONS[cell] | {direction: True}, present)
    given = examples(case, 6)
    rows = {"source", "init_state", "init_cell", "lengths"}
    moving = {"rows": rows, "weights": set(given[0]) - rows}.get(mapped, set(given[0]))
    alone = [{name: (each if name in moving else given[0])[name] for name in each} for each in given]
    stacked = {
        name: np.stack([each[name] for each in alone]).reshape(2, 3, *value.shape) if name in moving else value
        for name, value in alone[0].items()
    }
    axes = ({name: 0 if name in moving else None for name in stacked},)

    def value(given: Any) -> dict[str, Any]:
        return call(case, given)._asdict()

    def gradients(given: Any) -> dict[str, Any]:
        own = {name: given[name] for name in gradient_names(case)}
        found: dict[str, Any] = jax.grad(lambda own: (call(case, {**given, **own}).output ** 2).sum())(own)
        return found

    for function in (value, gradients):
        found = jax.jit(jax.vmap(jax.vmap(function, axes), axes))(stacked)
        for at, each in enumerate(alone):
            wanted = {name: np.asarray(array) for name, array in function(each).items()}
            assert_close({name: np.asarray(found[name])[divmod(at, 3)] for name in wanted}, wanted)


@every_cell
def test_jacobian(cell: str) -> None:
    """jax.jacrev maps over upstream gradients of the output."""
    case = Case(cell, T, N, I, H, OPTIONS[cell], FIRST)
    given = arguments_of(case, lengths=False)
    ours, wanted = (
        np.asarray(jax.jacrev(lambda source: function(case, {**given, "source": source})["output"])(given["source"]))  # noqa: B023
        for function in (lambda case, given: call(case, given)._asdict(), plain)
    )
    assert_close({"jacobian": ours}, {"jacobian": wanted})


@every_cell
@with_and_without_lengths
@both_ways
def test_empty_batch(cell: str, way: str, monkeypatch: pytest.MonkeyPatch, *, lengths: bool) -> None:
    """With N = 0, results are empty and gradients of weights are zeros."""
    take(way, monkeypatch)
    case = Case(cell, T, 0, I, H, OPTIONS[cell] | {"bidirectional": True}, EVERYTHING[cell] - {"mask"})
    given = arguments_of(case, lengths=False) | ({"lengths": np.zeros(0, np.int32)} if lengths else {})
    own = {name: given[name] for name in gradient_names(case)}

    def loss(own: Mapping[str, Any]) -> Any:
        return sum(map(jnp.sum, call(case, {**given, **own})))

    for function in (lambda own: call(case, {**given, **own}), jax.jit(lambda own: call(case, {**given, **own}))):
        assert [array.shape for array in function(own)] == [(T, 0, 2 * H)] * len(function(own))
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        found = gradient(own)
        assert {name: array.shape for name, array in found.items()} == {n: a.shape for n, a in own.items()}
        assert not any(jnp.any(array) for array in found.values())


def test_results_are_a_pytree() -> None:
    """Results keep their names through JAX's transformations."""
    results = ours.lstm(jnp.ones((2, 1, 4)), jnp.ones((4, 1)), descriptor=vkrnn.LSTMDescriptor(produce_cell=True))
    twice = jax.tree.map(lambda array: 2 * array, results)
    assert isinstance(twice, vkrnn.Results)
    assert np.array_equal(twice.cell_output, 2 * results.cell_output)
    with pytest.raises(AttributeError) as caught:
        _ = twice.z_state
    assert str(caught.value) == "lstm returned no 'z_state': JAX keeps it by itself where gradients are asked for"
