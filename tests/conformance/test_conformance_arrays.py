"""Every case in every dtype on device arrays gives the bits of the call on NumPy arrays, which other tests check."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CASES, Case, by_id, inputs, lengths_of
from resident import KINDS, Array, above, assert_same, dtype_of, put, shifted
from scale import sample
from vkrnn.results import Results


def run(case: Case, arrays: dict[str, Any], lengths: Array | None, **rest: Any) -> Results:
    """Return the results of a training call."""
    results: Results = getattr(vkrnn, case.cell)(
        **arrays, lengths=lengths, descriptor=case.descriptor(training=True), **rest
    )
    return results


def differentiate(
    case: Case, arrays: dict[str, Any], upstream: dict[str, Any], lengths: Array | None, **rest: Any
) -> Results:
    """Return the gradients."""
    results: Results = getattr(vkrnn, f"{case.cell}_gradients")(
        **arrays, **upstream, lengths=lengths, descriptor=case.descriptor(), **rest
    )
    return results


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("case", sample(CASES, 3), ids=by_id)
def test_device_arrays_give_the_same_bits(case: Case, dtype: str) -> None:
    """Forward and gradients on device arrays without a wait between, with and without lengths."""
    kind = dtype_of(dtype)
    arrays = {name: array.astype(kind) for name, array in inputs(case).items()}
    resident = put(arrays)
    for lengths in (None, lengths_of(case)):
        forward = run(case, resident, lengths)
        gradients = differentiate(case, resident, above(case, forward, kind), lengths)
        plain = run(case, arrays, lengths)
        assert_same(forward, plain)
        assert_same(gradients, differentiate(case, arrays, above(case, plain, kind), lengths))
    for name, array in arrays.items():
        np.testing.assert_array_equal(resident[name].numpy(), array, err_msg=f"{name} was written to")


def slices_for(results: Results, device: vkrnn.Device) -> list[vkrnn.Array]:
    """Return arrays of these shapes that are slices, with other elements before and after them."""
    return [
        vkrnn.asarray(np.full((array.shape[0] + 2, *array.shape[1:]), 7, array.dtype), device=device)
        for array in results
    ]


SLICED = list(zip([case for case in CASES if not case.tags][::13], itertools.cycle(KINDS), strict=False))


@pytest.mark.parametrize(("case", "dtype"), sample(SLICED, 3), ids=by_id)
def test_slices_give_the_same_bits(case: Case, dtype: str, either: vkrnn.Device) -> None:
    """Arguments and results may be slices, in 16 bits also at odd offsets. Elements beside them stay unchanged."""
    kind = dtype_of(dtype)
    arrays = {name: array.astype(kind) for name, array in inputs(case).items()}
    slices: dict[str, Any] = {name: shifted(array, either) for name, array in arrays.items()}

    def between(call: Callable[..., Results], wanted: Results) -> Results:
        whole = slices_for(wanted, either)
        got = call(out=[array[1:-1] for array in whole])
        assert_same(got, wanted)
        for array in whole:
            assert (array.numpy()[[0, -1]] == 7).all()
        return got

    plain = run(case, arrays, None, device=either)
    forward = between(lambda out: run(case, slices, None, out=out), plain)
    upstream = {name: shifted(array, either) for name, array in above(case, plain, kind).items()}
    wanted = differentiate(case, arrays, above(case, plain, kind), None, device=either)
    between(lambda out: differentiate(case, slices, upstream, None, out=out), wanted)
    assert_same(forward, plain)
