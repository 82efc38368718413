"""Tests the kept calls of modules on CUDA devices without a GPU: the CPU uses the addresses that a GPU would get.

A kept call repeats the plan of an earlier call of the same kind. The ordinary way plans each call: `module._compute`.
"""

from __future__ import annotations

import unittest.mock
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import cuda_on_cpu

torch = pytest.importorskip("torch")

import vkrnn  # noqa: E402
import vkrnn.torch as ours  # noqa: E402
from vkrnn.torch import _calls, _choice, _recurrent, _repeated  # noqa: E402
from vkrnn.torch._repeated import RepeatedCalls  # noqa: E402

T, N, I, H = 4, 3, 5, 6
MODULES = {
    "LSTM": lambda: ours.LSTM(I, H, 2, backend="vkrnn"),
    "GRU": lambda: ours.GRU(I, H, 3, backend="vkrnn"),
    "RNN": lambda: ours.RNN(I, H, nonlinearity="relu", bias=False, backend="vkrnn"),
    "options": lambda: ours.LSTM(I, H, 2, peephole=True, clip=0.5),
    "reset before": lambda: ours.GRU(I, H, 2, reset_after=False, dropout=0.5),
}


@pytest.fixture(name="device", autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Let kept calls and the ordinary way compute on the CPU, whatever the default device is."""
    with vkrnn.Device("cpu ("):
        yield cuda_on_cpu.install(monkeypatch)


without_gradients = pytest.mark.usefixtures("no_grad")


@pytest.fixture(name="no_grad")
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def drawn(*shape: int) -> Any:
    """Return a tensor of float64."""
    return torch.randn(shape, dtype=torch.float64)


def states_of(module: Any, rows: int = N) -> Any:
    """Return drawn initial states."""
    lstm = module.mode == "LSTM"
    found = tuple(drawn(module.num_layers, rows, H) for _ in range(1 + lstm))
    return found if lstm else found[0]


def kept_of(module: Any, x: Any, hx: Any = None, way: str = "vkrnn") -> Any:
    """Return the kept calls of a module after one call; None if it keeps none."""
    module.__dict__.pop("_kept", None)
    RepeatedCalls.keep(module, x, hx, way)
    return module.__dict__.pop("_kept", None)


def flat(results: Any) -> list[Any]:
    """Return output and last states."""
    output, last = results
    return [output, *(last if isinstance(last, tuple) else [last])]


@without_gradients
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("with_states", [False, True])
def test_a_repeated_call_is_that_of_the_ordinary_way(name: str, with_states: bool) -> None:  # noqa: FBT001
    """A kept call with new numbers in the input, states and parameters gives the bits of the ordinary way."""
    module = MODULES[name]().double().eval()
    kept = kept_of(module, drawn(T, N, I), states_of(module) if with_states else None)
    for parameter in module.parameters():
        parameter.data.mul_(0.5)  # which PyTorch does not count as a change
    for _ in range(2):  # the second call knows how much scratch memory the layers need
        x, hx = drawn(T, N, I), states_of(module) if with_states else None
        got, wanted = flat(kept.call(module, x, hx)), flat(module._compute(x, hx))
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one, other)
        assert len({each.untyped_storage().data_ptr() for each in got}) == len(got)


UPSTREAM: dict[str, Any] = {
    "output": lambda results: results[0].sin().sum(),
    "expanded": lambda results: results[0].sum(),
    "last states": lambda results: sum(each.cos().sum() for each in results[1:]),
    "all": lambda results: sum(each.sin().sum() for each in results),
    "changed output": lambda results: results[0].relu_().square().sum(),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("upstream", UPSTREAM)
@pytest.mark.parametrize("with_states", [False, True])
def test_gradients_of_a_repeated_call(
    name: str,
    upstream: str,
    with_states: bool,  # noqa: FBT001
) -> None:
    """Gradients have the bits of the ordinary way, also after a call with other upstream gradients."""
    module = MODULES[name]().double().eval()
    hx = states_of(module) if with_states else None
    for each in (hx,) if torch.is_tensor(hx) else hx or ():
        each.requires_grad_()
    kept = kept_of(module, drawn(T, N, I).requires_grad_(), hx)
    for each in ("all", upstream, upstream):
        x, hx = drawn(T, N, I), states_of(module) if with_states else None
        found = []
        for repeats in (False, True):
            source = x.clone().requires_grad_()
            states = (
                ()
                if hx is None
                else tuple(one.clone().requires_grad_() for one in (hx if type(hx) is tuple else (hx,)))
            )
            given = None if hx is None else states if type(hx) is tuple else states[0]
            results = (kept.call if repeats else lambda module, *rest: module._compute(*rest))(module, source, given)
            wanted = [source, *states, *module.parameters()]
            found.append(torch.autograd.grad(UPSTREAM[each](flat(results)), wanted, allow_unused=True))
        for one, other in zip(*found, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def test_weights_that_change_before_the_gradients() -> None:
    """Weights that move before the backward pass are read in their new place. Those of another shape are refused."""
    module, x = ours.RNN(I, H, backend="vkrnn").double(), drawn(T, N, I)
    kept = kept_of(module, x)
    gradients = []
    for moves in (False, True):
        output, _ = kept.call(module, x, None)
        if moves:
            module.weight_hh_l0.data = module.weight_hh_l0.data.clone()
        (found,) = torch.autograd.grad(output.sum(), module.weight_ih_l0)
        gradients.append(found)
    assert torch.equal(*gradients)
    for other in (lambda old: torch.zeros(H, I - 1, dtype=old.dtype), lambda old: old.view(-1)[:-H].view(H, I - 1)):
        module = ours.RNN(I, H, backend="vkrnn").double()
        kept = kept_of(module, x)
        kept.call(module, x, None)[0].sum().backward()
        output, _ = kept.call(module, x, None)
        module.weight_ih_l0.data = other(module.weight_ih_l0.data)
        with pytest.raises(ValueError, match=r"input_weight: expected shape"):
            output.sum().backward()


@without_gradients
def test_calls_of_another_kind() -> None:
    """A kept call refuses calls of another kind, and tensors of another layout. The ordinary way computes them."""
    module = ours.LSTM(I, H, backend="vkrnn").double()
    x, hx = drawn(T, N, I), states_of(module)
    kept = kept_of(module, x, hx)
    assert kept.call(module, x, hx) is not None
    others = [
        (x, None),
        (drawn(T + 1, N, I), hx),
        (x.float(), hx),
        (drawn(N, T, I).transpose(0, 1), hx),
        (x, (hx[0], hx[1].float())),
        (x, (hx[0], drawn(1, H, N).transpose(1, 2))),
        (x, (hx[0], hx[1][:, :2])),
        (x, list(hx)),
        (x[:, 0], tuple(state[:, 0] for state in hx)),
        (torch.nn.Parameter(x), hx),
    ]
    for source, states in others:
        assert kept.call(module, source, states) is None
    with torch.enable_grad():
        assert kept.call(module, x, hx) is None
    torch.set_autocast_enabled("cuda", True)  # noqa: FBT003 - torch.autocast does nothing without a GPU
    try:
        assert kept.call(module, x, hx) is None
    finally:
        torch.set_autocast_enabled("cuda", False)  # noqa: FBT003
    for name, value in (("backend", "torch"), ("batch_first", True), ("training", False), ("recurrent_dropout", 0.5)):
        before = getattr(module, name)
        setattr(module, name, value)
        assert kept.call(module, x, hx) is None
        setattr(module, name, before)
    assert kept.call(module, x, hx) is not None
    kept = kept_of(module, x)
    assert kept.call(module, x, None) is not None
    assert kept.call(module, x, ()) is None


@without_gradients
def test_a_call_of_another_thread() -> None:
    """Another thread may set the size of the scratch memory during a call, which uses only what it allocated."""
    x, allocated, used = drawn(T, N, I), [], []
    sizes = iter((10, 1000))

    class Core:
        """A call whose memory another call has just measured."""

        bytes = property(lambda _: next(sizes))

        def run(self, _operands: Any, _results: Any, _stream: int, memory: int, count: int, _allocate: Any) -> None:
            used.append((memory, count))

    class Source(SimpleNamespace):
        def new_empty(self, *shape: Any, **options: Any) -> Any:
            tensor = x.new_empty(*shape, **options)
            if options:  # the scratch memory, in bytes
                allocated.append(tensor)
            return tensor

    planned = _calls.Planned(SimpleNamespace(gradients=False), Core(), (), (), None, x.dtype, (), {})
    planned.run([Source(get_device=lambda: 0, data_ptr=x.data_ptr)])
    ((memory,), ((start, count),)) = allocated, used
    assert count == 10
    assert start + count <= memory.data_ptr() + memory.numel()


@without_gradients
@pytest.mark.parametrize("steps", [1, T])
@pytest.mark.parametrize("name", MODULES)
def test_the_shortest_way(name: str, steps: int) -> None:
    """It is taken from the second kept call on, and reads tensors, states and biases anew."""
    module = MODULES[name]().double().eval()
    x, hx = drawn(steps, N, I), states_of(module)
    ((_, latest),) = kept_of(module, x, hx)._calls.items()
    for _ in range(2):
        x, hx = drawn(steps, N, I), states_of(module)
        if module.bias:
            module.bias_hh_l0.data[0] += 1
        wanted = flat(module._compute(x, hx))
        for one, other in zip(flat(latest.compute(module, x, hx)), wanted, strict=True):
            assert torch.equal(one, other)
    with torch.enable_grad():
        assert latest.compute(module, x, hx) is None
    assert latest.compute(module, x, None) is None
    if steps > 1:
        assert latest.compute(module, x.transpose(0, 1).contiguous().transpose(0, 1), hx) is None
    module.weight_hh_l0.data = module.weight_hh_l0.data.clone()
    assert latest.compute(module, x, hx) is None


@without_gradients
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_the_shortest_way_to_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function is called without the module, which has checked a call like this one before."""
    module, x = getattr(ours, name)(I, H, 2, backend="torch").double(), drawn(T, N, I)
    hx = states_of(module)
    kept = kept_of(module, x, hx, "torch")
    wanted = flat(kept.call(module, x, hx))
    monkeypatch.setattr(getattr(torch.nn, name), "forward", None)
    for one, other in zip(flat(kept.call(module, x, hx)), wanted, strict=True):
        assert torch.equal(one, other)


CHANGES = {
    "replaced": lambda module: setattr(module, "bias_hh_l0", torch.nn.Parameter(module.bias_hh_l0.clone())),
    "other memory": lambda module: setattr(module.weight_hh_l0, "data", module.weight_hh_l0.data.clone()),
    "transposed": lambda module: setattr(module.weight_hh_l0, "data", module.weight_hh_l0.data.t()),
    "other shape": lambda module: setattr(module.weight_hh_l0, "data", module.weight_hh_l0.data[:-1]),
    "other dtype": lambda module: setattr(module.bias_hh_l0, "data", module.bias_hh_l0.data.view(torch.float32)[:H]),
    "one more": lambda module: module.register_parameter("more", torch.nn.Parameter(torch.zeros(1))),
}


def other_guards(*_tensors: Any, sizes: Any) -> None:
    """Stand in for a comparison of tensors with other parameters than PyTorch's has today."""


@without_gradients
def test_a_pytorch_that_compares_tensors_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is kept then."""
    monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", other_guards)
    _repeated.can_compare.cache_clear()
    module = MODULES["LSTM"]().double()
    assert kept_of(module, drawn(T, N, I), states_of(module)) is None
    monkeypatch.undo()
    _repeated.can_compare.cache_clear()


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_are_not_where_or_what_they_were(change: str) -> None:
    """A kept call refuses parameters that were replaced, moved or changed in shape or dtype."""
    module, x = ours.RNN(H, H, backend="vkrnn").double(), drawn(T, N, H)
    kept = kept_of(module, x)
    assert kept.call(module, x, None) is not None
    CHANGES[change](module)
    assert kept.call(module, x, None) is None


@without_gradients
def test_a_device_that_cannot_be_used(device: SimpleNamespace) -> None:
    """A kept call refuses a device that was closed or lost. The ordinary way opens it again."""
    module, x = ours.RNN(I, H, backend="vkrnn").double(), drawn(T, N, I)
    kept = kept_of(module, x)
    for name in ("closed", "lost"):
        setattr(device, name, True)
        assert kept.call(module, x, None) is None
        setattr(device, name, False)


@without_gradients
def test_what_is_not_kept() -> None:
    """No call is kept with dropout, two directions, batch first, packed or strided input, or parametrized modules."""
    x = drawn(T, N, I)
    plain = ours.GRU(I, H, backend="vkrnn").double()
    assert kept_of(plain, x) is not None
    assert kept_of(plain, x.transpose(0, 1)) is None
    assert kept_of(plain, x[:0]) is None
    assert kept_of(plain, x[:, 0]) is None
    assert kept_of(plain, torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1]))) is None
    for options in ({"bidirectional": True}, {"batch_first": True}, {"recurrent_dropout": 0.5}):
        assert kept_of(ours.GRU(I, H, backend="vkrnn", **options).double(), x) is None
    parametrized = torch.nn.utils.parametrizations.weight_norm(ours.GRU(I, H, backend="vkrnn").double(), "weight_hh_l0")
    assert kept_of(parametrized, x) is None
    mixed = ours.GRU(I, H, backend="vkrnn").double()
    mixed.bias_ih_l0.data = mixed.bias_ih_l0.data.float()
    assert kept_of(mixed, x) is None


@without_gradients
def test_pytorchs_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with states are kept for PyTorch once PyTorch is chosen for calls like them, and not before."""
    module, x = ours.GRU(I, H, batch_first=True).double(), drawn(N, T, I)
    hx = states_of(module)
    RepeatedCalls.settle(module, x, hx, "torch")
    assert "_kept" not in module.__dict__
    monkeypatch.setitem(_choice._chosen, _choice._kind(module, x, x, hx), ("torch", "a line"))
    RepeatedCalls.settle(module, x, hx, "torch")
    kept = module.__dict__.pop("_kept")
    wanted = torch.nn.GRU.forward(module, x, hx)
    for one, other in zip(flat(kept.call(module, x, hx)), flat(wanted), strict=True):
        assert torch.equal(one, other)
    module.recurrent_dropout = 0.5  # which PyTorch's module lacks
    assert kept.call(module, x, hx) is None


@without_gradients
def test_a_call_whose_choice_is_not_final() -> None:
    """It is not kept, so that the next call like it chooses again."""
    module, x = ours.GRU(I, H).double(), drawn(T, N, I)
    RepeatedCalls.keep(module, x, None, "vkrnn")
    assert module.__dict__["_kept"].call(module, x, None) is not None
    RepeatedCalls.settle(module, x, None, "vkrnn")
    assert module.__dict__["_kept"].call(module, x, None) is None


@without_gradients
def test_copies_have_no_kept_calls() -> None:
    """Copies of a module have no kept calls. train() and eval() drop them."""
    module, x = ours.GRU(I, H, backend="vkrnn").double(), drawn(T, N, I)
    RepeatedCalls.keep(module, x, None, "vkrnn")
    assert "_kept" in module.__dict__
    assert "_kept" not in module.__getstate__()
    module.eval()
    assert "_kept" not in module.__dict__


@without_gradients
def test_parameters_that_were_replaced_are_not_kept() -> None:
    """Replaced parameters are freed at the next call, and those of torch.func.functional_call after their call."""
    module, x = ours.GRU(I, H, backend="vkrnn").double(), drawn(T, N, I)
    module._compute_on_cuda(x, None)
    before = weakref.ref(module.weight_hh_l0)
    assert module.__dict__["_kept"].call(module, x, None) is not None
    module.load_state_dict({name: each.clone() for name, each in module.state_dict().items()}, assign=True)
    module._compute_on_cuda(torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1])), None)
    assert before() is None
    others = {name: each.clone() for name, each in module.named_parameters()}
    used = [weakref.ref(each) for each in others.values()]
    with unittest.mock.patch.object(type(module), "forward", type(module)._compute_on_cuda):
        torch.func.functional_call(module, others, (x, None))
    del others
    assert [each() for each in used] == [None] * 4


def test_gradients_after_the_device_was_closed(device: SimpleNamespace) -> None:
    """If the device was closed after the forward pass, a new plan computes the gradients, on a device that is open."""
    module, x = ours.RNN(I, H, backend="vkrnn").double(), drawn(T, N, I)
    kept, gradients = kept_of(module, x), []
    other = type(device)(**{**vars(device), "_open": lambda _: other})
    for closes in (False, True):
        output, _ = kept.call(module, x, None)
        if closes:
            device._open = lambda _: other
            device.closed = True
        (found,) = torch.autograd.grad(output.sum(), module.weight_ih_l0)
        gradients.append(found)
    assert torch.equal(*gradients)


@without_gradients
def test_the_number_of_kinds_is_bounded() -> None:
    """A module that is called with ever new numbers of steps keeps a bounded number of kinds."""
    module = ours.RNN(I, H, backend="vkrnn").double()
    for steps in range(1, 70):
        RepeatedCalls.keep(module, drawn(steps, 1, I), None, "vkrnn")
    assert len(module.__dict__["_kept"]._calls) < 65


@without_gradients
def test_what_computes_is_kept_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are kept for PyTorch even if vkrnn has no device, for example because NVRTC is missing."""
    monkeypatch.setattr(_calls, "cuda_device", None)
    module, x = ours.GRU(I, H, backend="torch").double(), drawn(T, N, I)
    assert torch.equal(kept_of(module, x, None, "torch").call(module, x, None)[0], torch.nn.GRU.forward(module, x)[0])


@without_gradients
def test_a_call_is_planned_before_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is timed against the plan that later calls use. If PyTorch is faster, it computes these."""
    module, x = ours.GRU(I, H).double(), drawn(T, N, I)
    for chosen in ("vkrnn", "torch"):
        module.__dict__.pop("_kept", None)

        def choose(module: Any, x: Any, hx: Any, ways: Any, chosen: str = chosen) -> str:
            for _ in range(2):
                ways["vkrnn"](x, hx)
            assert module.__dict__["_kept"].call(module, x, hx) is not None
            monkeypatch.setitem(_choice._chosen, _choice._kind(module, x, x, hx), (chosen, "a line"))
            return chosen

        monkeypatch.setattr(_recurrent, "choose", choose)
        module._compute_on_cuda(x, None)
        called: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.GRU, "forward", lambda *_, called=called: called.append("torch"))
            module.__dict__["_kept"].call(module, x, None)
        assert called == ["torch"] * (chosen == "torch")
