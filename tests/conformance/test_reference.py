"""The float64 reference against steps by hand, numerical derivatives and torch; its results and messages."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn.reference
from cases import CASES, GATES, OPTIONAL, UPSTREAM, Case, by_id, gradient_inputs, gradient_names, inputs, loss
from scale import distinct
from tolerances import COMPLEX, COMPLEX_STEP, DIFFERENCE, DIFFERENCE_STEP, SAME_IN_FLOAT64, TORCH_IN_FLOAT64
from torch_layers import cell_of, weights_of
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.results import Results

Array = NDArray[Any]

DIFFERENTIABLE = [
    case
    for case in CASES
    if case.values != "kinks" and case.N * case.H < 1000 and case.options.get("gradient_clip") is None
]
SMALL = [case for case in CASES if not case.tags]


def forward(case: Case, arrays: Mapping[str, Array]) -> Results:
    function: Callable[..., Results] = getattr(vkrnn.reference, case.cell)
    return function(**arrays, descriptor=case.descriptor(training=True))


def gradients(case: Case, arrays: Mapping[str, Array], upstream: Mapping[str, Array]) -> Results:
    function: Callable[..., Results] = getattr(vkrnn.reference, f"{case.cell}_gradients")
    return function(**arrays, **upstream, descriptor=case.descriptor())


def doubles(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the case's inputs and upstream gradients in float64."""
    arrays = {name: array.astype(np.float64) for name, array in inputs(case).items()}
    upstream = gradient_inputs(case, forward(case, arrays))
    return arrays, {name: np.asarray(array, np.float64) for name, array in upstream.items()}


def slope(case: Case, name: str, arrays: dict[str, Array], upstream: dict[str, Array], along: Array) -> float:
    """Return the derivative along one direction of one input: complex step if smooth, else differences."""

    def at(step: complex) -> Any:
        changed = arrays | {name: arrays[name] + step * along}
        return loss(case, changed, forward(case, changed), upstream)

    if case.is_smooth:
        return float(at(1j * COMPLEX_STEP).imag / COMPLEX_STEP)
    return float((at(DIFFERENCE_STEP) - at(-DIFFERENCE_STEP)).real / (2 * DIFFERENCE_STEP))


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=by_id)
def test_gradients_are_derivatives_of_the_loss(case: Case) -> None:
    arrays, upstream = doubles(case)
    result = gradients(case, arrays, upstream)
    assert result._fields == gradient_names(case)
    rng = np.random.default_rng(1)
    for name, gradient in result._asdict().items():
        assert gradient.shape == arrays[name].shape, name
        assert gradient.dtype == np.float64, name
        along = rng.standard_normal(gradient.shape)
        got = slope(case, name, arrays, upstream, along)
        scale = 1 + np.sum(np.abs(gradient * along))
        assert abs(np.sum(gradient * along) - got) <= (COMPLEX if case.is_smooth else DIFFERENCE) * scale, name


@pytest.mark.parametrize("case", distinct([case for case in SMALL if case.seed == 2 or case.lenient], 2), ids=by_id)
def test_each_element_of_the_gradients(case: Case) -> None:
    arrays, upstream = doubles(case)
    for name, gradient in gradients(case, arrays, upstream)._asdict().items():
        units = np.eye(gradient.size).reshape(gradient.size, *gradient.shape)
        got = [slope(case, name, arrays, upstream, unit) for unit in units]
        limit = (COMPLEX if case.is_smooth else DIFFERENCE) * (1 + np.abs(gradient).max())
        np.testing.assert_allclose(gradient.ravel(), got, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("case", [case for case in CASES if case.is_smooth and not case.tags][::12], ids=lambda c: c.id)
def test_finite_differences_agree_with_the_complex_step(case: Case) -> None:
    # The complex step needs an analytic forward pass. This justifies using it alone elsewhere.
    arrays, upstream = doubles(case)
    for name in gradient_names(case):
        along = np.random.default_rng(2).standard_normal(arrays[name].shape)
        changed = (arrays | {name: arrays[name] + sign * DIFFERENCE_STEP * along} for sign in (1, -1))
        ahead, behind = (loss(case, each, forward(case, each), upstream) for each in changed)
        expected = slope(case, name, arrays, upstream, along)
        got = (ahead - behind) / (2 * DIFFERENCE_STEP)
        assert abs(got - expected) <= DIFFERENCE * (1 + abs(expected)), name


@pytest.mark.parametrize("case", [case for case in CASES if case.values == "kinks"], ids=by_id)
def test_derivatives_at_the_corners_are_those_of_the_flat_side(case: Case) -> None:
    arrays, upstream = doubles(case)
    hard = "hard_sigmoid" in case.options.values()
    state = upstream["z_state"]
    if case.cell == "single_gate_rnn":  # before the activation
        corners = np.abs(state) == 2.5 if hard else state == 0
    else:
        corners = (state == 0) | (state == 1) if hard else state == 0
        if case.cell == "gru" and hard:  # its candidate is a tanh
            corners = corners.reshape(*state.shape[:2], case.D, 3, case.H) & [[True], [True], [False]]
            corners = corners.reshape(state.shape)
    assert corners.any(), "the case has no corner in it"
    # Without an input weight, the source's gradient is that of the pre-activations.
    projected = {"source": arrays["source"] @ arrays.pop("input_weight").T}
    before_activation = gradients(case, arrays | projected, upstream).source
    if case.options.get("reverse"):
        before_activation = before_activation[::-1]
    np.testing.assert_array_equal(before_activation[corners], 0)


@pytest.mark.parametrize("case", [case for case in CASES if case.values == "modest"], ids=by_id)
def test_modest_cases_have_informative_gradients(case: Case) -> None:
    arrays = inputs(case)
    result = gradients(case, arrays, gradient_inputs(case, forward(case, arrays)))
    for name, gradient in result._asdict().items():
        unused = name == "secondary_bias" and not case.options.get("reset_after")
        unused |= name == "init_state" and case.options.get("gradient_clip") == 0
        # A unit without a past ignores its stabilizer.
        unused |= name == "init_stabilizer" and not case.present & {"init_cell", "init_normalizer"}
        assert np.any(gradient) != unused, name
        assert np.isfinite(gradient).all(), name


# Steps by hand: one number per tensor, with the documented formulas written out


def sigmoid(p: float) -> float:
    return 1 / (1 + math.exp(-p))


def test_lstm_by_hand() -> None:
    x, b, p = [0.3, -0.7, 0.9, 0.4], [0.1, 0.2, -0.3, 0.6], [0.5, -0.4, 0.8, -0.9]
    R, h0, c0, m = [0.7, -0.6, 0.2, 1.1], 0.35, -0.55, 0.8
    a = [x[g] + b[g] + h0 * m * R[g] + p[g] * c0 for g in range(4)]  # i, z, f, o
    i, z, f, o = sigmoid(a[0]), math.tanh(a[1]), sigmoid(a[2]), sigmoid(a[3])
    c = f * c0 + i * z
    results = vkrnn.reference.lstm(
        [[x]],
        [[r] for r in R],
        bias=b,
        init_state=[[h0]],
        init_cell=[[c0]],
        mask=[[[m]]],
        peephole=p,
        descriptor=LSTMDescriptor(forget_gate_last=True, training=True),
    )
    got = [array.ravel() for array in results]
    np.testing.assert_allclose(np.concatenate(got), [o * math.tanh(c), c, i, z, f, o], rtol=SAME_IN_FLOAT64)


@pytest.mark.parametrize("flip_z", [False, True])
@pytest.mark.parametrize("reset_after", [False, True])
def test_gru_by_hand(*, reset_after: bool, flip_z: bool) -> None:
    x, b, R, h0, m, b2 = [0.3, -0.7, 0.9], [0.1, 0.2, -0.3], [0.7, -0.6, 0.2], 0.35, 0.8, 0.45
    z, r = (sigmoid(x[g] + b[g] + h0 * m * R[g]) for g in (0, 1))
    o = math.tanh(x[2] + b[2] + ((h0 * m * R[2] + b2) * r if reset_after else h0 * r * m * R[2]))
    h = (1 - z) * h0 + z * o if flip_z else z * h0 + (1 - z) * o
    results = vkrnn.reference.gru(
        [[x]],
        [[value] for value in R],
        bias=b,
        init_state=[[h0]],
        mask=[m],
        secondary_bias=[b2],
        descriptor=GRUDescriptor(reset_after=reset_after, flip_z=flip_z, training=True),
    )
    got = [array.ravel() for array in results]
    np.testing.assert_allclose(np.concatenate(got), [h, z, r, o], rtol=SAME_IN_FLOAT64)


def test_rnn_by_hand_in_each_direction() -> None:
    source, weight = np.array([[[1.0]], [[10.0]]]), np.array([[0.5]])

    def rows(*, reverse: bool = False, bidirectional: bool = False, **rest: Any) -> Any:
        width = 2 if bidirectional else 1
        R = np.stack([weight, weight]) if bidirectional else weight
        descriptor = SingleGateRNNDescriptor(activation="none", reverse=reverse, bidirectional=bidirectional)
        x = np.repeat(source, width, axis=2)
        return vkrnn.reference.single_gate_rnn(x, R, descriptor=descriptor, **rest).output[:, 0].tolist()

    assert rows() == [[1.0], [10.5]]
    assert rows(reverse=True) == [[10.0], [6.0]]  # in the order of the steps
    assert rows(bidirectional=True) == [[1.0, 6.0], [10.5, 10.0]]  # aligned with the source
    assert rows(bidirectional=True, reverse=True) == rows(bidirectional=True)
    # The mask's first row applies to the initial state, in reverse, too; in a backward direction, its last row does.
    masked: dict[str, Any] = {"mask": np.array([[[0.5]], [[2.0]]])}
    assert rows(**masked, init_state=[[4.0]]) == [[2.0], [12.0]]
    assert rows(**masked, init_state=[[4.0]], reverse=True) == [[11.0], [12.0]]
    assert rows(**masked, init_state=[[4.0, 4.0]], bidirectional=True) == [[2.0, 4.5], [12.0, 14.0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none", [-3, -1, 0.5, 3]), ("relu", [0, 0, 0.5, 3]), ("hard_sigmoid", [0, 0.3, 0.6, 1])]
    + [(f.__name__, [f(p) for p in (-3, -1, 0.5, 3)]) for f in (math.tanh, sigmoid)],
)
def test_activations_by_hand(name: str, expected: list[float]) -> None:
    descriptor = SingleGateRNNDescriptor(activation=name)
    got = vkrnn.reference.single_gate_rnn([[[-3, -1, 0.5, 3]]], np.eye(4), descriptor=descriptor).output
    np.testing.assert_allclose(got.ravel(), expected, rtol=SAME_IN_FLOAT64)


# Packing


@pytest.mark.parametrize("cell", GATES)
def test_gradients_of_every_subset_of_optional_inputs(cell: str) -> None:
    full = next(case for case in CASES if case.cell == cell and case.seed == 1)
    for flags in itertools.product((False, True), repeat=len(OPTIONAL[cell])):
        chosen = {name for name, flag in zip(OPTIONAL[cell], flags, strict=True) if flag}
        width = full.I if "input_weight" in chosen else full.D * full.G * full.H
        case = Case(cell, full.T, full.N, width, full.H, full.options, frozenset(chosen | set(UPSTREAM[cell])))
        arrays, upstream = doubles(case)
        result = gradients(case, arrays, upstream)
        assert result._fields == gradient_names(case)
        assert [array.shape for array in result] == [arrays[name].shape for name in result._fields]
        for name in {*OPTIONAL[cell]} - chosen - {"mask"}:
            with pytest.raises(AttributeError, match=f"returned no '{name}': no {name} was passed"):
                getattr(result, name)


@pytest.mark.parametrize(
    ("cell", "options", "names"),
    [
        ("single_gate_rnn", {}, ("output",)),
        ("single_gate_rnn", {"training": True}, ("output", "z_state")),
        ("gru", {}, ("output",)),
        ("gru", {"training": True}, ("output", "z_state")),
        ("lstm", {}, ("output",)),
        ("lstm", {"produce_cell": True}, ("output", "cell_output")),
        ("lstm", {"training": True}, ("output", "cell_output", "z_state")),
        ("lstm", {"training": True, "produce_cell": True}, ("output", "cell_output", "z_state")),
    ],
)
def test_names_of_outputs(cell: str, options: dict[str, bool], names: tuple[str, ...]) -> None:
    case = Case(cell, 5, 3, 7, 4, options, frozenset(["input_weight"]))
    results = getattr(vkrnn.reference, cell)(**inputs(case), descriptor=case.descriptor())
    shapes = {"output": (5, 3, 4), "cell_output": (5, 3, 4), "z_state": (5, 3, case.G * 4)}
    assert results._fields == names
    assert [array.shape for array in results] == [shapes[name] for name in names]
    assert all(array.dtype == np.float64 for array in results)


# Inputs and messages


def test_only_the_six_functions_are_public() -> None:
    names = [f"{cell}{kind}" for cell in GATES for kind in ("", "_gradients")]
    assert sorted(vkrnn.reference.__all__) == sorted(names)
    assert sorted(name for name in vars(vkrnn.reference) if not name.startswith("_")) == sorted(names)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4", np.longdouble])
def test_any_float_dtype_is_converted(dtype: Any) -> None:
    source, weight = np.ones((5, 3, 4), dtype), np.full((4, 4), 0.25, dtype)
    output = vkrnn.reference.single_gate_rnn(source, weight).output
    assert output.dtype == np.float64
    np.testing.assert_array_equal(output[:2, 0, 0], [1, 2])


@pytest.mark.parametrize(
    ("cell", "name", "shape", "message"),
    [
        ("lstm", "source", (5, 7), "[lstm] source: expected shape [T, N, I] with T and I at least 1, got [5, 7]"),
        ("lstm", "source", (0, 3, 7), "[lstm] source: expected shape [T, N, I] with T and I at least 1, got [0, 3, 7]"),
        ("lstm", "recurrent_weight", (16, 3), "expected shape [4H, H] = [16, 4], got [16, 3]"),
        ("lstm", "recurrent_weight", (4, 16), "expected shape [4H, H] = [16, 4], got [4, 16] (it looks transposed)"),
        ("lstm", "input_weight", (7, 16), "expected shape [4H, I] = [16, 7], got [7, 16] (it looks transposed)"),
        ("lstm", "recurrent_weight", (2,), "recurrent_weight: expected shape [4H, H] with H at least 1, got [2]"),
        ("lstm", "input_weight", (16, 6), "[lstm] input_weight: expected shape [4H, I] = [16, 7], got [16, 6]"),
        ("lstm", "bias", (4,), "[lstm] bias: expected shape [4H] = [16], got [4]"),
        ("lstm", "peephole", (2, 16), "[lstm] peephole: expected shape [4H] = [16], got [2, 16]"),
        ("lstm", "init_cell", (1, 4), "expected shape [N, H] = [3, 4] or [1, N, H] = [1, 3, 4], got [1, 4]"),
        ("lstm", "mask", (5, 3, 2), "[T, N, H] = [5, 3, 4] or [T, N, 4H] = [5, 3, 16], got [5, 3, 2]"),
        ("lstm", "mask", (1, 5, 3, 4), "[T, N, H] = [5, 3, 4] or [T, N, 4H] = [5, 3, 16], got [1, 5, 3, 4]"),
        ("gru", "secondary_bias", (12,), "[gru] secondary_bias: expected shape [H] = [4], got [12]"),
        ("gru", "init_state", (3, 8), "[gru] init_state: expected shape [N, H] = [3, 4] or"),
        ("single_gate_rnn", "mask", (5, 3, 8), "mask: expected a shape that broadcasts to [T, N, H] = [5, 3, 4], got"),
        ("single_gate_rnn", "bias", (1,), "[single_gate_rnn] bias: expected shape [H] = [4], got [1]"),
    ],
)
def test_errors_about_shapes(cell: str, name: str, shape: tuple[int, ...], message: str) -> None:
    case = Case(cell, 5, 3, 7, 4, {}, frozenset(["input_weight"]))
    with pytest.raises(ValueError, match="expected") as caught:
        forward(case, inputs(case) | {name: np.ones(shape, np.float32)})
    assert message in str(caught.value)


def test_errors_about_shapes_of_bidirectional_calls_and_gradients() -> None:
    options = LSTMDescriptor(bidirectional=True)
    with pytest.raises(ValueError, match=r"recurrent_weight: expected shape \[2, 4H, H\] = \[2, 8, 2\], got \[8, 2\]"):
        vkrnn.reference.lstm(np.ones((5, 3, 16)), np.ones((8, 2)), descriptor=options)
    wanted = r"source \(without input_weight\): expected shape \[T, N, 8H\] = \[5, 3, 16\], got \[5, 3, 8\]"
    with pytest.raises(ValueError, match=wanted):
        vkrnn.reference.lstm(np.ones((5, 3, 8)), np.ones((2, 8, 2)), descriptor=options)
    case = Case("gru", 5, 3, 12, 4)
    arrays, upstream = doubles(case)
    for name, array in upstream.items():
        with pytest.raises(ValueError, match=rf"\[gru_gradients\] {name}: expected shape"):
            gradients(case, arrays, upstream | {name: array[1:]})
    with pytest.raises(ValueError, match=r"\[gru_gradients\] bias: expected shape \[3H\] = \[12\], got \[1\]"):
        gradients(case, arrays | {"bias": np.ones(1)}, upstream)


def test_another_cells_descriptor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^\[gru\] descriptor: expected GRUDescriptor, got LSTMDescriptor$"):
        vkrnn.reference.gru(np.ones((5, 3, 12)), np.ones((12, 4)), descriptor=LSTMDescriptor())  # type: ignore[arg-type]


# torch


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_torch_autograd_agrees(kind: str, *, bidirectional: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = pytest.importorskip("torch")
    T, N, I, H, D = 5, 3, 7, 4, 1 + bidirectional
    torch.manual_seed(3)
    module = getattr(torch.nn, kind)(I, H, bidirectional=bidirectional).double()
    draw = np.random.default_rng(3).standard_normal
    source, h0, c0 = draw((T, N, I)), draw((N, D * H)), draw((N, D * H))
    up = {"source_gradient": draw((T, N, D * H)), "state_gradient": draw((N, D * H))}

    def leaf(array: Array) -> Any:
        return torch.from_numpy(array.copy()).requires_grad_()

    def apart(array: Any) -> Any:  # [N, DH] -> torch's [D, N, H]
        return torch.stack(array.split(H, dim=-1))

    x, h, c = leaf(source), leaf(h0), leaf(c0)
    output, final = module(x, (apart(h), apart(c)) if kind == "LSTM" else apart(h))
    finals: tuple[Any, ...] = final if kind == "LSTM" else (final,)
    total = (output * torch.from_numpy(up["source_gradient"])).sum()
    total = total + (finals[0] * apart(torch.from_numpy(up["state_gradient"]))).sum()
    if kind == "LSTM":
        up["cell_gradient"] = draw((N, D * H))
        total = total + (finals[1] * apart(torch.from_numpy(up["cell_gradient"]))).sum()
    total.backward()

    def arguments(*, grad: bool = False) -> dict[str, Array]:
        found = {"source": x.grad.numpy() if grad else source, "init_state": h.grad.numpy() if grad else h0}
        if kind == "LSTM":
            found["init_cell"] = c.grad.numpy() if grad else c0
        return found | weights_of(module, grad=grad)

    cell, descriptor = cell_of(kind, bidirectional=bidirectional)
    case = Case(cell, T, N, I, H, vars(descriptor), frozenset(arguments()) - {"source", "recurrent_weight"})
    results = forward(case, arguments())
    np.testing.assert_allclose(results.output, output.detach().numpy(), rtol=0, atol=TORCH_IN_FLOAT64)
    saved = gradient_inputs(case, results)
    got = gradients(case, arguments(), saved | up)
    expected = arguments(grad=True)
    assert set(got._fields) == set(expected)
    for name, gradient in got._asdict().items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=TORCH_IN_FLOAT64, err_msg=name)


@pytest.mark.parametrize("cell", GATES)
def test_numpy_error_state_does_not_matter(cell: str) -> None:
    """Underflow, overflow and infinity appear in the results, whatever NumPy's error state is."""
    case = Case(cell, 5, 3, 7, 4, {}, frozenset({"input_weight", "bias"}))
    for factor in (1e-200, 1e3, 1e200, np.inf):
        given = {name: array.astype(np.float64) * factor for name, array in inputs(case).items()}
        results = []
        for reaction in ("ignore", "raise"):
            with np.errstate(all=reaction):  # type: ignore[call-overload]
                kept = forward(case, given)
                results.append((*kept, *gradients(case, given, gradient_inputs(case, kept))))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)
