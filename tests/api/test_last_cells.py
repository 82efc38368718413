"""Gradients of an LSTM's cells, of which the frameworks have those of all steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import require
from vkrnn._last_cells import last_cells

T, N, H = 4, 4, 5
LENGTHS = np.array([4, 1, 3, 0], np.int32)


def draw(directions: int, lengths: Any, dtype: Any) -> tuple[Any, Any]:
    """Return gradients [T, N, DH] that are zero in all live steps but the last, and those of the last step or zeros."""
    rng = np.random.default_rng(1)
    wanted = rng.standard_normal((N, directions * H)).astype(dtype)
    gradient = np.full((T, N, directions * H), -0.0, dtype)  # a negative zero is zero, too
    ends = np.full(N, T) if lengths is None else lengths
    for n, end in enumerate(ends):
        gradient[end:, n] = 7  # cells are constant there
        if end == 0:
            wanted[n] = 0
            continue
        gradient[end - 1, n, :H] = wanted[n, :H]
        gradient[0, n, H:] = wanted[n, H:]
    return gradient, wanted


@pytest.mark.parametrize("lengths", [None, LENGTHS, LENGTHS.astype(np.int64)], ids=["full", "int32", "int64"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_last_steps_are_taken(directions: int, lengths: Any, dtype: str) -> None:
    """`last_cells` takes the gradients of each direction's last step, which is at the end of each row."""
    kind = require("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    gradient, wanted = draw(directions, lengths, kind)
    found = last_cells(gradient, directions, lengths, "[here]")
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)
    strided = np.asfortranarray(gradient)
    assert np.array_equal(last_cells(strided, directions, lengths, "[here]"), wanted)


@pytest.mark.parametrize("at", [(0, 0, 0), (2, 0, H - 1), (1, 2, 2), (1, 0, H), (2, 2, 2 * H - 1)])
def test_other_steps_are_refused(at: tuple[int, int, int]) -> None:
    """A gradient at any step before the end of a row is an error."""
    gradient, _ = draw(2, LENGTHS, np.float32)
    gradient[at] = 1e-30
    with pytest.raises(NotImplementedError) as caught:
        last_cells(gradient, 2, LENGTHS, "[here]")
    assert str(caught.value) == (
        "[here] cell_output: vkrnn has gradients of the cells after each direction's last step only"
    )


@pytest.mark.parametrize("lengths", [None, LENGTHS, LENGTHS.astype(np.int64)], ids=["full", "int32", "int64"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_last_steps_of_tensors(directions: int, lengths: Any, dtype: str) -> None:
    """What is computed where a tensor is, is the same."""
    torch = require("torch")
    from vkrnn.torch._operations import _last_cells  # noqa: PLC0415

    gradient, wanted = draw(directions, lengths, dtype)
    ends = None if lengths is None else torch.from_numpy(lengths)
    for each in (gradient, np.asfortranarray(gradient)):
        found = _last_cells(torch.from_numpy(each), directions, ends)
        assert found is not None
        assert np.array_equal(found.numpy(), wanted)
    gradient[2, 0, H - 1] = np.nan
    assert _last_cells(torch.from_numpy(gradient), directions, ends) is None
