"""Biases that are changed in place between the forward and the backward pass, as PyTorch's RNN and GRU allow."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

import vkrnn
from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402

T, N, I, H = 4, 3, 2, 5
every_kind = pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"


@pytest.fixture(autouse=True)
def _seed(torch_seed: None) -> None:
    """Draw the same numbers each time."""


def some(*shape: int) -> Any:
    """Draw a tensor that requires gradients."""
    return (torch.rand(shape, dtype=torch.float64) - 0.5).requires_grad_()


def change(tensor: Any) -> None:
    """Add one to all elements, as an optimizer changes a parameter."""
    with torch.no_grad():
        tensor.add_(1)


@every_kind
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_modules(kind: str, layers: int, *, bidirectional: bool) -> None:
    """The gradients are those of the forward pass, in both directions and all layers."""
    theirs = getattr(torch.nn, kind)(I, H, layers, bidirectional=bidirectional, dtype=torch.float64)
    mine = getattr(ours, kind)(I, H, layers, bidirectional=bidirectional, dtype=torch.float64)
    mine.load_state_dict(theirs.state_dict())
    source, found = some(T, N, I), []
    for module in (theirs, mine):
        inputs = [source, *module.parameters()]
        output, _ = module(source)
        for name, parameter in module.named_parameters():
            if name.startswith("bias"):
                change(parameter)
        found.append(torch.autograd.grad(output.square().sum(), inputs))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_a_gru_with_reset_before() -> None:
    """Neither bias is read."""
    gru = ours.GRU(I, H, reset_after=False, dtype=torch.float64)
    source, found = some(T, N, I), []
    for changes in (False, True):
        output, _ = gru(source)
        for bias in (gru.bias_ih_l0, gru.bias_hh_l0) if changes else ():
            change(bias)
        found.append(torch.autograd.grad(output.square().sum(), [source, *gru.parameters()]))
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


@every_kind
@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l0", "source", "peephole_l0"])
def test_what_is_read_must_not_change(kind: str, name: str) -> None:
    """Changes of other tensors are an error, as in PyTorch."""
    if name.startswith("peephole") and kind != "LSTM":
        return
    module = getattr(ours, kind)(I, H, dtype=torch.float64, **({"peephole": True} if kind == "LSTM" else {}))
    source = some(T, N, I)
    output, _ = module(source)
    change(source if name == "source" else getattr(module, name))
    with pytest.raises(RuntimeError, match=MODIFIED):
        output.sum().backward()


def test_output_and_bias_changed() -> None:
    """A GRU would need the old bias to compute its output again."""
    gru = ours.GRU(I, H, dtype=torch.float64)
    for bias in (gru.bias_ih_l0, gru.bias_hh_l0):
        source = some(T, N, I)
        wanted = torch.autograd.grad(gru(source)[0].relu().sum(), source)
        output, _ = gru(source)
        output.relu_()
        change(bias)
        if bias is gru.bias_ih_l0:
            with pytest.raises(RuntimeError, match=r"^\[vkrnn.torch\] a GRU's output and a bias were both changed in"):
                output.sum().backward()
        else:
            assert torch.equal(torch.autograd.grad(output.sum(), source)[0], wanted[0])


CELLS: dict[str, tuple[int, list[Any]]] = {
    "single_gate_rnn": (1, [vkrnn.SingleGateRNNDescriptor(activation="tanh")]),
    "lstm": (4, [vkrnn.LSTMDescriptor()]),
    "gru": (3, [vkrnn.GRUDescriptor(), vkrnn.GRUDescriptor(reset_after=True, reset_gate_first=True)]),
}


@pytest.mark.parametrize("cell", CELLS)
def test_functions(cell: str) -> None:
    """Biases may change, and the weights, states and peepholes may not."""
    G, descriptors = CELLS[cell]
    given = {
        "source": some(T, N, I),
        "recurrent_weight": some(G * H, H),
        "input_weight": some(G * H, I),
        "bias": some(G * H),
        "init_state": some(N, H),
        **{"lstm": {"peephole": some(G * H), "init_cell": some(N, H)}, "gru": {"secondary_bias": some(H)}}.get(
            cell, {}
        ),
    }
    for descriptor in descriptors:
        call = lambda how=descriptor: getattr(ours, cell)(**given, descriptor=how).output.square().sum()  # noqa: E731
        wanted = torch.autograd.grad(call(), given.values())
        for name, tensor in given.items():
            loss = call()
            before = tensor.detach().clone()
            change(tensor)
            if name.endswith("bias"):
                found = torch.autograd.grad(loss, given.values())
                assert all(torch.equal(*both) for both in zip(found, wanted, strict=True)), name
            else:
                with pytest.raises(RuntimeError, match=MODIFIED):
                    loss.backward()
            with torch.no_grad():
                tensor.copy_(before)


@pytest.mark.parametrize(
    ("kind", "bias"), list(itertools.product(["RNN", "GRU", "LSTM"], ["bias_ih_l0", "bias_hh_l0"]))
)
def test_second_derivatives_of_a_bias(kind: str, bias: str) -> None:
    """Those with respect to a bias alone are PyTorch's, although its numbers are not saved."""
    module = getattr(ours, kind)(I, H, dtype=torch.float64).requires_grad_(False)  # noqa: FBT003
    x, found = some(T, N, I).detach(), []
    for each in (module, ours.revert(copy.deepcopy(module))):
        leaf = getattr(each, bias).requires_grad_()
        (gradient,) = torch.autograd.grad(each(x)[0].square().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), leaf)[0])
    torch.testing.assert_close(*found, rtol=0, atol=TORCH_IN_FLOAT64)
