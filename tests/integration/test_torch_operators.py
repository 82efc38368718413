"""The operators of vkrnn.torch pass torch's own checks, its compiler and its exporter."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from vkrnn.convert._torch_layout import GATES  # noqa: E402
from vkrnn.torch import _network  # noqa: E402

T, N, I, H = 4, 3, 2, 5
CASES = [(True, True, False, False), (False, False, False, False), (True, True, True, False), (True, True, False, True)]
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
every_mode = pytest.mark.parametrize("mode", GATES)
both_ways = pytest.mark.parametrize("D", [1, 2], ids=["one way", "bidirectional"])
every_case = pytest.mark.parametrize(
    ("bias", "hx", "lengths", "options"),
    CASES,
    ids=["all of PyTorch's", "nothing optional", "with lengths", "with options"],
)
# torch checks an operator's structure. RNN_RELU has that of RNN_TANH, and each argument and direction is in
# one of these.
every_structure = pytest.mark.parametrize(
    ("D", "bias", "hx", "lengths", "options"),
    [
        (1, True, True, False, False),
        (2, False, False, False, False),
        (2, True, True, True, False),
        (2, True, True, False, True),
    ],
    ids=["one way, all of PyTorch's", "bidirectional, nothing optional", "bidirectional, with lengths", "with options"],
)
every_operator = pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
# Warnings of PyTorch's compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


OPTIONS = {
    "LSTM": " output_peephole_new_cell=True clip=0.9",
    "GRU": " reset_after=False flip_z=True clip=0.9",
    "RNN_TANH": " activation=sigmoid",
    "RNN_RELU": " activation=none",
}


def draw(
    mode: str, D: int, *, bias: bool, hx: bool, lengths: bool, options: bool, layers: int = 2, trained: int = 0
) -> list[Any]:
    """Return the arguments of the operator `network`. They require gradients, but for those of frozen layers."""
    torch.manual_seed(0)

    def some(*shape: int, requires: bool = True) -> Any:
        return torch.empty(shape, dtype=torch.float64).uniform_(-0.7, 0.7).requires_grad_(requires)

    rows = D * GATES[mode] * H
    weights = []
    for layer in range(layers):
        shapes = [(rows, D * H if layer else I), (rows, H), *[(rows,)] * (2 * bias + (options and mode == "LSTM"))]
        weights += [some(*shape, requires=layer >= trained) for shape in shapes]
    first = trained == 0
    state = layers * D, N, H
    h_0, c_0 = (
        some(*state, requires=first) if hx else None,
        some(*state, requires=first) if hx and mode == "LSTM" else None,
    )
    ends = torch.tensor([4, 1, 3]) if lengths else None
    masks = [some(1, N, D * H, requires=False) for _ in range(layers)] if options else []
    between = [some(T, N, D * H, requires=False) for _ in range(layers - 1)] if options else []
    mode += OPTIONS[mode] if options else ""
    return [some(T, N, I, requires=first), weights, h_0, c_0, masks, between, ends, mode, layers, trained]


@every_operator
@every_structure
@pytest.mark.parametrize("trained", [0, 1, 2])
def test_opcheck_forward(
    mode: str, D: int, *, bias: bool, hx: bool, lengths: bool, options: bool, trained: int
) -> None:
    """Schema, fake tensors, autograd and dispatch of the forward operator pass torch's checks."""
    given = draw(mode, D, bias=bias, hx=hx, lengths=lengths, options=options, trained=trained)
    torch.library.opcheck(_network.network, given)


@every_operator
@every_structure
def test_opcheck_backward(mode: str, D: int, *, bias: bool, hx: bool, lengths: bool, options: bool) -> None:
    """The gradient operator, which has no gradients itself, passes PyTorch's opcheck."""
    given = draw(mode, D, bias=bias, hx=hx, lengths=lengths, options=options)
    with torch.no_grad():
        output, h_n, c_n, kept = _network.network(*given)
    above = [torch.rand_like(output), torch.rand_like(h_n), torch.rand_like(c_n) if mode == "LSTM" else None]
    again = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)
    torch.library.opcheck(_network.network_backward, [*above, output if mode == "GRU" else None, kept, *again])


@every_mode
@both_ways
@every_case
def test_gradcheck(mode: str, D: int, *, bias: bool, hx: bool, lengths: bool, options: bool) -> None:
    """Gradients agree with finite differences in float64."""
    source, weights, *states, masks, between, ends, mode, layers, trained = draw(
        mode, D, bias=bias, hx=hx, lengths=lengths, options=options
    )

    def function(source: Any, h_0: Any, c_0: Any, *weights: Any) -> tuple[Any, ...]:
        given = source, weights, h_0, c_0, masks, between, ends, mode, layers, trained
        return tuple(_network.network(*given)[: 3 if mode.startswith("LSTM") else 2])

    assert torch.autograd.gradcheck(function, (source, *states, *weights))


@every_kind
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(kind: str, backend: str) -> None:
    """A module and its gradients compile without graph breaks."""
    module = getattr(ours, kind)(I, H, 2, bidirectional=True, batch_first=True)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    found = []
    for run in (module, compiled):
        x = torch.linspace(-1, 1, N * T * I).reshape(N, T, I).requires_grad_()
        output, _ = run(x)
        found.append([output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_kind
def test_compile_without_the_flag(kind: str) -> None:
    """Where torch's compiler skips recurrent modules, ours run uncompiled."""
    module = getattr(ours, kind)(I, H)
    x = torch.rand(T, N, I)
    compiled = torch.compile(lambda given: module(given)[0] + 1, backend="eager")
    assert torch.equal(compiled(x), module(x)[0] + 1)
    torch._dynamo.reset()


@every_kind
def test_export(kind: str) -> None:
    """An exported module runs with other T and N. Exported without gradients, it saves no gates."""
    module = getattr(ours, kind)(I, H, 2).eval()
    sizes = {0: torch.export.Dim("steps", min=2, max=50), 1: torch.export.Dim("rows", min=2, max=50)}
    with torch.no_grad():
        exported = torch.export.export(module, (torch.rand(T, N, I),), dynamic_shapes=(sizes,))
    other = torch.rand(9, 2, I)
    assert torch.equal(exported.module()(other)[0], module(other)[0])
    calls = [node for node in exported.graph.nodes if node.target is _network.network]
    assert [node.args[-3:] for node in calls] == [(module.mode, 2, 2)]


def test_import_of_the_package_needs_neither() -> None:
    """`import vkrnn` imports neither torch nor Keras, though `vkrnn.convert` is available."""
    program = "import sys, vkrnn; vkrnn.convert.from_torch; print({'torch', 'keras', 'ml_dtypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
