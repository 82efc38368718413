"""Which calls of the modules go through PyTorch's operators, and which do without."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrize  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import vkrnn.torch as ours  # noqa: E402
from vkrnn.torch import _autograd, _recurrent  # noqa: E402


class Watching(TorchDispatchMode):
    """A mode that sees all operators, and changes nothing."""

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Call the operator."""
        return function(*given, **(named or {}))


class Subclass(torch.Tensor):
    """A tensor with methods of its own."""


@pytest.fixture(name="called")
def _called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the operators that modules and gradients call from now on."""
    called: list[str] = []

    def watch(module: Any, name: str) -> None:
        operator = getattr(module, name)

        def watched(*given: Any) -> Any:
            called.append(name)
            return operator(*given)

        monkeypatch.setattr(module, name, watched)

    watch(_recurrent, "network")
    watch(_autograd, "network_backward")
    return called


def test_calls_of_plain_tensors_need_none(called: list[str]) -> None:
    """Calls of plain tensors and their gradients do not use the operators, but have the same bits."""
    module, x = ours.LSTM(3, 4), torch.randn(5, 2, 3)
    with torch.no_grad():
        module(x)
    found = torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))
    assert called == []
    with Watching():
        wanted = torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))
    assert called == ["network", "network_backward"]
    assert all(map(torch.equal, found, wanted))


def test_subclasses_and_gradients_of_gradients_need_them(called: list[str]) -> None:
    """The operators handle these calls."""
    module, x = ours.GRU(3, 4), torch.randn(5, 2, 3)
    module(x.as_subclass(Subclass))
    assert called == ["network"]
    output = module(x.requires_grad_())[0]
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    assert "network_backward" in called
    gradient.sum().backward()
    assert module.weight_hh_l0.grad is not None


def test_negated_tensors_need_them(called: list[str]) -> None:
    """PyTorch negates an imaginary part of a conjugate only when something reads it."""
    module, x = ours.RNN(3, 4), torch.randn(5, 2, 3)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            assert torch.equal(module(torch._neg_view(-x))[0], module(x)[0])
    output, _ = module(x)
    ones = torch.ones_like(output)
    weights = list(module.parameters())
    wanted = torch.autograd.grad(output, weights, ones, retain_graph=True)
    found = torch.autograd.grad(output, weights, torch._neg_view(-ones))
    assert all(map(torch.equal, found, wanted))
    assert called == ["network", "network", "network_backward"]


def test_a_parametrized_module_has_gradients() -> None:
    """Its weights are computed, so it has no parameters of its own."""

    class Twice(torch.nn.Module):
        """Doubles."""

        def forward(self, given: Any) -> Any:
            """Return twice the argument."""
            return 2 * given

    module, x, found = ours.GRU(3, 4), torch.randn(5, 2, 3), []
    for name, _ in list(module.named_parameters()):
        parametrize.register_parametrization(module, name, Twice())
    for watching in (nullcontext(), Watching()):
        with watching:
            found.append(torch.autograd.grad(module(x)[0].sin().sum(), list(module.parameters())))
    assert len(found[0]) == 4
    assert all(map(torch.equal, *found))
