"""The functions in docs/jax.md give weights of Flax's cells to vkrnn.jax."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comparison import scaled_error
from oracles import require
from tolerances import FLOAT32

jax = require("jax")
linen = require("flax.linen")
import jax.numpy as jnp  # noqa: E402

import vkrnn  # noqa: E402
import vkrnn.jax as ours  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"


FUNCTIONS = {"LSTMCell": "lstm", "OptimizedLSTMCell": "lstm", "GRUCell": "gru", "SimpleCell": "rnn"}


@pytest.mark.parametrize(("kind", "function"), FUNCTIONS.items())
def test_cells(kind: str, function: str) -> None:
    """Outputs are those of Flax, with random biases, initial states and lengths."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (program,) = (block for block in blocks if "flax" in block)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - of our own
    names["rnn"] = rnn
    T, N, I, H = 7, 4, 3, 5
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.uniform(-1, 1, shape).astype(np.float32))

    source, lengths, state, cell_state = draw(T, N, I), jnp.array([7, 3, 1, 5]), draw(N, H), draw(N, H)
    layer = linen.RNN(getattr(linen, kind)(H), time_major=True)
    variables = jax.tree.map(lambda each: draw(*each.shape), layer.init(jax.random.key(0), source))
    carry, more = (state, {}) if function != "lstm" else ((cell_state, state), {"init_cell": cell_state})
    wanted = layer.apply(variables, source, initial_carry=carry, seq_lengths=lengths)
    given = {"init_state": state, "lengths": lengths, **more}
    found = names[function](variables["params"]["cell"], source, **given)
    inside = np.arange(T)[:, np.newaxis] < np.asarray(lengths)  # Flax goes on past the ends
    assert scaled_error(np.asarray(found)[inside], np.asarray(wanted)[inside]) < FLOAT32


def rnn(cell: Any, source: Any, **more: Any) -> Any:
    """Do for SimpleCell what the page's table says."""
    return ours.single_gate_rnn(
        source,
        cell["h"]["kernel"].T,
        input_weight=cell["i"]["kernel"].T,
        bias=cell["i"]["bias"],
        descriptor=vkrnn.SingleGateRNNDescriptor(activation="tanh"),
        **more,
    ).output
