"""Modules with options under torch.func, torch.compile and torch.export, with meta tensors and in-place changes."""

from __future__ import annotations

import io
from typing import Any

import pytest

from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
from torch_modules import LIVELY, H, I, lively  # noqa: E402
from vkrnn.torch import _network  # noqa: E402

# PyTorch's own affairs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
T, N = 4, 3
every_kind = pytest.mark.parametrize("kind", LIVELY)


@every_kind
def test_transforms(kind: str) -> None:
    """torch.func has the gradients of autograd; maps over inputs and weights are loops."""
    module = lively(kind, 2, bidirectional=True, dtype=torch.float64)
    many = torch.rand(3, T, N, I, dtype=torch.float64)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

    wanted = [torch.autograd.grad(loss(dict(module.named_parameters()), x), list(module.parameters())) for x in many]
    found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, many)
    for each, gradients in zip(found.values(), zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(each, torch.stack(gradients), rtol=0, atol=TORCH_IN_FLOAT64)
    stacked = {name: torch.stack([value, 0.5 * value, -value]) for name, value in parameters.items()}
    each = [loss({name: value[n] for name, value in stacked.items()}, many[0]) for n in range(3)]
    torch.testing.assert_close(torch.vmap(loss, (0, None))(stacked, many[0]), torch.stack(each))


@every_kind
def test_output_changed_in_place(kind: str) -> None:
    """The output may be changed in place, with recurrent dropout, too."""
    module = lively(kind, bidirectional=True, recurrent_dropout=0.5, dtype=torch.float64)
    x = torch.rand(T, N, I, dtype=torch.float64)
    found = []
    for change in (torch.sin, torch.sin_):
        torch.manual_seed(4)
        found.append(torch.autograd.grad(change(module(x)[0]).sum(), list(module.parameters())))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TORCH_IN_FLOAT64)


@every_kind
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(kind: str, backend: str) -> None:
    """A module with options compiles as a whole, with its gradients and masks."""
    module = lively(kind, 2, bidirectional=True, batch_first=True, recurrent_dropout=0.5)
    x = torch.rand(N, T, I).requires_grad_()
    found = []
    for run in (module, torch.compile(module, fullgraph=True, backend=backend)):
        torch.manual_seed(2)
        output, _ = run(x)
        found.append([output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])])
    torch._dynamo.reset()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_kind
def test_export(kind: str) -> None:
    """An exported program gives the same numbers, also for other numbers of steps and rows."""
    module = lively(kind, 2, bidirectional=True).eval()
    sizes = {0: torch.export.Dim("steps", min=2, max=50), 1: torch.export.Dim("rows", min=2, max=50)}
    with torch.no_grad():
        exported = torch.export.export(module, (torch.rand(T, N, I),), dynamic_shapes=(sizes,))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    x = torch.rand(9, 2, I)
    assert torch.equal(torch.export.load(file).module()(x)[0], module(x)[0])
    ((mode, *_),) = [node.args[-3:] for node in exported.graph.nodes if node.target is _network.network]
    name, *options = mode.split()
    assert name == module.mode
    assert set(options) == {f"{name}={value}" for name, value in LIVELY[kind].items() if name != "peephole"}


@every_kind
def test_meta_tensors(kind: str) -> None:
    """Meta tensors give shapes."""
    module = lively(kind, device="meta", recurrent_dropout=0.5)
    assert module(torch.empty(T, N, I, device="meta"))[0].shape == (T, N, H)
