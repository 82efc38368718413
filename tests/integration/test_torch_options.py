"""The modules' options beyond PyTorch's: results, gradients, parameters, copies, recurrent masks and training."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import random
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import vkrnn
from comparison import assert_close
from oracles import require
from tolerances import DTYPES, TORCH_IN_FLOAT64
from vkrnn.convert._torch import _OF_CALLS

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_loops import DEFAULTS, NUMBERS, Loop  # noqa: E402
from torch_modules import LIVELY, H, I, fed_to, initial, lively, states, work  # noqa: E402
from vkrnn.torch._recurrent import Recurrent  # noqa: E402

# PyTorch's own affairs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
T, N = 4, 3
every_kind = pytest.mark.parametrize("kind", LIVELY)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the recurrent masks that modules draw."""
    drawn: list[Any] = []
    draw = Recurrent._mask

    def recorded(*given: Any) -> Any:
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(Recurrent, "_mask", recorded)
    return drawn


def configurations() -> Iterator[Any]:
    """Draw modules with options, and what is fed to them."""
    draw = random.Random(39)  # noqa: S311 - no secrets
    for number in range(72):
        kind = draw.choice([*DEFAULTS])
        options: dict[str, Any] = {}
        for name, default in DEFAULTS[kind].items():
            if draw.random() < 0.5:
                if isinstance(default, bool):
                    options[name] = not default
                else:
                    options[name] = draw.choice(["none", "relu", "tanh", "sigmoid", "hard_sigmoid"])
        for name in NUMBERS:
            if draw.random() < 0.3:
                options[name] = draw.uniform(0.2, 0.9)
        sizes = {
            "input_size": draw.randint(1, 9),
            "hidden_size": draw.choice([1, 4, 7, 17]),
            "num_layers": draw.choice([1, 1, 2]),
            "bias": draw.random() < 0.7,
            "batch_first": draw.random() < 0.4,
            "bidirectional": draw.random() < 0.5,
        }
        divisors = [n for n in range(1, sizes["hidden_size"] + 1) if sizes["hidden_size"] % n == 0]
        if number % 3 == 1:
            options["heads"] = divisors[number // 3 % len(divisors)]
        if number % 4 == 1:
            sizes["input_size"] *= sizes["hidden_size"]
            options["input_heads"] = divisors[number // 4 % len(divisors)]
        dropout = draw.choice([0.0, 0.3, 0.7])
        fed = draw.choice(["batched", "batched", "unbatched", "packed", "packed unsorted"])
        shape = draw.randint(1, 9), draw.choice([1, 2, 5])
        hx, dtype = draw.random() < 0.5, draw.choice(["float32", "float64", "float64"])
        yield pytest.param(
            kind, options, sizes, dropout, fed, shape, hx, dtype, id=f"{number} {kind} {fed} {dropout} {dtype}"
        )


@pytest.mark.parametrize(("kind", "options", "sizes", "dropout", "fed", "shape", "hx", "dtype"), [*configurations()])
def test_results_and_gradients(
    kind: str,
    options: dict[str, Any],
    sizes: dict[str, Any],
    dropout: float,
    fed: str,
    shape: tuple[int, int],
    *,
    hx: bool,
    dtype: str,
    masks: list[Any],
) -> None:
    """Outputs, last states and all gradients are those of a loop in float64, in training with the drawn masks."""
    module = getattr(ours, kind)(**sizes, **options, recurrent_dropout=dropout)
    given = fed_to(module, fed, *shape)
    start = initial(module, None if fed == "unbatched" else shape[1]) if hx else None
    found = work(module.to(getattr(torch, dtype)), given, start)
    assert len(masks) == (sizes["num_layers"] if dropout else 0)
    assert_close(found, work(Loop(module, options, masks), given, start), DTYPES[dtype])
    masks.clear()
    found = work(module.eval(), given, start)
    assert not masks
    assert_close(found, work(Loop(module, options), given, start), DTYPES[dtype])


@every_kind
def test_gradcheck(kind: str) -> None:
    """Gradients agree with finite differences, with recurrent dropout, too."""
    module = lively(kind, 2, bidirectional=True, recurrent_dropout=0.4, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]
    hx = [state.requires_grad_() for state in states(initial(module, N, torch.float64))]
    x = torch.rand(T, N, I, dtype=torch.float64).requires_grad_()

    def run(x: Any, *given: Any) -> Any:
        torch.manual_seed(1)  # the same masks
        start, parameters = given[: len(hx)], dict(zip(names, given[len(hx) :], strict=True))
        output, last = torch.func.functional_call(module, parameters, (x, start if kind == "LSTM" else start[0]))
        return output, *states(last)

    assert torch.autograd.gradcheck(run, [x, *hx, *module.parameters()])


def test_where_torch_has_the_option() -> None:
    """Options that PyTorch has under another name, or that change nothing, give its numbers."""
    pairs = [
        (torch.nn.RNN(I, H, nonlinearity="relu"), ours.RNN(I, H, activation="relu")),
        (torch.nn.LSTM(I, H, 2), ours.LSTM(I, H, 2, peephole=True)),
        (torch.nn.GRU(I, H), ours.GRU(I, H, clip=100.0)),
    ]
    x = torch.rand(T, N, I)
    for theirs, mine in pairs:
        for parameter in mine.parameters():
            torch.nn.init.zeros_(parameter)
        mine.load_state_dict(theirs.state_dict(), strict=False)
        found, wanted = work(mine.double(), x, None), work(theirs.double(), x, None)
        assert_close({name: found[name] for name in wanted}, wanted, TORCH_IN_FLOAT64)


@every_kind
def test_no_option_leaves_no_trace(kind: str) -> None:
    """Options at their defaults make the module that there is without them."""
    given = {name: value for name, value in (DEFAULTS[kind] | NUMBERS).items() if kind != "RNN" or name != "activation"}
    plain, named = getattr(ours, kind)(I, H), getattr(ours, kind)(I, H, **given, recurrent_dropout=0)
    assert vars(plain).keys() == vars(named).keys()
    assert list(named.state_dict()) == list(getattr(torch.nn, kind)(I, H).state_dict())
    assert repr(named) == f"vkrnn.torch.{kind}({I}, {H})"
    assert type(ours.revert(named)) is getattr(torch.nn, kind)


def test_parameters() -> None:
    """Peepholes are the only new parameters. They come last, in PyTorch's distribution, and with the other's dtype."""
    torch.manual_seed(7)
    theirs = torch.nn.LSTM(3, 400, 2, bidirectional=True, dtype=torch.float64)
    torch.manual_seed(7)
    mine = ours.LSTM(3, 400, 2, bidirectional=True, dtype=torch.float64, peephole=True)
    added = ["peephole_l0", "peephole_l0_reverse", "peephole_l1", "peephole_l1_reverse"]
    assert list(mine.state_dict()) == [*theirs.state_dict(), *added]
    assert all(torch.equal(mine.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    for _ in range(2):
        for name in added:
            peephole = getattr(mine, name)
            assert (peephole.shape, peephole.dtype, peephole.requires_grad) == ((1600,), torch.float64, True)
            assert 0.049 < peephole.max() <= 0.05
            assert -0.05 <= peephole.min() < -0.049
        before = mine.peephole_l0.clone()
        mine.reset_parameters()
        assert not torch.equal(mine.peephole_l0, before)
    for kind in ("GRU", "RNN"):
        assert list(lively(kind).state_dict()) == list(getattr(torch.nn, kind)(I, H).state_dict())


@every_kind
def test_representation(kind: str) -> None:
    """A module shows the options that it was made with, which make it again."""
    options = LIVELY[kind] | {"recurrent_dropout": 0.25}
    module = getattr(ours, kind)(3, 5, 2, **options)
    shown = set(re.findall(r"(\w+=[^,)]+)", repr(module)))
    assert shown == {f"{name}={value!r}" for name, value in {"num_layers": 2, **options}.items()}
    assert repr(eval(repr(module), {"vkrnn": vkrnn})) == repr(module)  # noqa: S307 - of our own
    assert module.descriptor.clip == 0.9


@every_kind
def test_copies(kind: str) -> None:
    """Copies, pickles and files compute the same."""
    module, x = lively(kind, recurrent_dropout=0.5), torch.rand(T, N, I)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for each in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)):
        found = []
        for one in (module, each):
            torch.manual_seed(3)
            found.append(one(x)[0])
        assert torch.equal(*found)
        assert torch.equal(each.eval()(x)[0], copy.deepcopy(module).eval()(x)[0])
        assert repr(each) == repr(module)


@every_kind
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(kind: str, dtype: str) -> None:
    """Modules with options convert to the 16-bit types and run within a rounding of float64."""
    module = lively(kind, recurrent_dropout=0.5).to(getattr(torch, dtype)).eval()
    x = torch.rand(T, N, I).to(getattr(torch, dtype))
    found, wanted = module(x)[0], Loop(module, LIVELY[kind])(x.double())[0]
    assert_close({"output": found.double().detach().numpy()}, {"output": wanted.detach().numpy()}, DTYPES[dtype])
    assert module.train()(x)[0].dtype == x.dtype


@every_kind
def test_masks(kind: str, masks: list[Any]) -> None:
    """Masks are drawn for each layer, direction, row and unit, scaled as Keras scales them; a seed repeats them."""
    module = getattr(ours, kind)(I, 400, 2, bidirectional=True, recurrent_dropout=0.2)
    x = torch.rand(T, N, I)
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append(module(x)[0])
    assert torch.equal(*found)
    first, second = masks[:2]
    assert first.shape == second.shape == (1, N, 800)
    assert set(first.unique().tolist()) == {0.0, 1.25}
    assert 0.75 < (first > 0).double().mean() < 0.85
    rows = [row for mask in (first, second) for part in mask[0].split(400, dim=1) for row in part]
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)
    module.recurrent_dropout = 1.0
    torch.testing.assert_close(module(x)[0], Loop(module, {}, [0 * first, 0 * first])(x.double())[0].float())


@every_kind
def test_dropout_of_a_converted_module(kind: str, masks: list[Any]) -> None:
    """`recurrent_dropout` can be set like `dropout`, also of a module that `convert` has made."""
    module, x = ours.convert(getattr(torch.nn, kind)(I, H)), torch.rand(T, N, I)
    module(x)
    assert not masks
    module.recurrent_dropout = 0.5
    module(x)
    assert len(masks) == 1


@every_kind
def test_kept_weights(kind: str, runs: list[Any], masks: list[Any]) -> None:
    """Without gradients the weights are kept, with the same bits; in training with recurrent dropout they are not."""
    for options in ({}, {"bidirectional": True}, {"bias": False}):
        module, x = lively(kind, 2, recurrent_dropout=0.5, **options).eval(), torch.rand(T, N, I)
        hx = initial(module, N)
        with torch.no_grad():
            wanted = copy.deepcopy(module)(x, hx)
            runs.clear()
            for _ in range(3):
                found = module(x, hx)
            assert len(runs) == 2
            for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, wanted)), strict=True):
                assert torch.equal(one, other)
            if kind == "LSTM":
                module.peephole_l1[3] += 1
                assert not torch.equal(module(x, hx)[0], found[0])
            assert not masks
            module.training = True
            assert not torch.equal(module(x, hx)[0], module(x, hx)[0])
            assert len(masks) == 4
            masks.clear()


@every_kind
def test_masks_under_vmap(kind: str, masks: list[Any]) -> None:
    """A map with different randomness draws other masks for each example, with the same randomness one."""
    module, x = lively(kind, recurrent_dropout=0.5), torch.rand(1, T, N, I).repeat(6, 1, 1, 1)
    run = lambda x: module(x)[0]  # noqa: E731
    with torch.no_grad():
        same = torch.vmap(run, randomness="same")(x)
        assert all(torch.equal(each, same[0]) for each in same)
        different = torch.vmap(run, randomness="different")(x)
        assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(run)(x)
    assert masks


@every_kind
def test_training_with_an_optimizer(kind: str) -> None:
    """Every parameter is trained."""
    module = lively(kind, recurrent_dropout=0.1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    before, losses = copy.deepcopy(module), []
    x, y = torch.rand(7, 4, I), 0.5 * torch.rand(7, 4, H)
    for _ in range(60):
        optimizer.zero_grad()
        loss = (module(x)[0] - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    for name, parameter in before.named_parameters():
        assert not torch.equal(parameter, getattr(module, name)), name


@every_kind
def test_no_rows(kind: str) -> None:
    """A batch without rows has an output without rows."""
    output, last = lively(kind, recurrent_dropout=0.5)(torch.zeros(T, 0, I))
    assert output.shape == (T, 0, H)
    assert states(last)[0].shape == (1, 0, H)


@every_kind
def test_every_option_of_the_descriptor(kind: str) -> None:
    """The constructor takes PyTorch's arguments, and as keywords all options of the descriptor but those of calls."""
    found = inspect.signature(getattr(ours, kind)).parameters
    torchs = [name for name, parameter in found.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    options = {field.name for field in fields(getattr(ours, kind)(I, H).descriptor)} - _OF_CALLS
    beyond = {"recurrent_dropout", "weight_dropout", "learn_initial_state", "zoneout", "backend"}
    beyond |= {"peephole", "zoneout_cell", "forget_bias"} if kind == "LSTM" else set()
    assert set(found) - set(torchs) == options | beyond
    given = [I, H, 2, *(["relu"] if kind == "RNN" else []), False, True, 0.25, True]
    device = {"device": "cpu", "dtype": torch.float64}
    theirs, mine = (getattr(where, kind)(*given, **device) for where in (torch.nn, ours))
    assert repr(mine) == f"vkrnn.torch.{theirs!r}"
    assert [(name, value.shape, value.dtype) for name, value in mine.state_dict().items()] == [
        (name, value.shape, value.dtype) for name, value in theirs.state_dict().items()
    ]


@every_kind
def test_as_a_stream(kind: str) -> None:
    """A module with options converts to layers of vkrnn, and to a stream."""
    module, x = lively(kind, 2).eval(), torch.rand(T, 1, I)
    stream = vkrnn.stream(vkrnn.convert.from_torch(module))
    torch.testing.assert_close(torch.from_numpy(stream.step(x.numpy())), module(x)[0].detach())
