"""The functions of vkrnn.torch: vkrnn's numbers with every option, under autograd, compilation and transforms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CASES, CELLS, GATES, OPTIONAL, Case, by_id, inputs
from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from vkrnn.torch import _operations  # noqa: E402

# Warnings of PyTorch's compiler.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
every_cell = pytest.mark.parametrize("cell", GATES)
LIVELY = {
    "single_gate_rnn": {"activation": "tanh"},
    "lstm": {"output_peephole_new_cell": True},
    "gru": {"flip_z": True},
    "slstm": {"forget_gate": "exponential"},
}


def everything(cell: str) -> Case:
    """Return a case with every optional argument."""
    return Case(cell, 4, 3, 2, 5, LIVELY[cell] | {"clip": 0.9}, frozenset(OPTIONAL[cell]))


def tensors_of(case: Case) -> dict[str, Any]:
    """Return the arguments as float64 tensors; all but the mask require gradients."""
    given = {name: torch.from_numpy(array.astype(np.float64)) for name, array in inputs(case).items()}
    return {name: tensor.requires_grad_(name != "mask") for name, tensor in given.items()}


def differentiable(case: Case) -> tuple[list[str], Any]:
    """Return the names of the arguments that have gradients, and the output as a function of these."""
    given = tensors_of(case)
    names = [name for name, tensor in given.items() if tensor.requires_grad]

    def output(*values: Any) -> Any:
        return getattr(ours, case.cell)(
            **{**given, **dict(zip(names, values, strict=True))}, descriptor=case.descriptor()
        ).output

    return names, output


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_numbers_are_those_of_the_functions(case: Case) -> None:
    """Results and gradients have the bits of the functions on NumPy arrays, for every case."""
    cell = case.cell
    given = {name: array.astype(np.float64) for name, array in inputs(case).items()}
    tensors = tensors_of(case)
    produces = {"produce_cell": True} if CELLS[cell] else {}
    found = getattr(ours, cell)(**tensors, descriptor=case.descriptor(**produces))
    wanted = getattr(vkrnn, cell)(**given, descriptor=case.descriptor(training=True, **produces))
    assert np.array_equal(found.output.detach().numpy(), wanted.output)

    above = np.random.default_rng(1).standard_normal(wanted.output.shape)
    taken: dict[str, Any] = {"source_gradient": above, "z_state": wanted.z_state}
    outputs, upstream = [found.output], [torch.from_numpy(above)]
    if cell == "gru":
        taken["output_fwd"] = wanted.output
    for name in CELLS[cell]:
        above = np.random.default_rng(len(name)).standard_normal(wanted.output.shape)
        result = f"{name}_output"
        taken |= {f"{result}_fwd": getattr(wanted, result), f"{name}_gradient": above}
        outputs.append(getattr(found, result))
        upstream.append(torch.from_numpy(above))
        assert np.array_equal(getattr(found, result).detach().numpy(), getattr(wanted, result))
    names = [name for name, tensor in tensors.items() if tensor.requires_grad]
    got = torch.autograd.grad(outputs, [tensors[name] for name in names], upstream)
    expected = getattr(vkrnn, f"{cell}_gradients")(**given, **taken, descriptor=case.descriptor())
    for name, gradient in zip(names, got, strict=True):
        assert np.array_equal(gradient.numpy(), getattr(expected, name)), name


@every_cell
@pytest.mark.parametrize("way", [{}, {"reverse": True}, {"bidirectional": True}], ids=["forward", "reverse", "both"])
def test_gradcheck(cell: str, way: dict[str, bool]) -> None:
    """Gradients agree with finite differences, also those through cell states."""
    case = everything(cell)
    case = replace(case, options={**case.options, **way})
    given = tensors_of(case)
    names = [name for name, tensor in given.items() if tensor.requires_grad]

    def results(*values: Any) -> Any:
        arguments = given | dict(zip(names, values, strict=True))
        if not CELLS[cell]:
            return getattr(ours, cell)(**arguments, descriptor=case.descriptor()).output
        return tuple(getattr(ours, cell)(**arguments, descriptor=case.descriptor(produce_cell=True)))

    assert torch.autograd.gradcheck(results, [given[name] for name in names])


@every_cell
def test_opcheck(cell: str) -> None:
    """Schema, fake tensors, autograd and dispatch of both operators pass torch's checks."""
    case = everything(cell)
    given = tensors_of(case)
    form = _operations.FORMS[cell]
    tensors = [given.get(name) for name in form.arguments]
    options = _operations.options_of(case.descriptor())
    torch.library.opcheck(form.operation, [*tensors, cell, options, True])
    arrays = [None if tensor is None else tensor.detach() for tensor in tensors]
    torch.library.opcheck(form.operation, [*arrays, cell, options, False])
    with torch.no_grad():
        *states, z_state = form.operation(*tensors, cell, options, True)  # noqa: FBT003
    reads = [cell == "gru", *(name in _operations.CELLS[cell].outputs for name in form.outputs[1:-1])]
    kept = [state if is_read else None for state, is_read in zip(states, reads, strict=True)]
    above = [torch.rand_like(states[0]), *(None for _ in states[1:])]
    torch.library.opcheck(form.backward, [*above, *kept, z_state, *arrays, cell, options])


@every_cell
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(cell: str, backend: str) -> None:
    """A call and its gradients compile without graph breaks."""
    case = everything(cell)
    names, output = differentiable(case)
    given = tensors_of(case)
    values = [given[name] for name in names]
    found = []
    for function in (output, torch.compile(output, fullgraph=True, backend=backend)):
        result = function(*values)
        found.append([result, *torch.autograd.grad(result.square().sum(), values)])
    torch._dynamo.reset()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@every_cell
def test_export(cell: str) -> None:
    """An exported program gives the same numbers."""
    case = everything(cell)
    names, output = differentiable(case)
    values = tuple(tensors_of(case)[name].detach() for name in names)

    class Call(torch.nn.Module):
        def forward(self, *values: Any) -> Any:
            return output(*values)

    program = torch.export.export(Call(), values).module()
    assert torch.equal(program(*values), output(*values))


@every_cell
def test_transforms(cell: str) -> None:
    """torch.func.grad, vmap and jacrev agree with autograd and loops."""
    case = everything(cell)
    names, output = differentiable(case)
    values = [tensors_of(case)[name].detach() for name in names]
    weight = names.index("recurrent_weight")

    def loss(one: Any) -> Any:
        return output(*values[:weight], one, *values[weight + 1 :]).square().sum()

    many = torch.stack([values[weight], 0.5 * values[weight], -values[weight]])
    wanted = []
    for each in many.unbind():
        leaf = each.clone().requires_grad_()
        wanted.append(torch.autograd.grad(loss(leaf), leaf)[0])
    assert torch.equal(torch.func.grad(loss)(many[0]), wanted[0])
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(many), torch.stack(wanted))
    assert torch.equal(torch.func.vmap(loss)(many), torch.stack([loss(each) for each in many]))
    assert torch.allclose(torch.func.jacrev(loss)(many[1]), wanted[1])


@every_cell
def test_lengths(cell: str) -> None:
    """`lengths` is a list, array or tensor. Past its end a sequence has zeros and contributes no gradient."""
    case = Case(cell, 4, 3, 2, 5, LIVELY[cell], frozenset(("input_weight", "bias")))
    given = tensors_of(case)
    function = getattr(ours, cell)
    found = [
        function(**given, lengths=lengths, descriptor=case.descriptor()).output
        for lengths in ([4, 1, 0], np.array([4, 1, 0]), torch.tensor([4, 1, 0]))
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not found[0][1:, 1].any()
    assert not found[0][:, 2].any()
    (gradient,) = torch.autograd.grad(found[0].sum(), given["source"])
    assert not gradient[1:, 1].any()
    assert not gradient[:, 2].any()
    assert gradient[:1, 1].any()


def test_training_state() -> None:
    """`training` returns it. Without it and without gradients, nothing is saved."""
    case = everything("lstm")
    given = {name: tensor.detach() for name, tensor in tensors_of(case).items()}
    shown = ours.lstm(**given, descriptor=case.descriptor(training=True))
    assert shown._fields == ("output", "cell_output", "z_state")
    assert not shown.z_state.requires_grad
    plain = ours.lstm(**given, descriptor=case.descriptor())
    assert plain._fields == ("output",)
    with pytest.raises(AttributeError, match="lstm returned no 'z_state': the descriptor has training=False"):
        plain.z_state  # noqa: B018
    form = _operations.FORMS["lstm"]
    values = [given.get(name) for name in form.arguments]
    *_, z_state = form.operation(*values, "lstm", _operations.options_of(case.descriptor()), False)  # noqa: FBT003
    assert z_state.numel() == 0


def refusal(kind: type[Exception], **changed: Any) -> str:
    """Return the message of an LSTM call with all arguments after these changes."""
    case = everything("lstm")
    with pytest.raises(kind) as caught:
        ours.lstm(**{**tensors_of(case), "descriptor": case.descriptor(), **changed})
    return str(caught.value)


def test_errors() -> None:
    """Wrong types, devices and descriptors are named."""
    assert refusal(TypeError, bias=np.zeros(20)) == "[vkrnn.torch.lstm] bias: expected a torch.Tensor, got ndarray"
    assert refusal(TypeError, source=None) == "[vkrnn.torch.lstm] source: expected a torch.Tensor, got NoneType"
    assert refusal(TypeError, descriptor=vkrnn.GRUDescriptor()) == (
        "[vkrnn.torch.lstm] descriptor: expected LSTMDescriptor, got GRUDescriptor"
    )
    mask = torch.ones(4, 3, 5, dtype=torch.float64, requires_grad=True)
    assert refusal(NotImplementedError, mask=mask) == (
        "[vkrnn.torch.lstm] mask: vkrnn computes no gradient with respect to it"
    )
    assert refusal(ValueError, bias=torch.zeros(7, dtype=torch.float64)) == (
        "[lstm] bias: expected shape [4H] = [20], got [7] (H = 5 from recurrent_weight.shape[0] / 4)"
    )
    assert refusal(TypeError, bias=torch.zeros(20)).startswith("[lstm] bias: expected dtype float64")


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru", "slstm"])
def test_second_derivatives_and_forward_mode(cell: str) -> None:
    """They are those of finite differences."""
    case = everything(cell)
    given = tensors_of(case)
    names, output = differentiable(case)
    values = tuple(given[name].detach().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(output, values, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(output, values, fast_mode=True)
