"""What vkrnn.jax refuses, and its messages: when a call is traced, when a program runs, and when it is exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from jax_ways import both_ways, take
from oracles import require

jax = require("jax")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

import vkrnn.jax as ours  # noqa: E402

WEIGHT = np.ones((4, 1), np.float32)
WITH_CELL = vkrnn.LSTMDescriptor(produce_cell=True)


def small(**more: Any) -> Any:
    return ours.lstm(jnp.ones((3, 2, 4)), jnp.ones((4, 1)), **more)


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "shape": (
        lambda: jax.jit(small)(bias=jnp.ones(5)),
        ValueError,
        "[lstm] bias: expected shape [4H] = [4], got [5] (H = 1 from recurrent_weight.shape[0] / 4)",
    ),
    "dtype": (
        lambda: small(bias=jnp.ones(4, jnp.float16)),
        TypeError,
        "[lstm] bias: expected dtype float32 like source, got float16",
    ),
    "nothing": (
        lambda: ours.gru(None, jnp.ones((3, 1))),
        TypeError,
        "[vkrnn.jax.gru] source: expected an array, got None",
    ),
    "descriptor": (
        lambda: small(descriptor=vkrnn.GRUDescriptor()),
        TypeError,
        "[lstm] descriptor: expected an LSTMDescriptor, got a GRUDescriptor",
    ),
    "lengths": (lambda: small(lengths=[1, 4]), ValueError, "[lstm] lengths: expected 0 to T = 3, got 4 at [1]"),
    "mask": (
        lambda: jax.grad(lambda mask: small(mask=mask).output.sum())(jnp.ones(())),
        NotImplementedError,
        "[vkrnn.jax.lstm] mask: vkrnn computes no gradient with respect to it",
    ),
    "symbolic shape": (
        lambda: jax.eval_shape(ours.lstm, jax.ShapeDtypeStruct(export.symbolic_shape("2, n, i"), np.float32), WEIGHT),
        ValueError,
        "[lstm] source: expected shape [T, N, 4H] = [2, n, 4], got [2, n, i] (T = 2 from source.shape[0], N = n from "
        "source.shape[1], H = 1 from recurrent_weight.shape[0] / 4; without input_weight the source holds the gates)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors(mistake: str) -> None:
    """Mistakes are found when a call is traced, with vkrnn's messages."""
    function, kind, message = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        function()
    assert str(caught.value) == message


def test_export_of_a_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused: another process has no such function of Python."""
    take("callback", monkeypatch)
    with pytest.raises(NotImplementedError) as caught:
        export.export(jax.jit(lambda: small()))()  # one that JAX has not compiled yet
    assert str(caught.value) == (
        "[vkrnn.jax.lstm] jax.export: a program that calls vkrnn cannot be exported, because the call runs in Python "
        "on the host (a test wants it so)"
    )


@both_ways
def test_errors_at_run_time(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's error is vkrnn's message, after JAX's words for its kind."""
    take(way, monkeypatch)
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(jax.jit(lambda ends: small(lengths=ends))(jnp.array([1, 4])))
    kind = "ValueError" if way == "callback" else "INVALID_ARGUMENT"
    assert str(caught.value).removeprefix("INTERNAL: CpuCallback error calling callback: ") == (
        f"{kind}: [lstm] lengths: expected 0 to T = 3, got 4 at [1]"
    )
