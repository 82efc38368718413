"""Resets in vkrnn.jax, against the scan of PureJaxRL and against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
import vkrnn.reference
from cases import Case, gradient_inputs, inputs
from comparison import assert_close
from resets import KINDS, STARTS, draw_resets
from tolerances import FLOAT32
from training import differentiated, trained

jax = pytest.importorskip("jax")
pytest.importorskip("vkrnn.jax")

import jax.numpy as jnp  # noqa: E402 - after importorskip

import vkrnn.jax  # noqa: E402

CASES = [
    Case(cell, 6, 3, 5, 4, options, frozenset(["input_weight", "init_state"]))
    for cell, options in (
        ("gru", {"reset_after": True}),
        ("lstm", {"bidirectional": True}),
        ("slstm", {"bidirectional": True}),
    )
]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.cell)
def test_results_and_gradients(case: Case, kind: str, *, jit: bool) -> None:
    """Both agree with the reference, for whatever resets start from."""
    for starts in STARTS:
        arrays = inputs(case) | draw_resets(case, kind, starts)
        floats = {name: array for name, array in arrays.items() if array.dtype != bool}
        flags = {name: array for name, array in arrays.items() if array.dtype == bool}

        def outputs(floats: Any, flags: Any = flags) -> Any:
            return getattr(vkrnn.jax, case.cell)(**floats, **flags, descriptor=case.descriptor()).output

        def loss(floats: Any, outputs: Any = outputs) -> Any:
            return outputs(floats).sum()

        how = jax.jit if jit else lambda function: function
        wanted = trained(case, vkrnn.reference, arrays)
        assert_close({"output": np.asarray(how(outputs)(floats))}, {"output": wanted.output}, FLOAT32)
        upstream = gradient_inputs(case, wanted) | {"source_gradient": np.ones_like(wanted.output)}
        right = differentiated(case, vkrnn.reference, arrays, upstream)._asdict()
        found = how(jax.grad(loss))(floats)
        assert_close({name: np.asarray(found[name]) for name in right}, right, FLOAT32)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("kind", ["bool", "rows", "units"])
@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_mapped(kind: str, mapped: tuple[int | None, int | None], *, jit: bool) -> None:
    """`jax.vmap` maps the source, the reset, or both."""
    case = CASES[0]
    arrays, reset = inputs(case), draw_resets(case, kind, "zeros")["reset"]
    source = arrays.pop("source")

    def output(source: Any, reset: Any) -> Any:
        return vkrnn.jax.gru(source, **arrays, reset=reset, descriptor=case.descriptor()).output

    other = draw_resets(case, kind, "zeros", seed=1)["reset"]
    sources = np.stack([source, 2 * source]) if mapped[0] == 0 else source
    resets = np.stack([reset, other]) if mapped[1] == 0 else reset
    many = jax.vmap(output, in_axes=mapped)
    found = (jax.jit(many) if jit else many)(sources, resets)
    for n in range(2):
        one = output(sources[n] if mapped[0] == 0 else source, resets[n] if mapped[1] == 0 else reset)
        np.testing.assert_allclose(found[n], one, rtol=0, atol=FLOAT32)


def test_the_scan_of_purejaxrl() -> None:
    """Its ScannedRNN starts anew where `done` is true: one call with that reset, with the same gradients."""
    case = CASES[0]
    arrays = {name: jnp.asarray(array) for name, array in inputs(case).items()}
    done = draw_resets(case, "bool", "zeros")["reset"]

    def scanned(arrays: Any) -> Any:
        def step(h: Any, given: Any) -> Any:
            x, resets = given
            h = jnp.where(resets[:, None], jnp.zeros_like(h), h)
            z_x, r_x, o_x = jnp.split(x @ arrays["input_weight"].T, 3, axis=-1)
            z_h, r_h, o_h = jnp.split(h @ arrays["recurrent_weight"].T, 3, axis=-1)
            z, r = jax.nn.sigmoid(z_x + z_h), jax.nn.sigmoid(r_x + r_h)
            h = z * h + (1 - z) * jnp.tanh(o_x + r * o_h)
            return h, h

        return jax.lax.scan(step, arrays["init_state"], (arrays["source"], done))[1]

    def called(arrays: Any) -> Any:
        return vkrnn.jax.gru(**arrays, reset=done, descriptor=case.descriptor()).output

    np.testing.assert_allclose(called(arrays), scanned(arrays), rtol=0, atol=FLOAT32)
    found, wanted = (jax.jit(jax.grad(lambda a, of=of: (of(a) ** 2).sum()))(arrays) for of in (called, scanned))
    assert_close(
        {name: np.asarray(each) for name, each in found.items()},
        {name: np.asarray(each) for name, each in wanted.items()},
        FLOAT32,
    )
