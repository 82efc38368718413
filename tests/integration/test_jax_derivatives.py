"""Second and third derivatives of `vkrnn.jax` against those of a `jax.lax.scan` of the same equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cases import DESCRIPTORS, GATES
from oracles import require
from tolerances import JAX_IN_FLOAT64

jax = require("jax")
import jax.numpy as jnp  # noqa: E402

import vkrnn.jax  # noqa: E402
from vkrnn._ops import equations  # noqa: E402
from vkrnn.jax._scans import _Jax, _library  # noqa: E402

T, N, I, H = 2, 2, 2, 4
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "single_gate_rnn": [{"activation": "tanh", "reverse": True}],
    "lstm": [{"bidirectional": True, "heads": 2, "clip": 0.9, "output_gate_activation": "relu"}],
    "gru": [{"reset_after": True, "reset_gate_first": True}],
    "slstm": [{"forget_gate": "exponential"}],
}
every_option = pytest.mark.parametrize(
    ("cell", "options"), [(cell, each) for cell in OPTIONS for each in OPTIONS[cell]]
)


@pytest.fixture(autouse=True)
def _float64() -> Any:
    with jax.enable_x64(True):  # noqa: FBT003
        yield


def loss_of(output: Any) -> Any:
    return jnp.sum(jnp.cos(output) ** 2)


def functions(cell: str, options: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]:
    """Return a loss by vkrnn, the same by a scan, and their weights."""
    rng, D, G = np.random.default_rng(1), 1 + bool(options.get("bidirectional")), GATES[cell]
    drawn = lambda *shape: jnp.asarray(rng.normal(size=shape) / 2)  # noqa: E731
    descriptor = DESCRIPTORS[cell](**options)
    weights = {
        "source": drawn(T, N, I),
        "recurrent_weight": drawn(*[2] * (D - 1), G * H, H // options.get("heads", 1)),
        "input_weight": drawn(D * G * H, I),
        "bias": drawn(D * G * H),
        "init_state": drawn(N, D * H),
    }
    more = {"lengths": jnp.asarray([T, T - 1])}

    return (
        lambda w: loss_of(getattr(vkrnn.jax, cell)(**w, **more, descriptor=descriptor).output),
        lambda w: loss_of(equations.run(_library, cell, descriptor, {**w, **more})["output"]),
        weights,
    )


def agree(found: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=JAX_IN_FLOAT64)


def of_gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the squared norm of a gradient."""
    return lambda w: sum(jnp.sum(each**2) for each in jax.tree.leaves(jax.grad(loss)(w)))


@every_option
def test_gradients_of_gradients(cell: str, options: dict[str, Any]) -> None:
    mine, scan, weights = functions(cell, options)
    agree(*(jax.jit(jax.grad(of_gradient(loss)))(weights) for loss in (mine, scan)))


def test_third_derivatives() -> None:
    mine, scan, weights = functions("gru", OPTIONS["gru"][0])
    agree(*(jax.jit(jax.grad(of_gradient(of_gradient(loss))))(weights) for loss in (mine, scan)))


@pytest.mark.parametrize("way", ["hessian", "jacrev twice", "vmap"])
def test_hessian(way: str) -> None:
    mine, scan, weights = functions("lstm", OPTIONS["lstm"][0])
    here, there = (lambda x, loss=loss: loss({**weights, "source": x}) for loss in (mine, scan))
    wanted = jax.jit(jax.hessian(there))(weights["source"])
    if way == "vmap":
        many = jnp.stack([weights["source"]] * 2)
        agree(jax.jit(jax.vmap(jax.hessian(here)))(many), jnp.stack([wanted] * 2))
    else:
        found = jax.hessian(here) if way == "hessian" else jax.jacrev(jax.jacrev(here))
        agree(jax.jit(found)(weights["source"]), wanted)


class _Clipping(_Jax):
    """The operations with the clip of a gradient by JAX's own means."""

    def __init__(self, *, again: bool) -> None:
        self._again = again  # whether a second reverse pass clips, too; forward mode then does not work

    def passed_on(self, h: Any, limit: float) -> Any:
        @jax.custom_vjp
        def passed(h: Any) -> Any:
            return h

        passed.defvjp(
            lambda h: (passed(h) if self._again else h, None), lambda _, gradient: (jnp.clip(gradient, -limit, limit),)
        )
        return passed(h)


class _Cut(_Jax):
    """The operations with no gradient from step to step."""

    def passed_on(self, h: Any, _: float) -> Any:
        return jax.lax.stop_gradient(h)


LIMIT = 0.02  # clips some elements and not others


@pytest.mark.parametrize(
    ("cell", "outer"), [("single_gate_rnn", "reverse"), ("lstm", "reverse"), ("gru", "forward"), ("slstm", "forward")]
)
def test_gradient_clip(cell: str, outer: str) -> None:
    """Every reverse pass clips what goes from step to step, and forward mode clips nothing."""
    options = OPTIONS[cell][0]
    mine, _, weights = functions(cell, options | {"gradient_clip": LIMIT})
    weights = jax.tree.map(lambda x: 2 * x, weights)
    again = outer == "reverse"

    def output(w: Any, library: Any) -> Any:
        descriptor = DESCRIPTORS[cell](**options, gradient_clip=LIMIT if isinstance(library, _Clipping) else None)
        return equations.run(library, cell, descriptor, {**w, "lengths": jnp.asarray([T, T - 1])})["output"]

    @jax.custom_vjp
    def scan(w: Any) -> Any:
        return output(w, _library)

    def backward(w: Any, above: Any) -> Any:
        return jax.vjp(lambda w: output(w, _Clipping(again=again)), w)[1](above)

    scan.defvjp(lambda w: (scan(w) if again else output(w, _library), w), backward)
    found, wanted, other = (
        jax.jit(lambda w, loss=loss: outer_derivative(outer, jax.grad(loss), w))(weights)
        for loss in (mine, lambda w: loss_of(scan(w)), lambda w: loss_of(output(w, _library)))
    )
    agree(found, wanted)
    assert not np.allclose(found["source"], other["source"], rtol=0, atol=1e-6)


def outer_derivative(outer: str, function: Callable[..., Any], w: Any) -> Any:
    v = jax.tree.map(jnp.sin, w)
    return jax.vjp(function, w)[1](v)[0] if outer == "reverse" else jax.jvp(function, (w,), (v,))[1]


@every_option
def test_tangents_with_a_gradient_clip(cell: str, options: dict[str, Any]) -> None:
    """Forward mode of a call has no gradient to clip."""
    mine, _, weights = functions(cell, options | {"gradient_clip": LIMIT})
    _, unlimited, _ = functions(cell, options)
    agree(*(jax.jit(lambda w, f=f: jax.jvp(f, (w,), (w,)))(weights) for f in (mine, unlimited)))


@pytest.mark.parametrize("scale", [0.0, 1.0])
@pytest.mark.parametrize("cell", OPTIONS)
def test_gradient_clip_of_zero(cell: str, scale: float) -> None:
    """It cuts the gradients of every order, also where these are zero already."""
    _, _, weights = functions(cell, {})
    above = scale * jnp.asarray(np.random.default_rng(2).normal(size=(T, N, H)))

    def second(run: Callable[..., Any]) -> Any:
        def norm(above: Any, w: Any) -> Any:
            return sum(jnp.sum(jnp.sin(each)) for each in jax.tree.leaves(jax.vjp(run, w)[1](above)))

        return jax.jit(jax.grad(norm))(above, weights)

    descriptor = DESCRIPTORS[cell](gradient_clip=0.0)
    mine = second(lambda w: getattr(vkrnn.jax, cell)(**w, descriptor=descriptor).output)
    agree(mine, second(lambda w: equations.run(_Cut(), cell, descriptor, w)["output"]))
