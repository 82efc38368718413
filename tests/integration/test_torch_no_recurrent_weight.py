"""Functions of vkrnn.torch without a recurrent weight: against recurrences written with PyTorch's own operations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import vkrnn  # noqa: E402
import vkrnn.torch  # noqa: E402
from tolerances import TORCH_IN_FLOAT64  # noqa: E402

T, N, I, H = 7, 3, 4, 5
GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3, "slstm": 4}
HOW = {
    "single_gate_rnn": vkrnn.SingleGateRNNDescriptor(activation="tanh"),
    "lstm": vkrnn.LSTMDescriptor(),
    "gru": vkrnn.GRUDescriptor(flip_z=True, output_gate_activation="none"),  # minGRU's identity form
    "slstm": vkrnn.SLSTMDescriptor(),
}


def recurrence(cell: str, gates: Any, states: list[Any]) -> Any:
    """Return the output of a cell from the sums of its gates, [T, N, GH], and its initial states, step by step."""
    found = []
    for x in gates:
        parts = x.chunk(GATES[cell], -1)
        if cell == "single_gate_rnn":
            states = [parts[0].tanh()]
        elif cell == "gru":
            z = parts[0].sigmoid()
            states = [(1 - z) * states[0] + z * parts[2]]
        elif cell == "lstm":
            i, f, z, o = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
            c = f * states[1] + i * z
            states = [o * c.tanh(), c]
        else:
            _, c, n, m = states
            stays = torch.nn.functional.logsigmoid(parts[1]) + m
            m = torch.where(n == 0, parts[0], torch.maximum(stays, parts[0]))
            i, f = (parts[0] - m).exp(), (stays - m).clamp(max=0).exp()
            c, n = f * c + i * parts[2].tanh(), f * n + i
            states = [parts[3].sigmoid() * c / n, c, n, m]
        found.append(states[0])
    return torch.stack(found)


def drawn(cell: str, *, projects: bool) -> dict[str, Any]:
    torch.manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {"source": (T, N, I if projects else GATES[cell] * H), "init_state": (N, H)}
    if projects:
        shapes |= {"input_weight": (GATES[cell] * H, I), "bias": (GATES[cell] * H,)}
    cells = {"lstm": ["init_cell"], "slstm": ["init_cell", "init_normalizer", "init_stabilizer"]}.get(cell, [])
    shapes |= dict.fromkeys(cells, (N, H))
    found = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    if "init_normalizer" in found:
        found["init_normalizer"] = found["init_normalizer"].abs() + 0.5
    return {name: tensor.requires_grad_() for name, tensor in found.items()}


def program(cell: str) -> Any:
    def call(**given: Any) -> Any:
        return getattr(vkrnn.torch, cell)(recurrent_weight=None, **given, descriptor=HOW[cell]).output

    return call


@pytest.mark.parametrize("projects", [True, False])
@pytest.mark.parametrize("cell", GATES)
def test_numbers_and_gradients_are_those_of_a_recurrence(cell: str, *, projects: bool) -> None:
    given = drawn(cell, projects=projects)
    gates = given["source"] @ given["input_weight"].T + given["bias"] if projects else given["source"]
    wanted = recurrence(cell, gates, [tensor for name, tensor in given.items() if name.startswith("init_")])
    weigh = torch.rand_like(wanted)
    output = program(cell)(**given)
    torch.testing.assert_close(output, wanted, rtol=0, atol=TORCH_IN_FLOAT64)
    used = [name for name in given if not (cell == "single_gate_rnn" and name == "init_state")]
    right = torch.autograd.grad((wanted * weigh).sum(), [given[name] for name in used], allow_unused=True)
    found = torch.autograd.grad((output * weigh).sum(), list(given.values()))
    for name, one, other in zip(used, [found[list(given).index(name)] for name in used], right, strict=True):
        other = torch.zeros_like(one) if other is None else other  # noqa: PLW2901 - of h, which only products read
        torch.testing.assert_close(one, other, rtol=0, atol=TORCH_IN_FLOAT64, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("cell", GATES)
def test_gradcheck_and_the_operators(cell: str) -> None:
    """Finite differences, and PyTorch's own test of the operators."""
    given = drawn(cell, projects=True)
    names = list(given)

    def call(*tensors: Any) -> Any:
        return program(cell)(**dict(zip(names, tensors, strict=True)))

    assert torch.autograd.gradcheck(call, list(given.values()), eps=1e-6, atol=1e-7, fast_mode=True)
    form = vkrnn.torch._operations.FORMS[cell]
    options = vkrnn.torch._operations.options_of(HOW[cell])
    arguments = [given.get(name) for name in form.arguments]
    torch.library.opcheck(form.operation, (*arguments, cell, options, True))


@pytest.mark.parametrize("cell", GATES)
def test_transforms(cell: str) -> None:
    """torch.compile, torch.export and torch.func."""
    given = drawn(cell, projects=True)
    call = program(cell)
    wanted = call(**given)
    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(**given), wanted)

    class Module(torch.nn.Module):
        def forward(self, given: Any) -> Any:
            return call(**given)

    plain = {name: tensor.detach() for name, tensor in given.items()}
    exported = torch.export.export(Module(), (plain,))
    torch.testing.assert_close(exported.module()(plain), wanted)
    sources = torch.stack([plain["source"], 2 * plain["source"]])
    rest = {name: tensor for name, tensor in plain.items() if name != "source"}
    many = torch.func.vmap(torch.func.grad(lambda source: call(source=source, **rest).square().sum()))(sources)
    for source, found in zip(sources, many, strict=True):
        source = source.clone().requires_grad_()  # noqa: PLW2901
        call(source=source, **rest).square().sum().backward()
        torch.testing.assert_close(found, source.grad)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_shapes_and_lengths(*, bidirectional: bool, resets: bool) -> None:
    """Operators know the shapes before they run, and calls agree with the functions."""
    D, generator = 1 + bidirectional, torch.Generator().manual_seed(2)
    for cell, projects in itertools.product(GATES, (True, False)):
        kind = type(HOW[cell])
        how = kind(bidirectional=bidirectional, training=True)
        weight = torch.rand(D * GATES[cell] * H, I, generator=generator) if projects else None
        source = torch.rand(T, N, I if projects else D * GATES[cell] * H, generator=generator)
        more: dict[str, Any] = {"input_weight": weight, "lengths": [T, 2, 0], "descriptor": how}
        if resets:
            more["reset"] = torch.rand(T, N, generator=generator)
        function = getattr(vkrnn.torch, cell)
        found = function(source, None, **more)
        numbers = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in more.items()}
        wanted = getattr(vkrnn, cell)(source.numpy(), None, **numbers, device="cpu")
        assert found._fields == wanted._fields
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
        meta = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in more.items()}
        shapes = function(source.to("meta"), None, **meta)
        assert [each.shape for each in shapes] == [each.shape for each in found]


def test_mistakes() -> None:
    source, weight = torch.rand(T, N, I), torch.rand(4 * H, I)
    for given, message in (
        ({"mask": torch.ones(T, N, H)}, "mask: expected a recurrent_weight beside it, got none"),
        ({"descriptor": vkrnn.LSTMDescriptor(heads=5)}, "descriptor.heads: expected 1 without recurrent_weight, got 5"),
    ):
        with pytest.raises(ValueError, match=rf"^\[lstm\] {message}$"):
            vkrnn.torch.lstm(source, None, input_weight=weight, **given)
    layer = vkrnn.convert.Layer(vkrnn.lstm, {"input_weight": weight.numpy()}, vkrnn.LSTMDescriptor())
    with pytest.raises(NotImplementedError, match="recurrent_weight: expected an array, which torch's modules always"):
        vkrnn.convert.to_torch(layer)
