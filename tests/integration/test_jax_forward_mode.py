"""Forward mode of `vkrnn.jax` against its gradients, and against a `jax.lax.scan` of the same equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from blends import draw_blends
from cases import OPTIONAL, Case, inputs, lengths_of
from oracles import require
from resets import draw_resets
from tolerances import JAX_IN_FLOAT64

jax = require("jax")
import jax.numpy as jnp  # noqa: E402
from jax.extend.core import jaxprs_in_params  # noqa: E402

import vkrnn.jax  # noqa: E402
from vkrnn._ops import equations  # noqa: E402
from vkrnn.jax._scans import _library  # noqa: E402

T, N, I, H = 2, 2, 4, 4
Function = Callable[..., Any]
MASKS = ("mask", "zoneout_mask", "zoneout_cell_mask")

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("single_gate_rnn", {"activation": "tanh", "reverse": True}),
    ("single_gate_rnn", {"activation": "hard_sigmoid", "bidirectional": True, "clip": 0.5}),
    ("lstm", {"produce_cell": True, "bidirectional": True, "forget_gate_last": True}),
    ("lstm", {"produce_cell": True, "heads": 2, "input_heads": 2, "clip": 0.9, "output_peephole_new_cell": True}),
    ("gru", {"reset_after": True, "reset_gate_first": True, "reverse": True}),
    ("gru", {"flip_z": True, "bidirectional": True, "gradient_clip": 100.0}),
    ("slstm", {"produce_cell": True, "bidirectional": True}),
    ("slstm", {"produce_cell": True, "forget_gate": "exponential", "heads": 2}),
]
MORE: dict[str, Callable[[Case], dict[str, Any]]] = {
    "lengths": lambda case: {"lengths": lengths_of(case).astype(np.int32)},
    "reset": lambda case: draw_resets(case, "units", "states of steps"),
    "reset of bool": lambda case: draw_resets(case, "bool", "states"),
    "leak": lambda case: draw_blends(case, "leak"),
    "zoneout": lambda case: draw_blends(case, "mask"),
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):  # noqa: FBT003
        yield


def both(cell: str, options: dict[str, Any], more: str = "lengths") -> tuple[Function, Function, dict[str, Any]]:
    """Return a call with every optional argument, the same by a scan, and the arguments that have gradients."""
    case = Case(cell, T, N, I, H, options, frozenset(OPTIONAL[cell]))
    given = {name: jnp.asarray(array) for name, array in {**inputs(case), **MORE[more](case)}.items()}
    given = {name: x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x for name, x in given.items()}
    fixed = {name: x for name, x in given.items() if name in (*MASKS, "lengths") or x.dtype == bool}
    descriptor = case.descriptor()

    def mine(own: dict[str, Any]) -> dict[str, Any]:
        return dict(getattr(vkrnn.jax, cell)(**fixed, **own, descriptor=descriptor)._asdict())

    def scan(own: dict[str, Any]) -> dict[str, Any]:
        found = equations.run(_library, cell, descriptor, {**fixed, **own})
        return {name: found[name] for name in jax.eval_shape(mine, own)}

    return mine, scan, {name: x for name, x in given.items() if name not in fixed}


def like(values: Any, seed: int) -> Any:
    """Draw numbers like these."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), values)


def product(one: Any, other: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.sum(x * y), one, other)


def agree(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(other), initial=0.0)))
        np.testing.assert_allclose(one, other, rtol=0, atol=JAX_IN_FLOAT64 * scale)


# Each kind of arguments with every second set of options: each cell has all.
@pytest.mark.parametrize(
    ("at", "more"), [(at, more) for k, more in enumerate(MORE) for at in range(k % 2, len(OPTIONS), 2)]
)
def test_tangents(at: int, more: str) -> None:
    """Those of every argument are the transpose of the gradients' kernels, and those of a scan."""
    mine, scan, own = both(*OPTIONS[at], more)
    moved, how = like(own, 1), jax.jit if at < 4 else lambda function: function
    found, tangents = how(lambda: jax.jvp(mine, (own,), (moved,)))()
    agree(found, mine(own))
    agree(tangents, jax.jit(lambda: jax.jvp(scan, (own,), (moved,))[1])())
    above = like(found, 2)
    (gradients,) = jax.vjp(mine, own)[1](above)
    left, right = (jax.tree.leaves(product(*pair)) for pair in ((above, tangents), (gradients, moved)))
    assert abs(sum(left) - sum(right)) <= JAX_IN_FLOAT64 * sum(map(abs, [*left, *right]))


def rows_of(f: Function, own: Any) -> tuple[Function, Any]:
    """Return a loss of the source, and the source."""

    def loss(source: Any) -> Any:
        return sum(jnp.sum(jnp.cos(x) ** 2) for x in f({**own, "source": source}).values())

    return loss, own["source"]


WAYS: dict[str, Callable[[Function, Any, Any], Any]] = {
    "jvp": lambda f, x, v: jax.jvp(f, (x,), (v,)),
    "linearize": lambda f, x, v: jax.linearize(f, x)[1](v),
    "jacfwd": lambda f, x, _: jax.jacfwd(f)(x),
    "jacfwd of jit": lambda f, x, _: jax.jacfwd(jax.jit(f))(x),
    "hessian": lambda f, x, _: jax.hessian(f)(x),
    "hessian of jit": lambda f, x, _: jax.hessian(jax.jit(f))(x),
    "jacfwd twice": lambda f, x, _: jax.jacfwd(jax.jacfwd(f))(x),
    "jacrev of jacfwd": lambda f, x, _: jax.jacrev(jax.jacfwd(f))(x),
    "jacrev twice": lambda f, x, _: jax.jacrev(jax.jacrev(f))(x),
    "jvp of a gradient": lambda f, x, v: jax.jvp(jax.grad(f), (x,), (v,)),
    "gradient of a jvp": lambda f, x, v: jax.grad(lambda x: jax.jvp(f, (x,), (v,))[1])(x),
    "transposed": lambda f, x, _: jax.linear_transpose(jax.linearize(f, x)[1], x)(1.0),
    "of a vjp from outside": lambda f, x, v: jax.jvp(jax.vjp(lambda x: f(x) * x, x)[1], (v,), (x,)),
    "third": lambda f, x, v: jax.jacfwd(jax.grad(lambda x: jax.jvp(f, (x,), (v,))[1]))(x),
    "third, reverse last": lambda f, x, v: jax.grad(lambda x: jnp.vdot(jax.jvp(jax.grad(f), (x,), (v,))[1], v))(x),
    "vmap": lambda f, x, v: jax.vmap(lambda v: jax.jvp(f, (x,), (v,)))(jnp.stack([x, v])),
    "vmap of both": lambda f, x, v: jax.vmap(lambda x, v: jax.jvp(f, (x,), (v,)))(jnp.stack([x, v]), jnp.stack([v, x])),
    "vmap nested": lambda f, x, v: jax.vmap(
        lambda x: jax.vmap(lambda a, v: jax.jvp(lambda x: f(a * x), (x,), (v,)), (0, None))(jnp.arange(3.0), v)
    )(jnp.stack([x, v])),
    "hessian of vmap": lambda f, x, _: jax.hessian(lambda x: jnp.sum(jax.vmap(lambda a: f(a * x))(jnp.arange(3.0))))(x),
    "vmap of hessian": lambda f, x, v: jax.vmap(jax.hessian(f))(jnp.stack([x, v])),
    "in a scan": lambda f, x, _: jax.hessian(
        lambda x: jax.lax.scan(lambda x, a: (x + a * f(x), None), x, x[0, 0])[0][0, 0, 0]
    )(x),
    "checkpoint": lambda f, x, _: jax.hessian(jax.checkpoint(f))(x),
}

ALSO_WITHOUT_JIT = ("jvp", "linearize", "jacfwd", "hessian of jit", "gradient of a jvp", "vmap")


@pytest.mark.parametrize(("way", "jit"), [*((way, True) for way in WAYS), *((way, False) for way in ALSO_WITHOUT_JIT)])
def test_ways(way: str, *, jit: bool) -> None:
    """Every way to ask for derivatives gives those of a scan."""
    mine, scan, own = both(*OPTIONS[4 if jit else 0])
    (here, x), (there, _) = rows_of(mine, own), rows_of(scan, own)
    v = like(x, 3)
    run = jax.jit(lambda: WAYS[way](here, x, v)) if jit else lambda: WAYS[way](here, x, v)
    agree(run(), jax.jit(lambda: WAYS[way](there, x, v))())


@pytest.mark.parametrize("name", ["output", "cell_output"])
def test_one_of_two_results(name: str) -> None:
    """A loss of one result, whose other result has no gradient."""
    mine, scan, own = both(*OPTIONS[2])
    found, wanted = (
        jax.jit(jax.hessian(lambda b, f=f: f({**own, "bias": b})[name].sum()))(own["bias"]) for f in (mine, scan)
    )
    agree(found, wanted)


def equations_of(jaxpr: Any) -> Iterator[Any]:
    for each in jaxpr.eqns:
        yield each
        for inner in jaxprs_in_params(each.params):
            yield from equations_of(inner)


@pytest.mark.parametrize("how", ["plain", "jit", "vmap"])
def test_first_derivatives_call_each_kernel_once(how: str) -> None:
    """Reverse mode is one forward call with training, and one call of gradients: nothing of forward mode is left."""
    mine, _, own = both(*OPTIONS[2])

    def loss(own: Any) -> Any:
        return mine(own)["output"].sum()

    call = {"plain": loss, "jit": jax.jit(loss), "vmap": lambda own: jax.vmap(loss)(own).sum()}[how]
    own = jax.tree.map(lambda x: jnp.stack([x, x]), own) if how == "vmap" else own
    found = list(equations_of(jax.make_jaxpr(jax.grad(call))(own).jaxpr))
    calls = [each.params["call"] for each in found if each.primitive.name.startswith("vkrnn")]
    assert [(call.function, call.descriptor.training) for call in calls] == [("lstm", True), ("lstm_gradients", False)]
    assert not any(each.primitive.name == "scan" for each in found)


def test_calls_without_tangents_keep_nothing() -> None:
    """Where no argument moves, the call is the one without training."""
    mine, _, own = both(*OPTIONS[4])
    program = jax.make_jaxpr(lambda x: jax.jvp(lambda x: x.sum() + mine(own)["output"].sum(), (x,), (x,)))(own["bias"])
    (call,) = (each.params["call"] for each in equations_of(program.jaxpr) if each.primitive.name.startswith("vkrnn"))
    assert not call.descriptor.training


def test_16_bits() -> None:
    """Tangents have the dtype of the arguments, and are those of float32 rounded."""
    case = Case("gru", T, N, I, H, {}, frozenset(["input_weight"]))
    given = {name: jnp.asarray(x, jnp.bfloat16) for name, x in inputs(case).items()}
    run = lambda own: vkrnn.jax.gru(**own).output  # noqa: E731
    _, found = jax.jvp(run, (given,), (given,))
    wide = {name: x.astype(np.float32) for name, x in given.items()}
    _, wanted = jax.jvp(run, (wide,), (wide,))
    assert found.dtype == jnp.bfloat16
    assert jnp.array_equal(found, wanted.astype(jnp.bfloat16))


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    """Masks have no tangents, as they have no gradients."""
    case = Case("lstm", T, N, I, H, {}, frozenset(["input_weight"]))
    given = {name: jnp.asarray(x) for name, x in inputs(case).items()}
    with pytest.raises(NotImplementedError) as refused:
        jax.jvp(
            lambda m: vkrnn.jax.lstm(**given, **{mask: m}).output,
            (jnp.ones(H, np.float32),) * 1,
            (jnp.ones(H, np.float32),),
        )
    assert str(refused.value) == f"[vkrnn.jax.lstm] {mask}: vkrnn computes no gradient with respect to it"
