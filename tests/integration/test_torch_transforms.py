"""vkrnn.torch under torch.func, torch.vmap and batched gradients; derivatives that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from comparison import assert_close
from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
import vkrnn  # noqa: E402
import vkrnn.torch as ours  # noqa: E402

T, N, I, H = 3, 2, 2, 3
# Warnings of PyTorch.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return torch's module and ours in float64 with the same parameters."""
    theirs, mine = (getattr(where, kind)(I, H, dtype=torch.float64, **options) for where in (torch.nn, ours))
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def some(*shape: int) -> Any:
    """Draw a tensor."""
    return torch.rand(shape, dtype=torch.float64) - 0.5


def loss_of(module: Any) -> Callable[..., Any]:
    """Return a loss as a function of a module's parameters, its input and, if given, h of hx."""

    def loss(parameters: Any, x: Any, h: Any = None) -> Any:
        hx = h if h is None or module.mode != "LSTM" else (h, 2 * h)
        output, last = torch.func.functional_call(module, parameters, (x, hx))
        return output.square().sum() + sum(state.sin().sum() for state in (last if isinstance(last, tuple) else [last]))

    return loss


def detached(module: Any) -> Any:
    """Return a module's parameters as tensors that do not require gradients."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def close(got: Any, wanted: Any) -> None:
    """Compare two structures of tensors."""
    found, expected = (torch.utils._pytree.tree_leaves(value) for value in (got, wanted))
    arrays = [{str(n): tensor.detach().numpy() for n, tensor in enumerate(each)} for each in (found, expected)]
    assert_close(*arrays, TORCH_IN_FLOAT64)


def stacked(results: list[Any]) -> Any:
    """Stack equal structures of tensors."""
    return torch.utils._pytree.tree_map(lambda *same: torch.stack(same), *results)


@every_kind
def test_grad_vjp_and_jacrev(kind: str) -> None:
    """Reverse-mode transforms give the gradients of torch's module."""
    theirs, mine = pair(kind, num_layers=2, bidirectional=True)
    x, h, parameters = some(T, N, I), some(4, N, H), detached(theirs)
    wanted, got = (torch.func.grad(loss_of(module), (0, 1, 2))(parameters, x, h) for module in (theirs, mine))
    close(got, wanted)
    close(torch.func.vjp(lambda x: loss_of(mine)(parameters, x, h), x)[1](torch.ones((), dtype=x.dtype))[0], wanted[1])
    close(
        torch.func.jacrev(lambda x: mine(x)[0])(x),
        torch.autograd.functional.jacobian(lambda x: theirs(x)[0], x),
    )


@every_kind
def test_gradients_at_two_levels(kind: str) -> None:
    """A loss differentiated by torch.func.grad in the input can be differentiated in the parameters, too."""
    found = []
    for module in pair(kind):
        loss = lambda a, x, module=module: loss_of(module)(dict(module.named_parameters()), a * x)  # noqa: E731
        a, x = torch.full((), 0.5, dtype=torch.float64), torch.linspace(-1, 1, T * N * I, dtype=torch.float64)
        _, value = torch.func.grad_and_value(loss, 1)(a, x.view(T, N, I))
        inside = torch.func.grad(lambda a, x=x, loss=loss: torch.func.grad_and_value(loss, 1)(a, x.view(T, N, I))[1])(a)
        found.append([inside, *torch.autograd.grad(value, list(module.parameters()))])
    close(found[1], found[0])


@every_kind
@pytest.mark.parametrize("create_graph", [False, True])
def test_batched_gradients(kind: str, *, create_graph: bool) -> None:
    """Gradients of many upstream gradients at once equal those computed one by one."""
    _, mine = pair(kind, bidirectional=True)
    x = some(T, N, I).requires_grad_()
    inputs = [x, *mine.parameters()]
    output, _ = mine(x)
    above = some(4, *output.shape)
    wanted = stacked([torch.autograd.grad(output, inputs, each, retain_graph=True) for each in above])
    close(torch.autograd.grad(output, inputs, above, is_grads_batched=True, create_graph=create_graph), wanted)


@every_kind
def test_jacobian_in_one_pass(kind: str) -> None:
    """`jacobian(vectorize=True)` equals `jacobian`."""
    theirs, mine = pair(kind)
    x = some(T, N, I)
    wanted = torch.autograd.functional.jacobian(lambda x: theirs(x)[0], x)
    close(torch.autograd.functional.jacobian(lambda x: mine(x)[0], x, vectorize=True), wanted)


@every_kind
@pytest.mark.parametrize(
    ("in_dims", "sizes"),
    [
        ((None, 0, None), (5, T, N, I)),
        ((None, 2, 1), (T, N, 5, I)),
        ((0, None, None), (T, N, I)),
        ((0, 0, 2), (5, T, N, I)),
    ],
    ids=["inputs", "inputs and states", "weights", "all"],
)
def test_vmap(kind: str, in_dims: tuple[int | None, ...], sizes: tuple[int, ...]) -> None:
    """A map over inputs, states or weights equals a loop, and so do its gradients."""
    theirs, mine = pair(kind, bidirectional=True)
    x, dim = some(*sizes), in_dims[2]
    h = None if dim is None else some(2, N, H).unsqueeze(dim).repeat_interleave(5, dim)
    parameters = detached(mine)
    if in_dims[0] == 0:
        parameters = {name: some(5, *parameter.shape) for name, parameter in parameters.items()}
    leaves = [t.requires_grad_() for t in (*parameters.values(), x, h) if t is not None]

    def each(number: int) -> list[Any]:
        given = [parameters, x, h]
        for place, axis in enumerate(in_dims):
            if axis is not None:
                given[place] = torch.utils._pytree.tree_map(lambda t, a=axis: t.select(a, number), given[place])
        return given

    wanted = torch.stack([loss_of(theirs)(*each(number)) for number in range(5)])
    got = torch.vmap(loss_of(mine), in_dims)(parameters, x, h)
    close(got, wanted)
    upstream = some(5)
    gradients = torch.autograd.grad(wanted, leaves, upstream)
    close(torch.autograd.grad(got, leaves, upstream), gradients)
    of_map = torch.func.grad(lambda p: (torch.vmap(loss_of(mine), in_dims)(p, x, h) * upstream).sum())
    close(list(of_map(parameters).values()), gradients[: len(parameters)])


@every_kind
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "both"])
@pytest.mark.parametrize("heads", [1, 3])
def test_an_ensemble_is_a_call_for_each_layer(kind: str, heads: int, *, bidirectional: bool) -> None:
    """Examples with weights of their own are the heads of one layer, also of layers that have heads."""
    options = {"heads": heads, "input_heads": 1 if bidirectional else heads}
    modules = [
        getattr(ours, kind)(3, 6, 3, bidirectional=bidirectional, dtype=torch.float64, **options) for _ in range(5)
    ]
    parameters, _ = torch.func.stack_module_state(modules)
    x = some(T, N, 3)
    losses = torch.stack([loss_of(module)(dict(module.named_parameters()), x) for module in modules])
    upstream = some(5)
    wanted = torch.autograd.grad((losses * upstream).sum(), [each for one in modules for each in one.parameters()])
    count = len(wanted) // 5
    each = [torch.stack([wanted[example * count + number] for example in range(5)]) for number in range(count)]
    device = vkrnn.default_device()
    before = device.statistics()["calls"]
    got = torch.vmap(loss_of(modules[0]), (0, None))(parameters, x)
    gradients = torch.autograd.grad((got * upstream).sum(), list(parameters.values()))
    assert device.statistics()["calls"] - before == 2 * 3, "a forward call and a gradient call of each layer"
    close(got, losses)
    close(gradients, each)


@every_kind
def test_packed_sequences(kind: str) -> None:
    """A map over packed rows agrees with torch's eager module, also in gradients through the last states alone.

    PyTorch's own packed modules support no transform.
    """
    theirs, mine = pair(kind, bidirectional=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(some(T, 3, I), [3, 2, 1])

    def last_of(module: Any) -> Callable[[Any], Any]:
        def last(data: Any) -> Any:
            h = module(packed._replace(data=data))[1]
            return (h[0] + 2 * h[1] if kind == "LSTM" else h).sin().sum()

        return last

    rows = some(4, *packed.data.shape).requires_grad_()
    each = torch.stack([last_of(theirs)(one) for one in rows])
    (wanted,) = torch.autograd.grad(each.sum(), rows)
    rows = rows.detach()
    close(torch.vmap(last_of(mine))(rows), each)
    close(torch.func.grad(last_of(mine))(rows[0]), wanted[0])
    close(torch.vmap(torch.func.grad(last_of(mine)))(rows), wanted)


@every_kind
def test_gradients_of_each_sample(kind: str) -> None:
    """`vmap(grad)` gives the gradients of each sample, also in nested maps."""
    theirs, mine = pair(kind)
    x, parameters = some(2, 3, T, N, I), detached(mine)
    gradients = torch.func.grad(loss_of(mine))
    wanted = stacked([stacked([torch.func.grad(loss_of(theirs))(parameters, one) for one in row]) for row in x])
    inner = torch.vmap(gradients, (None, 0))
    close(torch.vmap(inner, (None, 0))(parameters, x), wanted)


@every_kind
@pytest.mark.parametrize("change", [lambda y: y.relu_(), lambda y: y.detach().zero_(), lambda y: y[0].mul_(2)])
def test_output_changed_in_place(kind: str, change: Callable[[Any], Any]) -> None:
    """In-place changes of the output give the gradients of out-of-place operations."""
    theirs, mine = pair(kind, bidirectional=True)
    x, found = some(T, N, I), []
    for module in (theirs, mine):
        output, _ = module(x)
        change(output)
        found.append(torch.autograd.grad(output.square().sum(), list(module.parameters())))
    close(found[1], found[0])


@every_kind
def test_output_changed_in_a_checkpoint(kind: str) -> None:
    """In-place changes work in checkpoints, which run the forward pass again."""
    _, mine = pair(kind)
    x = some(T, N, I).requires_grad_()
    run = lambda x: mine(x)[0].relu_()  # noqa: E731
    again = lambda x: torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)  # noqa: E731
    got, wanted = (torch.autograd.grad(function(x).sum(), [x, *mine.parameters()]) for function in (again, run))
    close(got, wanted)


def test_saved_output_can_be_freed() -> None:
    """If hooks move saved tensors elsewhere, the graph holds no output of a GRU."""
    _, mine = pair("GRU")
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.data_ptr()) or t.clone(), lambda t: t):
        output, _ = mine(some(T, N, I))
    assert output.data_ptr() in packed
    kept = output.grad_fn.counter
    assert kept.numel() == 0
    assert kept.data_ptr() != output.data_ptr()
