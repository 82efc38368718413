"""Gradients with respect to an LSTM's cells: those of the last step, [N, DH], and of all steps, [T, N, DH]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from cases import DIRECTIONS, OPTIONAL, UPSTREAM, Case, gradient_inputs, inputs
from comparison import assert_close
from oracles import require
from resident import dtype_of
from targets import Target, targets
from tolerances import DTYPES, FLOAT32, TORCH_IN_FLOAT64
from training import differentiated, trained

Array = NDArray[Any]

T, N, I, H = 5, 6, 7, 4
LENGTHS = np.array([4, 5, 1, 0, 3, 2])
PRESENT = frozenset((*OPTIONAL["lstm"], *UPSTREAM["lstm"]))
every_direction = pytest.mark.parametrize("direction", DIRECTIONS, ids=["forward", "reverse", "both"])
with_and_without_lengths = pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "lengths"])


def each_cell(direction: Mapping[str, bool]) -> Case:
    """Return a case with gradients of all cells."""
    return Case("lstm", T, N, I, H, direction, PRESENT, each_cell=True)


def past_the_ends(lengths: Array) -> Array:
    """Return where [T, N, 1] padding is."""
    return (np.arange(T)[:, None] >= lengths)[..., None]


def arrays_of(case: Case, dtype: str, lengths: Array | None) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return a call's arguments in a dtype. NaN among the cells' gradients past the ends would show if it were read."""
    arrays = {name: array.astype(dtype_of(dtype)) for name, array in inputs(case).items()}
    upstream = gradient_inputs(case, trained(case, vkrnn, arrays, lengths))
    upstream = {name: array.astype(dtype_of(dtype)) for name, array in upstream.items()}
    if lengths is not None:
        upstream["cell_gradient"][np.broadcast_to(past_the_ends(lengths), (T, N, case.D * H))] = np.nan
    return arrays, upstream


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.id)
@with_and_without_lengths
def test_every_strategy(target: Target, lengths: Array | None) -> None:
    """All cells' gradients agree with the reference. Those that are zero but for the last step have that one's bits."""
    with target.opened():
        for direction in DIRECTIONS:
            case = each_cell(direction)
            arrays, upstream = arrays_of(case, "float32", lengths)
            found = differentiated(case, vkrnn, arrays, upstream, lengths)
            wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)
            assert_close(found._asdict(), wanted._asdict(), FLOAT32)
            assert_the_last_step_alone(case, arrays, upstream, lengths)


@every_direction
@with_and_without_lengths
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype: str, direction: dict[str, bool], lengths: Array | None) -> None:
    """All dtypes have both."""
    case = each_cell(direction)
    arrays, upstream = arrays_of(case, dtype, lengths)
    found = differentiated(case, vkrnn, arrays, upstream, lengths)
    wanted = differentiated(case, vkrnn.reference, arrays, upstream, lengths)
    assert_close(found._asdict(), wanted._asdict(), DTYPES[dtype])
    assert_the_last_step_alone(case, arrays, upstream, lengths)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_one_step(library: str) -> None:
    """A row without steps has no cell in `cell_output`, whose gradient therefore does not reach its initial cell."""
    rng = np.random.default_rng(6)
    source, weight, first, above = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((1, 2, 4), (4, 1), (2, 1), (1, 2, 1))
    )
    descriptor, lengths = vkrnn.LSTMDescriptor(training=True, produce_cell=True), np.array([1, 0], np.int32)
    if library == "torch":
        torch = require("torch")
        from vkrnn.torch import lstm  # noqa: PLC0415

        cell = torch.from_numpy(first).requires_grad_()
        given = torch.from_numpy(source), torch.from_numpy(weight)
        results = lstm(*given, init_cell=cell, lengths=torch.from_numpy(lengths), descriptor=descriptor)
        found = torch.autograd.grad(results.cell_output, cell, torch.from_numpy(above))[0].numpy()
    else:
        jax = require("jax")
        from vkrnn.jax import lstm as on_jax  # noqa: PLC0415

        def cells(cell: Any) -> Any:
            return on_jax(source, weight, init_cell=cell, lengths=lengths, descriptor=descriptor).cell_output

        found = np.asarray(jax.jit(lambda cell: jax.vjp(cells, cell)[1](above)[0])(first))
    assert found[0, 0] != 0
    assert found[1, 0] == 0


def assert_the_last_step_alone(
    case: Case, arrays: Mapping[str, Array], upstream: Mapping[str, Array], lengths: Array | None
) -> None:
    """Compare the bits of both forms of the same gradients."""
    ends = np.full(N, T) if lengths is None else lengths
    every, last = np.zeros_like(upstream["cell_gradient"]), upstream["cell_gradient"][ends - 1, np.arange(N)].copy()
    last[:, H:] = upstream["cell_gradient"][0, :, H:]
    every[ends - 1, np.arange(N), :H] = last[:, :H]
    every[0, :, H:] = last[:, H:]
    every[:, ends == 0] = last[ends == 0] = 0
    found = [
        differentiated(case, vkrnn, arrays, {**upstream, "cell_gradient": cells}, lengths)
        for cells in (every, last, last[np.newaxis])
    ]
    for one, *others in zip(*found, strict=True):
        assert all(np.array_equal(one, other) for other in others)


@pytest.mark.parametrize("given", [frozenset(), frozenset(["cell_gradient"])], ids=["none", "last"])
def test_other_plans_do_not_change(given: frozenset[str]) -> None:
    """No kernel of another call knows of all cells' gradients, and these need no kernel more."""
    case = replace(each_cell({}), present=PRESENT - {"cell_gradient"} | given)
    every = arrays_of(each_cell({}), "float32", None)
    plans = [
        vkrnn.plan(vkrnn.lstm_gradients, **arrays, **upstream, descriptor=case.descriptor())
        for arrays, upstream in (every, arrays_of(replace(case, each_cell=False), "float32", None))
    ]
    assert ["cell_gradients" in str(plan) for plan in plans] == [True, False]
    assert len(plans[0].steps) == len(plans[1].steps)


@every_direction
@with_and_without_lengths
def test_torch_autograd_agrees(direction: dict[str, bool], lengths: Array | None) -> None:
    """A loop of PyTorch's cells with a loss on all states has the gradients of the reference and of `vkrnn.torch`."""
    torch = require("torch")
    import vkrnn.torch  # noqa: PLC0415

    D = 2 if direction.get("bidirectional") else 1
    rng = np.random.default_rng(4)
    shapes = {"source": (T, N, I), "recurrent_weight": (D, 4 * H, H), "input_weight": (D * 4 * H, I)}
    shapes |= {"bias": (D * 4 * H,), "init_state": (N, D * H), "init_cell": (N, D * H)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    above = {name: rng.standard_normal((T, N, D * H)) for name in ("output", "cell_output")}
    leaves = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in arrays.items()}
    ends = np.full(N, T) if lengths is None else lengths
    loss = torch.zeros((), dtype=torch.float64)
    for d in range(D):
        cell = torch.nn.LSTMCell(I, H, dtype=torch.float64)
        weights = {"weight_hh": leaves["recurrent_weight"][d], "bias_hh": torch.zeros(4 * H, dtype=torch.float64)}
        part = slice(d * H, (d + 1) * H)
        for ours, theirs in (("input_weight", "weight_ih"), ("bias", "bias_ih")):
            weights[theirs] = leaves[ours][d * 4 * H : (d + 1) * 4 * H]
        for n, end in enumerate(ends):
            states = leaves["init_state"][n : n + 1, part], leaves["init_cell"][n : n + 1, part]
            for k in range(end):
                back = end - 1 - k
                x = leaves["source"][back if d == 1 or direction.get("reverse") else k, n : n + 1]
                states = torch.func.functional_call(cell, weights, (x, states))
                for state, upstream in zip(states, above.values(), strict=True):
                    loss = loss + (state[0] * torch.from_numpy(upstream[back if d == 1 else k, n, part])).sum()
    names = list(leaves)
    wanted = dict(zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    wanted = {name: gradient.numpy() for name, gradient in wanted.items()}

    case = Case("lstm", T, N, I, H, direction, frozenset(names[2:]))
    arrays["recurrent_weight"] = arrays["recurrent_weight"].reshape(case.shape("recurrent_weight"))
    wanted["recurrent_weight"] = wanted["recurrent_weight"].reshape(case.shape("recurrent_weight"))
    kept = gradient_inputs(case, trained(case, vkrnn.reference, arrays, lengths))
    kept |= {"source_gradient": above["output"], "cell_gradient": above["cell_output"]}
    found = differentiated(case, vkrnn.reference, arrays, kept, lengths)._asdict()
    assert_close(found, {name: wanted[name] for name in found}, TORCH_IN_FLOAT64)

    tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()}
    results = vkrnn.torch.lstm(
        **tensors,
        lengths=None if lengths is None else torch.from_numpy(lengths),
        descriptor=case.descriptor(produce_cell=True),
    )
    ours = torch.autograd.grad(
        [results.output, results.cell_output],
        list(tensors.values()),
        [torch.from_numpy(array) for array in above.values()],
    )
    named = {name: gradient.numpy() for name, gradient in zip(tensors, ours, strict=True)}
    assert_close(named, {name: wanted[name] for name in named}, TORCH_IN_FLOAT64)
