"""Zoneout and leaks in vkrnn.jax, against the reference and a scan."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkrnn
import vkrnn.reference
from blends import KINDS, draw_blends, with_output
from cases import GATES, Case, gradient_inputs, inputs
from comparison import assert_close
from tolerances import FLOAT32
from training import differentiated, trained

jax = pytest.importorskip("jax")
pytest.importorskip("vkrnn.jax")

import jax.numpy as jnp  # noqa: E402 - after importorskip

import vkrnn.jax  # noqa: E402

OWN: dict[str, dict[str, Any]] = {"single_gate_rnn": {"activation": "tanh"}, "lstm": {"bidirectional": True}}
CASES = [Case(cell, 6, 3, 5, 4, OWN.get(cell, {}), frozenset(["input_weight", "init_state"])) for cell in GATES]
MASKS = ("zoneout_mask", "zoneout_cell_mask")


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cell)
def test_results_and_gradients(case: Case, kind: str, *, jit: bool) -> None:
    """Both agree with the reference."""
    arrays = inputs(case) | draw_blends(case, kind)
    masks = {name: array for name, array in arrays.items() if name in MASKS}
    learnt = {name: array for name, array in arrays.items() if name not in MASKS}

    def outputs(learnt: Any) -> Any:
        return getattr(vkrnn.jax, case.cell)(**learnt, **masks, descriptor=case.descriptor()).output

    how = jax.jit if jit else lambda function: function
    wanted = trained(case, vkrnn.reference, arrays)
    assert_close({"output": np.asarray(how(outputs)(learnt))}, {"output": wanted.output}, FLOAT32)
    upstream = gradient_inputs(case, wanted) | {"source_gradient": np.ones_like(wanted.output)}
    right = differentiated(case, vkrnn.reference, arrays, with_output(upstream, wanted))._asdict()
    found = how(jax.grad(lambda learnt: outputs(learnt).sum()))(learnt)
    assert_close({name: np.asarray(found[name]) for name in right}, right, FLOAT32)


def test_a_leaky_rnn_is_a_scan() -> None:
    """One call computes what a scan over steps computes, with the gradient of a leak that is learnt."""
    rng = np.random.default_rng(0)
    x, R, leak = (jnp.asarray(rng.uniform(0, 1, shape), jnp.float32) for shape in ((7, 2, 3), (3, 3), (3,)))

    def by_scan(leak: Any) -> Any:
        def step(h: Any, row: Any) -> tuple[Any, Any]:
            h = (1 - leak) * h + leak * jnp.tanh(row + h @ R.T)
            return h, h

        return jax.lax.scan(step, jnp.zeros((2, 3)), x)[1]

    def by_vkrnn(leak: Any) -> Any:
        how = vkrnn.SingleGateRNNDescriptor(activation="tanh")
        return vkrnn.jax.single_gate_rnn(x, R, leak=leak, descriptor=how).output

    np.testing.assert_allclose(by_vkrnn(leak), by_scan(leak), rtol=0, atol=FLOAT32)
    one, other = (jax.grad(lambda leak, run=run: (run(leak) ** 2).sum())(leak) for run in (by_vkrnn, by_scan))
    np.testing.assert_allclose(one, other, rtol=0, atol=FLOAT32 * float(jnp.abs(other).max()))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_mapped(kind: str, mapped: tuple[int | None, int | None], *, jit: bool) -> None:
    """`jax.vmap` maps the source, the blend, or both."""
    case = CASES[0]
    arrays, blends = inputs(case), [draw_blends(case, kind, seed) for seed in (0, 1)]
    (name,) = blends[0]
    sources = np.stack([arrays.pop("source"), inputs(replace(case, seed=3))["source"]])
    parts = np.stack([each[name] for each in blends])

    def run(source: Any, part: Any) -> Any:
        return vkrnn.jax.single_gate_rnn(source, **arrays, **{name: part}, descriptor=case.descriptor()).output

    mapping = jax.vmap(run, in_axes=mapped)
    given = [each if axis == 0 else each[0] for each, axis in zip((sources, parts), mapped, strict=True)]
    found = (jax.jit(mapping) if jit else mapping)(*given)
    for number in range(2):
        own = [each[number] if axis == 0 else each for each, axis in zip(given, mapped, strict=True)]
        np.testing.assert_allclose(found[number], run(*own), rtol=0, atol=FLOAT32)


def test_messages() -> None:
    """A mask has no gradient, and a number is a leak of the source's type."""
    x, R, mask = jnp.ones((4, 2, 3)), jnp.ones((3, 3)), jnp.ones((4, 2, 3))
    message = "[vkrnn.jax.single_gate_rnn] zoneout_mask: vkrnn computes no gradient with respect to it"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}"):
        jax.grad(lambda mask: vkrnn.jax.single_gate_rnn(x, R, zoneout_mask=mask).output.sum())(mask)
    halves = x.astype(jnp.float16), R.astype(jnp.float16)
    one, other = (vkrnn.jax.single_gate_rnn(*halves, leak=a).output for a in (0.5, jnp.asarray(0.5, jnp.float16)))
    np.testing.assert_array_equal(one, other)
