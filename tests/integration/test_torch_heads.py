"""Modules with heads: PyTorch's modules side by side, as in DeepFilterNet's grouped GRU, are one module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vkrnn  # noqa: E402
from comparison import assert_close  # noqa: E402
from tolerances import TORCH_IN_FLOAT64  # noqa: E402
from vkrnn import torch as ours  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")
T, N, I, H, HEADS = 6, 3, 8, 12, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def grouped(kind: str, **options: Any) -> tuple[Any, list[Any]]:
    """Return a module with heads, and PyTorch's modules that its heads are, with the same parameters."""
    groups = [getattr(torch.nn, kind)(I // HEADS, H // HEADS, dtype=torch.float64, **options) for _ in range(HEADS)]
    module = getattr(ours, kind)(I, H, heads=HEADS, input_heads=HEADS, dtype=torch.float64, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parts = [getattr(group, name).unflatten(0, (GATES[kind], -1)) for group in groups]
            parameter.copy_(torch.stack(parts, 1).flatten(0, 2))
    return module, groups


@pytest.mark.parametrize("kind", KINDS)
def test_a_grouped_module_is_its_groups(kind: str) -> None:
    """Outputs, last states and gradients are those of PyTorch's modules, each on its part of the features."""
    module, groups = grouped(kind)
    names = [name for name, _ in module.named_parameters()]
    x = torch.rand(T, N, I, dtype=torch.float64).requires_grad_()
    weigh = torch.rand(T, N, H, dtype=torch.float64)
    results = [group(part) for group, part in zip(groups, x.split(I // HEADS, -1), strict=True)]
    ends = [torch.cat(each, -1) for each in zip(*(states(last) for _, last in results), strict=True)]
    output = torch.cat([part for part, _ in results], -1)
    d_x, *blocks = torch.autograd.grad(
        (output * weigh).sum(), [x, *(getattr(group, name) for name in names for group in groups)]
    )
    parts = [each.unflatten(0, (GATES[kind], -1)) for each in blocks]
    d_parameters = [torch.stack(parts[at : at + HEADS], 1).flatten(0, 2) for at in range(0, len(parts), HEADS)]
    found, last = module(x)
    gradients = torch.autograd.grad((found * weigh).sum(), [x, *module.parameters()])
    assert_close(
        named(names, found, states(last), gradients),
        named(names, output, ends, [d_x, *d_parameters]),
        TORCH_IN_FLOAT64,
    )


def states(last: Any) -> list[Any]:
    return list(last) if isinstance(last, tuple) else [last]


def named(names: list[str], output: Any, ends: list[Any], gradients: Any) -> dict[str, Any]:
    """Return arrays by name."""
    of_states = {f"state {number}": each for number, each in enumerate(ends)}
    tensors = {"output": output, **of_states, **dict(zip(["x", *names], gradients, strict=True))}
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters(kind: str) -> None:
    """Matrices are the blocks. Parameters are drawn as those of a module with the units of a head."""
    torch.manual_seed(5)
    module = getattr(ours, kind)(300, 200, 2, heads=50, input_heads=100, bidirectional=True)
    rows = GATES[kind] * 200
    shapes = {"weight_ih_l0": 3, "weight_ih_l1": 4, "weight_hh_l0": 4, "weight_hh_l1_reverse": 4}
    assert {name: tuple(getattr(module, name).shape) for name in shapes} == {
        name: (rows, columns) for name, columns in shapes.items()
    }
    with torch.no_grad():
        for parameter in module.parameters():
            assert float(parameter.abs().max()) <= 0.5
        assert float(module.weight_hh_l0.abs().max()) > 0.49
    assert repr(module) == f"vkrnn.torch.{kind}(300, 200, num_layers=2, bidirectional=True, heads=50, input_heads=100)"
    assert list(module.state_dict()) == list(getattr(torch.nn, kind)(2, 2, 2, bidirectional=True).state_dict())
    other = getattr(ours, kind)(300, 200, 2, heads=50, input_heads=100, bidirectional=True)
    other.load_state_dict(module.state_dict())
    x = torch.rand(2, 3, 300)
    for again in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(again(x)[0], module(x)[0])
    with pytest.raises(RuntimeError, match="size mismatch for weight_hh_l0"):
        getattr(ours, kind)(300, 200, 2, bidirectional=True).load_state_dict(module.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_without_gradients(kind: str) -> None:
    """Kept weights, converted layers and streams compute the same."""
    module, _ = grouped(kind)
    x = torch.rand(T, N, I, dtype=torch.float64)
    wanted, _ = module(x)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(module(x)[0], wanted, rtol=1e-12, atol=1e-12)
        (layer,) = vkrnn.convert.from_torch(module)
        np.testing.assert_allclose(layer(x.numpy()).output, wanted.numpy(), rtol=1e-12, atol=1e-12)
        again = vkrnn.convert.to_torch(layer)
        assert repr(again) == repr(module)
        torch.testing.assert_close(again(x)[0], wanted, rtol=1e-12, atol=1e-12)
        stream = vkrnn.stream(layer, batch=N)
        rows = [stream.step(row.numpy()) for row in x]
    np.testing.assert_array_equal(np.stack(rows), layer(x.numpy()).output)


def test_mistakes() -> None:
    """Heads that do not divide the units or the features are refused, and so is what PyTorch's modules lack."""
    for options, message in (
        ({"heads": 5}, "[vkrnn.torch.GRU] heads: expected a divisor of hidden_size = 12, got 5"),
        ({"heads": 0}, "[vkrnn.torch.GRU] heads: expected 1 to 2147483647, got 0"),
        ({"input_heads": 6}, "[vkrnn.torch.GRU] input_heads: expected a divisor of input_size = 8, got 6"),
        ({"input_heads": 8}, "[vkrnn.torch.GRU] input_heads: expected a divisor of hidden_size = 12, got 8"),
    ):
        with pytest.raises(ValueError, match="heads") as caught:
            ours.GRU(I, H, **options)
        assert str(caught.value) == message
    with pytest.raises(TypeError) as refused:
        ours.GRU(I, H, heads=2.0)
    assert str(refused.value) == "[vkrnn.torch.GRU] heads: expected an integer, got 2.0 (float)"
    with pytest.raises(NotImplementedError) as only:
        ours.revert(ours.GRU(I, H, heads=4))
    assert str(only.value) == "[vkrnn.torch.revert] heads: torch.nn.GRU supports only 1, got 4"
