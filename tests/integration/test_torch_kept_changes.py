"""Weights that change after a module has packed them: the module notices and never uses outdated ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import require

torch = require("torch")
from kept_modules import a_module, assert_same, plain, warm  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_seed", "no_gradients")


def _replace_parameter(module: Any) -> None:
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0 + 1)


def _swap_parameters(module: Any) -> None:
    module.weight_hh_l0, module.weight_hh_l1 = module.weight_hh_l1, module.weight_hh_l0


def _step(**options: Any) -> Callable[[Any], None]:
    def step(module: Any) -> None:
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, **options)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    return step


CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda module: module.weight_ih_l1.mul_(2),
    "one element": lambda module: module.weight_ih_l1[3, 4].add_(1),
    "detached": lambda module: module.bias_hh_l0.detach().mul_(2),
    "view": lambda module: module.weight_ih_l0.view(-1)[7:9].fill_(1),
    "state_dict": lambda module: module.state_dict()["weight_hh_l1"].mul_(2),
    "load_state_dict": lambda module: module.load_state_dict(a_module("LSTM", num_layers=2).state_dict()),
    "load_state_dict, assign": lambda module: module.load_state_dict(
        a_module("LSTM", num_layers=2).state_dict(), assign=True
    ),
    "another parameter": _replace_parameter,
    "swapped parameters": _swap_parameters,
    "data": lambda module: setattr(module.weight_hh_l0, "data", module.weight_hh_l0 * 2),
    "data in place": lambda module: module.weight_hh_l0.data.mul_(2),
    "data of a bias in place": lambda module: module.bias_ih_l1.data[5:6].add_(1),
    "data of a row in place": lambda module: module.weight_hh_l1.data[29].zero_(),
    "data of a column in place": lambda module: module.weight_hh_l1.data[:, 17].zero_(),
    "numpy": lambda module: module.weight_hh_l0.detach().numpy().__imul__(2),
    "vector_to_parameters": lambda module: torch.nn.utils.vector_to_parameters(
        torch.rand(sum(p.numel() for p in module.parameters())), module.parameters()
    ),
    "reset_parameters": lambda module: module.reset_parameters(),
    "optimizer": _step(),
    "optimizer, foreach": _step(foreach=True),
    "optimizer, fused": _step(fused=True),
    "parametrized": lambda module: torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0"),
    "inference mode": lambda module: _in_inference_mode(module),
}


def _in_inference_mode(module: Any) -> None:
    with torch.inference_mode():
        module.weight_hh_l0.mul_(2)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(change: str, runs: list[Any]) -> None:
    """Weights changed in any way are packed again."""
    module, x = a_module("LSTM", num_layers=2), torch.rand(3, 1, 24)
    before = warm(module, x)
    assert len(runs) == 2
    CHANGES[change](module)
    got = module(x)
    assert not torch.equal(got[0], before[0]) or change == "parametrized"
    wanted = torch.nn.LSTM(24, 40, num_layers=2)
    for name, _ in wanted.named_parameters():
        getattr(wanted, name).copy_(getattr(module, name))
    np.testing.assert_allclose(got[0], wanted(x)[0], atol=1e-5)
    assert_same(warm(module, x), got)


def test_a_transposed_matrix() -> None:
    """`data` can be another view of the same memory, which has the same address and bytes."""
    module, x = a_module("RNN", 40), torch.rand(3, 1, 40)
    before = warm(module, x)
    module.weight_ih_l0.data = module.weight_ih_l0.data.t()
    got = module(x)
    assert not torch.equal(got[0], before[0])
    assert_same(got, plain(module, x))


def test_the_same_bytes_in_another_dtype(runs: list[Any]) -> None:
    """`data` can give the same bytes another meaning."""
    module, x = a_module("GRU").half(), torch.rand(3, 1, 24)
    warm(module, x.half())
    assert len(runs) == 2
    for parameter in module.parameters():
        parameter.data = parameter.data.view(torch.bfloat16)
    assert_same(module(x.bfloat16()), plain(module, x.bfloat16()))


def test_inference_tensors_and_shared_memory(runs: list[Any]) -> None:
    """PyTorch counts no changes of inference tensors, nor those that other processes make."""
    with torch.inference_mode():
        of_inference = copy.deepcopy(a_module("LSTM"))
    x = torch.rand(3, 1, 24)
    for module in (of_inference, a_module("LSTM").share_memory()):
        runs.clear()
        before = warm(module, x)
        assert len(runs) == 2
        with torch.inference_mode():
            module.weight_hh_l0[3, 4] += 1
            got = module(x)
        assert not torch.equal(got[0], before[0])
        assert_same(got, plain(module, x))


def test_another_dtype(runs: list[Any]) -> None:
    """`to` changes the data of the parameters."""
    module, x = a_module("GRU"), torch.rand(3, 1, 24)
    warm(module, x)
    module.double()
    assert_same(warm(module, x.double()), plain(module, x.double()))
    assert len(runs) == 4


def test_functional_call() -> None:
    """It replaces the parameters for one call."""
    module, x = a_module("GRU"), torch.rand(3, 1, 24)
    before = warm(module, x)
    doubled = {name: 2 * parameter for name, parameter in module.named_parameters()}
    got = torch.func.functional_call(module, doubled, (x,))
    module_2 = copy.deepcopy(module)
    for parameter in module_2.parameters():
        parameter.mul_(2)
    assert_same(got, module_2(x))
    assert_same(module(x), before)
