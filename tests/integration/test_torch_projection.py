"""LSTMs with a projection are those of PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from comparison import assert_close
from oracles import require
from tolerances import TORCH_IN_FLOAT64

torch = require("torch")
import vkrnn.torch as ours  # noqa: E402
from torch_modules import fed_to, work  # noqa: E402

# PyTorch's own affairs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("torch_seed")]
T, N, I, H, P = 5, 4, 3, 7, 2


def pair(*given: Any, **options: Any) -> tuple[Any, Any]:
    """Return a module of PyTorch in float64, and its conversion."""
    theirs = torch.nn.LSTM(I, H, *given, proj_size=P, dtype=torch.float64, **options)
    return theirs, ours.convert(copy.deepcopy(theirs))


def initial(module: Any, rows: int | None) -> Any:
    """Draw h and c."""
    layers = module.num_layers * (1 + module.bidirectional)
    batch = () if rows is None else (rows,)
    return tuple(torch.rand(layers, *batch, width, dtype=torch.float64) - 0.5 for width in (P, H))


@pytest.mark.parametrize("fed", ["batched", "unbatched", "packed", "packed unsorted"])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (1, {}),
        (1, {"bidirectional": True}),
        (2, {"bias": False}),
        (3, {"bidirectional": True, "batch_first": True}),
    ],
)
@pytest.mark.parametrize("steps", [1, T])
def test_results_and_gradients(layers: int, options: dict[str, Any], fed: str, steps: int, *, has_states: bool) -> None:
    """Outputs, last states and all gradients equal PyTorch's, also where a reverse direction begins at a row's end."""
    theirs, mine = pair(layers, **options)
    given = fed_to(theirs, fed, steps, N)
    hx = initial(theirs, None if fed == "unbatched" else N) if has_states else None
    assert_close(work(mine, given, hx), work(theirs, given, hx), TORCH_IN_FLOAT64)


def test_state_dict() -> None:
    """Parameters have PyTorch's names, shapes and numbers, and `revert` gives PyTorch's module back."""
    torch.manual_seed(3)
    theirs = torch.nn.LSTM(I, H, 2, bidirectional=True, proj_size=P)
    torch.manual_seed(3)
    mine = ours.LSTM(I, H, 2, bidirectional=True, proj_size=P)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in mine.state_dict().items())
    assert repr(mine) == f"vkrnn.torch.{theirs!r}"
    x = torch.rand(T, N, I)
    wanted = theirs(x)[0]
    torch.testing.assert_close(mine(x)[0], wanted)
    assert type(ours.revert(mine)) is torch.nn.LSTM
    assert torch.equal(mine(x)[0], wanted)


def test_dropout_is_torchs() -> None:
    """With the same seed, dropout between layers drops the same units."""
    theirs, mine = pair(2, dropout=0.5)
    x, found = torch.rand(T, N, I, dtype=torch.float64), []
    for module in (theirs, mine):
        torch.manual_seed(2)
        found.append(module(x)[0])
    torch.testing.assert_close(*found)


def test_without_gradients() -> None:
    """Repeated calls without gradients see a change of the projection."""
    theirs, mine = pair(2)
    x, hx = torch.rand(1, N, I, dtype=torch.float64), initial(theirs, N)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(mine(x, hx), theirs(x, hx))
            for module in (theirs, mine):
                module.weight_hr_l0[1] += 1


def test_second_derivatives_and_transforms() -> None:
    """Second derivatives, vmap, forward mode and the compiler work."""
    theirs, mine = pair(1, bidirectional=True)
    x, hx = torch.rand(2, 2, I, dtype=torch.float64), tuple(each.requires_grad_() for each in initial(theirs, 2))
    names = list(dict(mine.named_parameters()))

    def run(x: Any, h: Any, c: Any, *weights: Any) -> Any:
        return torch.func.functional_call(mine, dict(zip(names, weights, strict=True)), (x, (h, c)))[0]

    given = [x.requires_grad_(), *hx, *(each.detach().requires_grad_() for each in mine.parameters())]
    assert torch.autograd.gradcheck(run, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *few: run(*few, *given[3:]), given[:3])
    many = torch.rand(3, 2, 2, I, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(lambda x: mine(x)[0])(many), torch.stack([theirs(x)[0] for x in many]))
    compiled = torch.compile(mine, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, hx), theirs(x, hx))
    torch._dynamo.reset()


def test_options() -> None:
    """Options of the gates equal PyTorch's equations; those that act on h are refused."""
    module = ours.LSTM(I, H, proj_size=P, peephole=True, dtype=torch.float64, zoneout_cell=0.25).eval()
    x, (h_0, c_0) = torch.rand(T, N, I, dtype=torch.float64), initial(module, N)
    h, c, outputs = h_0[0], c_0[0], []
    p_i, p_f, p_g, p_o = module.peephole_l0.chunk(4)
    biases = module.bias_ih_l0 + module.bias_hh_l0
    for row in x:
        i, f, g, o = (row @ module.weight_ih_l0.T + h @ module.weight_hh_l0.T + biases).chunk(4, 1)
        i, f, g, o = (i + p_i * c).sigmoid(), (f + p_f * c).sigmoid(), (g + p_g * c).tanh(), (o + p_o * c).sigmoid()
        new = f * c + i * g
        h, c = (o * new.tanh()) @ module.weight_hr_l0.T, new
        c = 0.75 * new + 0.25 * outputs[-1][1] if outputs else 0.75 * new + 0.25 * c_0[0]
        outputs.append((h, c))
    torch.testing.assert_close(module(x, (h_0, c_0))[0], torch.stack([h for h, _ in outputs]))
    for name, value in (("recurrent_dropout", 0.5), ("zoneout", 0.5), ("heads", True)):
        given = 7 if name == "heads" else value
        with pytest.raises(NotImplementedError) as refused:
            ours.LSTM(I, H, proj_size=P, **{name: given})
        assert str(refused.value) == f"[vkrnn.torch.LSTM] {name}: not with proj_size, got {value!r}"
    with pytest.raises(NotImplementedError, match=r"reset: not with proj_size, got 2$"):
        module(x, reset=torch.zeros(T, N, dtype=torch.bool))
    module.recurrent_dropout = 0.5
    module(x)
    with pytest.raises(NotImplementedError, match=r"recurrent_dropout: not with proj_size, got 0.5$"):
        module.train()(x)
