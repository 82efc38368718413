"""Options of modules that no kernel knows: `forget_bias`, `learn_initial_state` and `weight_dropout`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from oracles import require

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_modules import H, I, states  # noqa: E402

# PyTorch's own affairs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
T, N = 5, 3
every_kind = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "SLSTM"])
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1, "SLSTM": 4}


def as_hx(kind: str, given: Any) -> Any:
    """Return states as a module takes them."""
    return tuple(given) if STATES[kind] > 1 else next(iter(given))


@pytest.mark.parametrize("kind", ["LSTM", "SLSTM", "LSTMCell"])
def test_forget_bias(kind: str) -> None:
    """The forget gates' biases add up to it, also after `reset_parameters`; other numbers are as without it."""
    layers = {} if kind == "LSTMCell" else {"num_layers": 2, "bidirectional": True}
    torch.manual_seed(1)
    plain = getattr(ours, kind)(I, H, **layers)
    torch.manual_seed(1)
    module = getattr(ours, kind)(I, H, forget_bias=1.5, **layers)
    for _ in range(2):
        sums: dict[str, Any] = {}
        for name, parameter in module.named_parameters():
            own, other = (each.detach().view(4, H, -1) for each in (parameter, plain.get_parameter(name)))
            is_bias = name.startswith("bias")
            assert torch.equal(own[[0, 2, 3]], other[[0, 2, 3]])
            assert torch.equal(own[1], other[1]) != is_bias
            if is_bias:
                place = name.replace("hh", "ih")
                sums[place] = sums.get(place, 0) + own[1]
        assert len(sums) == (1 if kind == "LSTMCell" else 4)
        assert all((each == 1.5).all() for each in sums.values())
        for each in (plain, module):
            torch.manual_seed(2)
            each.reset_parameters()
    assert repr(module).endswith("forget_bias=1.5)")
    assert copy.deepcopy(module).forget_bias == 1.5
    if kind != "SLSTM":
        assert type(ours.revert(module)) is getattr(torch.nn, kind)
        assert "forget_bias" not in vars(module)


def test_wrong_starts() -> None:
    """Mistakes are refused with what was expected and what came."""
    for options, kind, message in (
        ({"forget_bias": True}, TypeError, "forget_bias: expected a number, got True (bool)"),
        ({"forget_bias": float("inf")}, ValueError, "forget_bias: expected a finite number, got inf"),
        ({"forget_bias": 1, "bias": False}, ValueError, "forget_bias: expected a module with biases, got bias=False"),
        ({"learn_initial_state": 1}, TypeError, "learn_initial_state: expected a bool, got 1 (int)"),
        ({"weight_dropout": 2}, ValueError, "weight_dropout: expected a number from 0 to 1, got 2"),
    ):
        for module in (ours.LSTM, ours.SLSTM):
            with pytest.raises(kind) as refused:
                module(I, H, **options)
            assert str(refused.value) == f"[vkrnn.torch.{module.__name__}] {message}"


@every_kind
@pytest.mark.parametrize("fed", ["batched", "batch_first", "unbatched", "packed"])
def test_learnt_initial_states(kind: str, fed: str) -> None:
    """Calls without states start from the parameters, which have the gradients of states that are given."""
    module = getattr(ours, kind)(
        I, H, 2, bidirectional=True, batch_first=fed == "batch_first", learn_initial_state=True
    )
    names = [name for name, _ in module.named_parameters() if name.startswith("init_")]
    learnt = [module.get_parameter(name) for name in names]
    assert len(learnt) == STATES[kind]
    assert {each.shape for each in learnt} == {(4, 1, H)}
    plain = getattr(ours, kind)(I, H, 2, bidirectional=True, batch_first=fed == "batch_first")
    plain.load_state_dict(module.state_dict(), strict=False)
    x: Any = torch.rand((N, T, I) if fed == "batch_first" else (T, I) if fed == "unbatched" else (T, N, I))
    if fed == "packed":
        x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5, 1]), enforce_sorted=False)
    output = lambda found: found[0].data if fed == "packed" else found[0]  # noqa: E731
    torch.testing.assert_close(output(module(x)), output(plain(x)))  # they begin as zeros
    for each in learnt:
        torch.nn.init.uniform_(each)
    given = [each.detach().expand(-1, N, -1).clone().requires_grad_() for each in learnt]
    if fed == "unbatched":
        given = [each.detach().squeeze(1).requires_grad_() for each in learnt]
    found, wanted = module(x), plain(x, as_hx(kind, given))
    torch.testing.assert_close(output(found), output(wanted))
    gradients = torch.autograd.grad(output(found).square().sum(), learnt)
    of_given = torch.autograd.grad(output(wanted).square().sum(), given)
    for one, other in zip(gradients, of_given, strict=True):
        torch.testing.assert_close(one, other.unsqueeze(1) if fed == "unbatched" else other.sum(1, keepdim=True))
    with torch.no_grad():
        for _ in range(3):  # the later calls keep weights
            torch.testing.assert_close(output(module(x)), output(wanted))
        module.init_state += 1
        assert not torch.allclose(output(module(x)), output(wanted))
    zeros = as_hx(kind, [torch.zeros_like(each) for each in given])
    torch.testing.assert_close(output(module(x, zeros)), output(plain(x)))
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(output(again(x)), output(module(x)))
    assert repr(again).endswith("learn_initial_state=True)")
    module.reset_parameters()
    assert not module.init_state.any()


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_learnt_states_elsewhere(kind: str) -> None:
    """Compilers, tracers and resets take them. `revert`, which would drop them, refuses."""
    module, x = getattr(ours, kind)(I, H, learn_initial_state=True), torch.rand(T, N, I)
    torch.nn.init.uniform_(module.init_state)
    wanted = module(x)
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), wanted)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.jit.trace(module, (x,))(x), wanted)
    torch.testing.assert_close(module(x, reset=torch.zeros(T, N, dtype=torch.bool))[0], wanted[0])
    assert torch.func.functional_call(module, {"init_state": module.init_state + 1}, (x,))[0].ne(wanted[0]).any()
    with pytest.raises(NotImplementedError, match="learn_initial_state: PyTorch supports only False, got True"):
        ours.revert(module)


def test_learnt_states_of_a_projection() -> None:
    """The learnt h of an LSTM with a projection is as wide as the output."""
    module = ours.LSTM(I, H, proj_size=2, learn_initial_state=True)
    assert (module.init_state.shape, module.init_cell.shape) == ((1, 1, 2), (1, 1, H))
    assert module(torch.rand(T, N, I))[0].shape == (T, N, 2)


@every_kind
def test_weight_dropout(kind: str) -> None:
    """A call in training equals one with masked recurrent weights, whose gradients are masked; eval drops nothing."""
    module = getattr(ours, kind)(I, H, 2, bidirectional=True, weight_dropout=0.5)
    plain = getattr(ours, kind)(I, H, 2, bidirectional=True)
    plain.load_state_dict(module.state_dict())
    x = torch.rand(T, N, I)
    torch.testing.assert_close(module.eval()(x), plain(x))
    assert f"weight_dropout={module.weight_dropout}" in repr(module)
    torch.manual_seed(4)
    found = module.train()(x)
    module.zero_grad()
    found[0].sum().backward()
    torch.manual_seed(4)
    for number in range(2):
        both = torch.nn.functional.dropout(torch.ones(2, *plain.weight_hh_l0.shape), 0.5)
        for mask, end in zip(both, ("", "_reverse"), strict=True):
            plain.get_parameter(f"weight_hh_l{number}{end}").data.mul_(mask)
            gradient = module.get_parameter(f"weight_hh_l{number}{end}").grad
            assert not gradient[mask == 0].any()
            assert gradient[mask > 0].any()
    torch.testing.assert_close(found, plain(x))
    with torch.no_grad():  # each call draws another mask, also those that might keep weights
        drawn = [states(module(x))[0][0] for _ in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    converted = ours.convert(torch.nn.LSTM(I, H))
    converted.weight_dropout = 0.5
    assert not torch.equal(converted(x)[0], converted(x)[0])
