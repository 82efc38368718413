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
from vkrnn.jax._scans import _library  # noqa: E402

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

    def loss(output: Any) -> Any:
        return jnp.sum(jnp.cos(output) ** 2)

    return (
        lambda w: loss(getattr(vkrnn.jax, cell)(**w, **more, descriptor=descriptor).output),
        lambda w: loss(equations.run(_library, cell, descriptor, {**w, **more})["output"]),
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
