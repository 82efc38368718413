"""Functions of vkrnn.jax without a recurrent weight, against a scan of plain JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("vkrnn.jax")

import jax.numpy as jnp  # noqa: E402 - after importorskip

import vkrnn.jax  # noqa: E402
from tolerances import FLOAT32  # noqa: E402

T, N, I, H = 7, 3, 4, 5
HOW = vkrnn.GRUDescriptor(flip_z=True, output_gate_activation="none")


def mingru(given: dict[str, Any]) -> Any:
    """Return the identity form of minGRU: h = (1 - z) h + z o."""
    gates = given["source"] @ given["input_weight"].T

    def step(h: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x[:, :H])
        h = (1 - z) * h + z * x[:, 2 * H :]
        return h, h

    return jax.lax.scan(step, given["init_state"], gates)[1]


def ours(given: dict[str, Any]) -> Any:
    return vkrnn.jax.gru(recurrent_weight=None, **given, descriptor=HOW).output


@pytest.mark.parametrize("jit", [False, True])
def test_mingru(*, jit: bool) -> None:
    """Numbers, gradients, and many sources by `jax.vmap`."""
    rng = np.random.default_rng(1)
    shapes = {"source": (T, N, I), "input_weight": (3 * H, I), "init_state": (N, H)}
    given = {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    how = jax.jit if jit else lambda function: function
    np.testing.assert_allclose(how(ours)(given), mingru(given), rtol=0, atol=FLOAT32)
    found, wanted = (how(jax.grad(lambda x, f=f: jnp.sin(f(x)).sum()))(given) for f in (ours, mingru))
    for name in given:
        scale = max(1, float(jnp.abs(wanted[name]).max()))
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=FLOAT32 * scale, err_msg=name)
    sources = jnp.stack([given["source"], 2 * given["source"]])
    many = how(jax.vmap(lambda source: ours(given | {"source": source})))(sources)
    for source, one in zip(sources, many, strict=True):
        np.testing.assert_allclose(one, ours(given | {"source": source}), rtol=0, atol=FLOAT32)


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "slstm"])
def test_the_other_cells_have_the_numbers_of_vkrnn(cell: str) -> None:
    source = np.random.default_rng(2).standard_normal((T, N, 4 * H)).astype(np.float32)
    wanted = getattr(vkrnn, cell)(source, None).output
    np.testing.assert_allclose(getattr(vkrnn.jax, cell)(source, None).output, wanted, rtol=0, atol=FLOAT32)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"^\[gru\] mask: expected a recurrent_weight beside it, got none$"):
        vkrnn.jax.gru(jnp.ones((T, N, 3 * H)), None, mask=jnp.ones((T, N, H)))
