"""vkrnn.torch's modules give the results, gradients, errors and state_dict of torch's modules."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from comparison import assert_close, scaled_error
from oracles import require
from tolerances import DTYPES, FLOAT32

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_modules import SMALL, fed_to, initial, leaves, states, work  # noqa: E402
from vkrnn.torch import _calls, _network  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")
every_kind = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.usefixtures("torch_seed")


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return torch's module and ours with the same parameters."""
    theirs = getattr(torch.nn, kind)(**options)
    mine = getattr(ours, kind)(**options)
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def configurations() -> Iterator[Any]:
    """Draw modules with their inputs."""
    draw = random.Random(20)  # noqa: S311 - no secrets
    for number in range(48):
        kind = draw.choice(KINDS)
        options: dict[str, Any] = {
            "input_size": draw.randint(1, 9),
            "hidden_size": draw.choice([1, 4, 7, 17, 32]),
            "num_layers": draw.choice([1, 1, 2, 3]),
            "bias": draw.random() < 0.7,
            "batch_first": draw.random() < 0.4,
            "bidirectional": draw.random() < 0.5,
        }
        if kind == "RNN":
            options["nonlinearity"] = draw.choice(["tanh", "relu"])
        fed = draw.choice(["batched", "batched", "unbatched", "packed", "packed unsorted"])
        sizes = (draw.randint(1, 12), draw.choice([1, 2, 3, 8]))
        hx, dtype = draw.random() < 0.5, draw.choice(["float32", "float32", "float64"])
        yield pytest.param(kind, options, fed, sizes, hx, dtype, id=f"{number} {kind} {fed} {dtype}")


@pytest.mark.parametrize(("kind", "options", "fed", "sizes", "hx", "dtype"), list(configurations()))
def test_results_and_gradients(
    kind: str, options: dict[str, Any], fed: str, sizes: tuple[int, int], *, hx: bool, dtype: str
) -> None:
    """Outputs, last states and all gradients agree with torch's module in float64."""
    theirs, mine = pair(kind, **options)
    given = fed_to(theirs, fed, *sizes)
    start = initial(theirs, None if fed == "unbatched" else sizes[1]) if hx else None
    assert_close(work(mine.to(getattr(torch, dtype)), given, start), work(theirs.double(), given, start), DTYPES[dtype])


@every_kind
@pytest.mark.parametrize("fed", ["batched", "packed"])
def test_on_a_vulkan_device(kind: str, fed: str, vulkan: Any) -> None:
    """Two layers of two directions are one plan there, too."""
    theirs, mine = pair(kind, input_size=5, hidden_size=8, num_layers=2, bidirectional=True)
    given, start = fed_to(theirs, fed, 6, 3), initial(theirs, 3)
    with vulkan:
        found = work(mine.to(torch.float32), given, start)
    assert_close(found, work(theirs.double(), given, start), DTYPES["float32"])


@every_kind
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of each result is one rounding against the module in float64 that rounds what is stored in the dtype.

    Beside the results, that is what the forward call keeps for the gradients. A rounding of z_state alone changes the
    derivative of tanh by up to 2 |z tanh z| roundings.
    """
    wanted = getattr(torch, dtype)
    module = getattr(ours, kind)(5, 8).to(wanted)
    given, start = (torch.rand(6, 3, 5) - 0.5).to(wanted), initial(module, 3, wanted)
    found, run = work(module, given, start), _network.run

    def rounded(name: str, tensor: Any) -> Any:
        stored = name in ("z_state", "cell_output_fwd", "output_fwd")
        return tensor.to(wanted).double() if stored else tensor

    def rounding(kind: Any, tensors: Any, lengths: Any) -> Any:
        return run(kind, [rounded(*each) for each in zip([name for name, _ in kind.names], tensors)], lengths)  # noqa: B905

    monkeypatch.setattr(_network, "run", rounding)
    assert_close(found, work(module.double(), given, start), DTYPES[dtype])


@every_kind
def test_module_is_a_subclass_of_torchs(kind: str) -> None:
    """It has the same state_dict and constructor, and a repr with the package. Users' subclasses have theirs."""
    options = {"input_size": 3, "hidden_size": 5, "num_layers": 2, "bidirectional": True, "dropout": 0.25}
    theirs, mine = pair(kind, **options)
    assert isinstance(mine, type(theirs))
    assert repr(mine) == f"vkrnn.torch.{theirs!r}"
    assert repr(type("Mine", (type(mine),), {})(3, 5)) == "Mine(3, 5)"
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())
    with pytest.raises(ValueError, match="hidden_size must be greater than zero"):
        getattr(ours, kind)(3, 0)
    assert getattr(ours, kind)(3, 5, dtype=torch.float64).weight_hh_l0.dtype == torch.float64


@every_kind
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies(kind: str, clone: Callable[[Any], Any]) -> None:
    """Copies and pickles are vkrnn modules that compute the same."""
    module = getattr(ours, kind)(**SMALL)
    copied = clone(module)
    assert type(copied) is type(module)
    x = torch.rand(5, 2, 3)
    assert torch.equal(copied(x)[0], module(x)[0])


def message(call: Callable[[], object]) -> tuple[type, str]:
    """Return the class and message of the error that a call raises."""
    with pytest.raises(Exception) as error:
        call()
    return error.type, str(error.value)


@every_kind
@pytest.mark.parametrize(
    ("shape", "hx"),
    [
        ((5, 2, 4), None),
        ((5, 2, 3, 1), None),
        ((5,), None),
        ((0, 2, 3), None),
        ((5, 2, 3), (2, 2, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((5, 2, 3), (1, 2, 5)),
        ((5, 2, 3), (1, 4)),
        ((5, 3), (1, 2, 4)),
        ((5, 3), (2, 4)),
    ],
    ids=str,
)
def test_wrong_shapes(kind: str, shape: tuple[int, ...], hx: tuple[int, ...] | None) -> None:
    """The errors are those of torch's module."""
    theirs, mine = pair(kind, **SMALL)
    start = None if hx is None else torch.zeros(hx)
    if hx is not None and kind == "LSTM":
        start = (start, start)
    wanted, got = (message(lambda module=module: module(torch.zeros(shape), start)) for module in (theirs, mine))
    # torch's RNN says "4D tensor instead" where the other two say "4D instead".
    assert got == (wanted[0], wanted[1].replace("D tensor instead", "D instead"))


@every_kind
def test_wrong_dtypes(kind: str) -> None:
    """An input of another dtype has torch's error, and an initial state a message of its own."""
    theirs, mine = pair(kind, **SMALL)
    x = torch.zeros(5, 2, 3, dtype=torch.float64)
    assert message(lambda: mine(x)) == message(lambda: theirs(x))
    kind_of, text = message(lambda: mine(x.float(), initial(mine, 2, torch.float64)))
    assert kind_of is RuntimeError
    assert text == f"[vkrnn.torch.{kind}] hx: expected dtype torch.float32, the input's, got torch.float64"


@every_kind
def test_what_is_no_tensor(kind: str) -> None:
    """The message says what was expected, and what came, for the input and the states."""
    module, x = getattr(ours, kind)(**SMALL), torch.zeros(5, 2, 3)
    array = x.numpy()
    for mode in (torch.enable_grad(), torch.no_grad()):
        with mode:
            for _ in range(3):  # until the weights are kept
                module(x)
            wanted = f"[vkrnn.torch.{kind}] input: expected a torch.Tensor or a PackedSequence, got"
            assert message(lambda: module(array)) == (TypeError, f"{wanted} ndarray")
            assert message(lambda: module([1.0])) == (TypeError, f"{wanted} list")
            wanted = f"[vkrnn.torch.{kind}] hx: expected a torch.Tensor, got"
            for states in (array, (array, array), [array]):
                assert message(functools.partial(module, x, states)) == (TypeError, f"{wanted} ndarray")


def test_list_of_states() -> None:
    """As with torch's modules, an LSTM accepts h and c as a list, and a GRU accepts no list."""
    theirs, mine = pair("LSTM", **SMALL)
    h, c = initial(theirs, 2)
    packed = fed_to(theirs, "packed", 5, 2)
    for x, start in (
        (torch.rand(5, 2, 3), [h, c]),
        (packed, [h, c]),
        (torch.rand(5, 3), [h[:, 0], c[:, 0]]),
    ):
        found = [leaves(module(x, start)) for module in (theirs, mine)]
        found = [[t.detach().numpy() for t in each if t is not None and t.is_floating_point()] for each in found]
        assert all(scaled_error(got, wanted) < FLOAT32 for wanted, got in zip(*found, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        assert mine(torch.rand(5, 2, 3).bfloat16(), [h, c])[0].dtype == torch.float32
    for kind, start in (("LSTM", [h, c, c]), ("LSTM", [h]), ("LSTM", [h[0], c]), ("GRU", [h]), ("GRU", (h, c))):
        theirs, mine = pair(kind, **SMALL)
        x = torch.rand(5, 2, 3)
        wanted, got = (message(functools.partial(module, x, start)) for module in (theirs, mine))
        assert got == (wanted[0], wanted[1].replace("list index", "tuple index"))


@every_kind
@pytest.mark.parametrize("fed", ["batched", "packed unsorted"])
def test_default_device(kind: str, fed: str) -> None:
    """The default device of torch does not matter."""
    module = getattr(ours, kind)(**SMALL)
    given = fed_to(module, fed, 6, 4)
    wanted = leaves(module(given))
    with torch.device("meta"):
        got = leaves(module(given))
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


@every_kind
def test_meta_tensors(kind: str) -> None:
    """Meta tensors give shapes. If only some tensors are on the meta device, the error is torch's."""
    theirs, mine = pair(kind, **SMALL)
    x, there = torch.rand(5, 2, 3), "meta"
    start = initial(mine, 2)
    elsewhere = tuple(s.to(there) for s in start) if kind == "LSTM" else start.to(there)
    abstract = copy.deepcopy(theirs).to(there), copy.deepcopy(mine).to(there)
    packed = fed_to(theirs, "packed", 5, 2).to(there)
    output, last = abstract[1](x.to(there), elsewhere)
    assert (output.device.type, output.shape, states(last)[0].shape) == (there, (5, 2, 4), (1, 2, 4))
    assert abstract[1](packed)[0].data.shape == abstract[0](packed)[0].data.shape == (len(packed.data), 4)
    calls: list[tuple[tuple[Any, Any], Any]] = [
        ((theirs, mine), (x.to(there),)),
        (abstract, (x,)),
        ((theirs, mine), (x, elsewhere)),
    ]
    for modules, given in calls:
        wanted, got = (message(functools.partial(module, *given)) for module in modules)
        assert got == wanted
    mine.bias_hh_l0 = torch.nn.Parameter(mine.bias_hh_l0.to(there))
    wanted = r"^\[vkrnn::network\] expected tensors on one device, got some on cpu and meta$"
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), pytest.raises(RuntimeError, match=wanted):
            mine(x)


@every_kind
def test_no_rows(kind: str) -> None:
    """With N = 0, the output has no rows."""
    theirs, mine = pair(kind, **SMALL)
    wanted, got = (module(torch.zeros(5, 0, 3)) for module in (theirs, mine))
    assert got[0].shape == wanted[0].shape == (5, 0, 4)
    assert [state.shape for state in states(got[1])] == [state.shape for state in states(wanted[1])]


@every_kind
def test_packed_sequences(kind: str) -> None:
    """The packed output has the input's order and padding."""
    theirs, mine = pair(kind, **SMALL, bidirectional=True)
    packed = fed_to(theirs, "packed unsorted", 6, 4)
    wanted, got = (module(packed)[0] for module in (theirs, mine))
    assert torch.equal(got.batch_sizes, wanted.batch_sizes)
    assert torch.equal(got.unsorted_indices, wanted.unsorted_indices)
    padded = [torch.nn.utils.rnn.pad_packed_sequence(found)[0].detach().numpy() for found in (got, wanted)]
    assert scaled_error(*padded) < FLOAT32


@every_kind
def test_packed_sequences_are_not_padded(kind: str) -> None:
    """Skewed lengths save as much for autograd as the same number of rows in equal lengths."""
    kept = []
    for lengths in ([100] + [1] * 28, [4] * 32):
        sizes: list[int] = []
        data = torch.nn.utils.rnn.pack_padded_sequence(torch.rand(max(lengths), len(lengths), 3), torch.tensor(lengths))
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, sizes=sizes: sizes.append(tensor.numel()), id):
            getattr(ours, kind)(**SMALL)(data)
        kept.append(sum(sizes))
    assert abs(kept[0] - kept[1]) < 128, kept  # the lengths are saved, too


@every_kind
def test_dropout(kind: str) -> None:
    """It applies between layers in training only, and equals torch's with the same seed, packed or not."""
    theirs, mine = pair(kind, **SMALL, num_layers=3, dropout=0.5)
    x = torch.rand(6, 2, 3)
    for train, given in itertools.product((True, False), (x, fed_to(theirs, "packed unsorted", 6, 4))):
        found = []
        for module in (theirs.train(train), mine.train(train)):
            torch.manual_seed(3)
            output = module(given)[0]
            found.append((output if given is x else output.data).detach().numpy())
        assert scaled_error(found[1], found[0]) < FLOAT32
    mine.train()
    assert not torch.equal(mine(x)[0], mine(x)[0])
    mine.eval()
    assert torch.equal(mine(x)[0], mine(x)[0])
    one_layer = getattr(ours, kind)(**SMALL).train()
    assert torch.equal(one_layer(x)[0], one_layer(x)[0])


@every_kind
def test_dropout_keeps_the_scale(kind: str) -> None:
    """The mean over many draws is the value without dropout."""
    module = getattr(ours, kind)(3, 4, 2, dropout=0.4)
    with torch.no_grad():  # small values, so that the second layer is nearly linear
        for parameter in module.parameters():
            parameter.mul_(0.1)
        x = torch.rand(2, 4000, 3)
        x[:] = x[:, :1]
        dropped, kept = module.train()(x)[0].mean(1), module.eval()(x)[0].mean(1)
    assert torch.allclose(dropped, kept, rtol=0.02, atol=2e-5)


@every_kind
def test_eval_keeps_no_training_state(kind: str) -> None:
    """Without gradients nothing is saved. Gradients work in eval mode, too."""
    module = getattr(ours, kind)(**SMALL).eval()
    x = torch.rand(5, 2, 3)
    with torch.no_grad():
        assert not module(x)[0].requires_grad
    with torch.inference_mode():
        assert module(x)[0].shape == (5, 2, 4)
    module(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@every_kind
def test_only_the_last_state(kind: str) -> None:
    """A loss of h_n alone gives torch's gradients."""
    theirs, mine = pair(kind, **SMALL, bidirectional=True)
    x = torch.rand(5, 2, 3)
    for module in (theirs, mine):
        states(module(x)[1])[0].square().sum().backward()
    assert_close(
        {name: parameter.grad.numpy() for name, parameter in mine.named_parameters()},
        {name: parameter.grad.numpy() for name, parameter in theirs.named_parameters()},
    )


@every_kind
def test_functional_call(kind: str) -> None:
    """It uses the given parameters instead of the module's."""
    theirs, mine = pair(kind, **SMALL)
    given = {name: torch.zeros_like(parameter) for name, parameter in mine.named_parameters()}
    x = torch.rand(5, 2, 3)
    wanted, got = (torch.func.functional_call(module, given, (x,))[0] for module in (theirs, mine))
    assert torch.equal(got, wanted)


@every_kind
def test_other_devices_are_refused(kind: str) -> None:
    """The message names the argument. The tensors here are fake ones without data."""
    module = getattr(ours, kind)(**SMALL)
    expected = (
        "expected a tensor on the CPU or a CUDA device, got one on mps:0; "
        "vkrnn shares no memory with other devices of torch"
    )
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        there = torch.empty(5, 2, 3, device="mps:0")
        assert message(lambda: module(there)) == (NotImplementedError, f"[vkrnn.torch.{kind}] input: {expected}")
        start = torch.empty(1, 2, 4, device="mps:0")
        start = (start, start) if kind == "LSTM" else start
        call = lambda: module(torch.empty(5, 2, 3), start)  # noqa: E731
        assert message(call) == (NotImplementedError, f"[vkrnn.torch.{kind}] hx: {expected}")


@every_kind
def test_autocast(kind: str) -> None:
    """Under autocast, a module computes in its parameters' dtype, whatever dtype its input has."""
    module, x = getattr(ours, kind)(**SMALL), torch.rand(5, 2, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)[0]
        packed = module(torch.nn.utils.rnn.pack_padded_sequence(x, [5, 4]))[0]
    assert torch.equal(found, module(x.float())[0])
    assert packed.data.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_shared(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Weights and input are read in place, and the output is the call's own memory."""
    seen: dict[str, int] = {}

    def spy(planned: Any, operands: Any) -> Any:
        seen.update(zip([name for name, _ in planned.kind.names], [each.data_ptr() for each in operands], strict=True))
        results = run(planned, operands)
        seen["output"] = results["output", 0].data_ptr()
        return results

    run = _calls.Planned.run
    monkeypatch.setattr(_calls.Planned, "run", spy)
    module, x = ours.GRU(8, 32, dtype=getattr(torch, dtype)), torch.rand(9, 4, 8).to(getattr(torch, dtype))
    output, _ = module(x)
    wanted = {
        "source": x,
        "input_weight": module.weight_ih_l0,
        "recurrent_weight": module.weight_hh_l0,
        "output": output,
    }
    assert {name: seen[name] for name in wanted} == {name: t.data_ptr() for name, t in wanted.items()}
