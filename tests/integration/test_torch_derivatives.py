"""Derivatives beyond the first one, and forward mode: those of PyTorch's modules, and of finite differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402

T, N, I, H = 3, 2, 2, 4
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"peephole": True, "bidirectional": True}),
    ("LSTM", {"output_gate_activation": "relu", "output_peephole_new_cell": True, "peephole": True, "clip": 0.9}),
    ("LSTM", {"num_layers": 2, "heads": 2, "input_heads": 2, "bias": False}),
    ("GRU", {"reset_after": False, "flip_z": True, "num_layers": 2}),
    ("GRU", {"update_gate_activation": "hard_sigmoid", "bidirectional": True}),
    ("RNN", {"activation": "sigmoid", "num_layers": 2, "bidirectional": True}),
]


def some(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return PyTorch's module and ours in float64 with the same parameters."""
    theirs, mine = (getattr(where, kind)(I, H, dtype=torch.float64, **options) for where in (torch.nn, ours))
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def agree(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=TORCH_IN_FLOAT64)


def function_of(module: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return a module as a function of its input, its states and its parameters, and their values."""
    names, values = zip(*module.named_parameters(), strict=True)
    D = 1 + module.bidirectional
    states = [some(module.num_layers * D, N, H).requires_grad_() for _ in range(1 + (module.mode == "LSTM"))]

    def function(x: Any, *given: Any) -> Any:
        own, weights = given[: len(states)], dict(zip(names, given[len(states) :], strict=True))
        hx = own if module.mode == "LSTM" else own[0]
        output, last = torch.func.functional_call(module, weights, (x, hx))
        return (output, *last) if module.mode == "LSTM" else (output, last)

    return function, [some(T, N, I).requires_grad_(), *states, *values]


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_options(kind: str, options: dict[str, Any]) -> None:
    """Derivatives with every option are those of finite differences."""
    function, values = function_of(getattr(ours, kind)(I, H, dtype=torch.float64, **options))
    assert torch.autograd.gradcheck(function, values, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, values, fast_mode=True)


@every_kind
def test_every_derivative(kind: str) -> None:
    """Each element of the first and second derivatives, in both modes."""
    function, values = function_of(getattr(ours, kind)(I, H, dtype=torch.float64))
    assert torch.autograd.gradcheck(function, values, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, values)
    assert torch.autograd.gradgradcheck(
        function, values, check_fwd_over_rev=True, check_rev_over_rev=False, check_undefined_grad=False, fast_mode=True
    )


@every_kind
def test_any_nesting(kind: str) -> None:
    """Jacobians by either mode to depth three, and for each row by vmap, are PyTorch's."""
    theirs, mine = pair(kind, num_layers=2)
    x = some(2, 1, I)
    modes = torch.func.jacfwd, torch.func.jacrev
    for depth in (1, 2, 3):
        wanted: Callable[[Any], Any] = lambda x: theirs(x)[0].square().sum()  # noqa: E731
        for _ in range(depth):
            wanted = torch.func.jacrev(wanted)
        right = wanted(x)
        for nested in itertools.product(modes, repeat=depth):
            found: Callable[[Any], Any] = lambda x: mine(x)[0].square().sum()  # noqa: E731
            for mode in nested:
                found = mode(found)
            agree(found(x), right)
            if depth < 3:
                many = torch.stack([x, 2 * x])
                agree(torch.vmap(found)(many), torch.stack([right, wanted(2 * x)]))


def ways(module: Any, x: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Return all ways to ask for forward-mode derivatives of a module."""
    run = lambda x: module(x)[0]  # noqa: E731
    func, forward_ad = torch.func, torch.autograd.forward_ad
    parameters = {name: each.detach() for name, each in module.named_parameters()}

    def dual(*, grad: bool) -> Any:
        with forward_ad.dual_level(), torch.set_grad_enabled(grad):
            return forward_ad.unpack_dual(run(forward_ad.make_dual(x, v))).tangent

    def without_gradients() -> Any:
        with torch.no_grad():
            return func.jvp(run, (x,), (v,))

    return {
        "jvp": lambda: func.jvp(run, (x,), (v,)),
        "jvp without gradients": without_gradients,
        "jvp of parameters": lambda: func.jvp(
            lambda p: func.functional_call(module, p, (x,))[0], (parameters,), (parameters,)
        ),
        "jacfwd": lambda: func.jacfwd(run)(x),
        "hessian": lambda: func.hessian(lambda x: run(x).sum())(x),
        "linearize": lambda: func.linearize(run, x)[1](v),
        "make_dual": lambda: dual(grad=True),
        "make_dual without gradients": lambda: dual(grad=False),
        "jacobian": lambda: torch.autograd.functional.jacobian(run, x, strategy="forward-mode", vectorize=True),
        "jvp of a gradient": lambda: func.jvp(func.grad(lambda x: run(x).sum()), (x,), (v,)),
        "vmap of jvp": lambda: torch.vmap(lambda x: func.jvp(run, (x,), (x,)))(x[None]),
        "hessian by autograd": lambda: torch.autograd.functional.hessian(lambda x: run(x).sum(), x),
    }


WAYS = list(ways(torch.nn.RNN(1, 1), None, None))


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_ways(kind: str, way: str) -> None:
    theirs, mine = pair(kind, num_layers=2)
    x, v = some(T, N, I), some(T, N, I)
    run = lambda x: theirs(x)[0]  # noqa: E731
    instead = {  # of what PyTorch's modules cannot do
        "linearize": lambda: torch.func.jvp(run, (x,), (v,))[1],
        "jacobian": lambda: torch.autograd.functional.jacobian(run, x),
        "vmap of jvp": lambda: tuple(each[None] for each in torch.func.jvp(run, (x,), (x,))),
    }
    agree(ways(mine, x, v)[way](), instead.get(way, ways(theirs, x, v)[way])())


@every_kind
@pytest.mark.parametrize("way", WAYS)
def test_ways_with_an_ample_limit(kind: str, way: str) -> None:
    """A gradient_clip that nothing reaches changes no derivative."""
    _, plain = pair(kind, num_layers=2)
    clipped = getattr(ours, kind)(I, H, num_layers=2, dtype=torch.float64, gradient_clip=1e9)
    clipped.load_state_dict(plain.state_dict())
    x, v = some(T, N, I), some(T, N, I)
    agree(ways(clipped, x, v)[way](), ways(plain, x, v)[way]())


@every_kind
def test_forward_mode_of_a_clipped_gradient(kind: str) -> None:
    """It is the derivative of what the backward pass returns."""
    module = getattr(ours, kind)(I, H, dtype=torch.float64, gradient_clip=0.1)
    free = getattr(ours, kind)(I, H, dtype=torch.float64)
    free.load_state_dict(module.state_dict())
    x, v = some(T, N, I), some(T, N, I)
    gradient, unclipped = (torch.func.grad(lambda x, of=of: of(x)[0].sum()) for of in (module, free))
    assert (gradient(x) - unclipped(x)).abs().max() > 1e-3
    step = 1e-6
    wanted = (gradient(x + step * v) - gradient(x - step * v)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(gradient, (x,), (v,))[1], wanted, rtol=0, atol=1e-8)


def test_forward_mode_of_a_vjp() -> None:
    """A backward pass whose forward pass was outside of jvp is refused with what to do."""
    _, mine = pair("LSTM")
    x = some(T, N, I)
    output, pull = torch.func.vjp(lambda x: mine(x)[0], x)
    with pytest.raises(NotImplementedError) as refused:
        torch.func.jvp(pull, (output,), (output,))
    assert str(refused.value) == (
        "[vkrnn.torch] forward-mode derivatives of a backward pass whose forward pass was outside of torch.func.jvp: "
        "call torch.func.vjp or grad within the function that jvp differentiates"
    )


@every_kind
def test_packed(kind: str) -> None:
    """Second derivatives of packed sequences are PyTorch's."""
    theirs, mine = pair(kind, bidirectional=True)
    rows, found = [some(T, I).requires_grad_(), some(T - 1, I).requires_grad_()], []
    for module in (mine, theirs):
        packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
        first = torch.autograd.grad(module(packed)[0].data.square().sum(), rows, create_graph=True)
        total = sum(each.square().sum() for each in first)
        found.append(torch.autograd.grad(total, [*rows, *module.parameters()]))
    agree(*found)


@every_kind
def test_cells(kind: str) -> None:
    """The cells have them, too, also where a call is repeated."""
    cell = getattr(ours, f"{kind}Cell")(I, H, dtype=torch.float64, backend="vkrnn")
    states = [some(N, H).requires_grad_() for _ in range(1 + (kind == "LSTM"))]

    def function(x: Any, *states: Any) -> Any:
        return cell(x, states if kind == "LSTM" else states[0])

    values = some(N, I).requires_grad_(), *states
    for _ in range(2):
        assert torch.autograd.gradgradcheck(function, values)
    assert torch.autograd.gradcheck(function, values, check_forward_ad=True)


@pytest.mark.parametrize("options", [{}, {"peephole": True}])
def test_a_penalty_on_the_gradient(options: dict[str, Any]) -> None:
    """The usual double backward: a loss with the norm of the input's gradient, with resets."""
    module = ours.LSTM(I, H, dtype=torch.float64, **options)
    x, reset = some(T, N, I).requires_grad_(), torch.rand(T, N, dtype=torch.float64)

    def penalty(x: Any, reset: Any, *_: Any) -> Any:
        (gradient,) = torch.autograd.grad(module(x, reset=reset)[0].square().sum(), x, create_graph=True)
        return gradient.square().sum()

    assert torch.autograd.gradcheck(penalty, (x, reset.requires_grad_(), *module.parameters()), fast_mode=True)
