"""Changes of a few elements of a weight that a module has packed: of its diagonal, version and address none changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import require
from tolerances import DTYPES

torch = require("torch")
from kept_modules import a_module, assert_same, plain, warm  # noqa: E402
from torch_modules import initial  # noqa: E402

pytestmark = pytest.mark.usefixtures("torch_seed", "no_gradients")

I, H = 70, 72
TURNS = (1, 2, 3)
Write = Callable[[int], Any]  # takes the number of the turn


def _antisymmetric(weight: Any) -> Write:
    """Give each gate the matrix A - A^T - 0.01 I."""
    skew = torch.randn(len(weight) // H, H, H) / 10
    diagonal = -0.01 * torch.eye(H)
    return lambda turn: weight.data.copy_(((skew - skew.mT) * turn / 3 + diagonal).view_as(weight))


def _spectral_radius(weight: Any) -> Write:
    """Scale the matrices of an echo state network, whose diagonals are 0."""
    hollow = (torch.randn(len(weight) // H, H, H) / 10 * (1 - torch.eye(H))).view_as(weight)
    return lambda turn: weight.data.copy_(hollow * turn / 2)


def _vector(weight: Any) -> Write:
    """Write to the vector that `vector_to_parameters` has made the memory of the weight."""
    vector = weight.detach().flatten().clone()
    torch.nn.utils.vector_to_parameters(vector, [weight])
    return lambda turn: vector[1001 * turn].add_(5)


def _data(weight: Any) -> Write:
    flat = weight.data.view(-1)
    return lambda turn: flat[701 * turn + 77].add_(5)


def _numpy(weight: Any) -> Write:
    bits = weight.data.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
    flat = bits.numpy().reshape(-1)
    five = torch.full((1,), 5.0, dtype=weight.dtype).view(bits.dtype).numpy()

    def write(turn: int) -> None:
        flat[502 * turn + 78] = five[0]

    return write


def _block(weight: Any) -> Write:
    return lambda turn: weight.data[30 + turn : 34 + turn, 20:24].fill_(2)


def _bit(weight: Any) -> Write:
    """Flip the sign of an element."""
    flat = weight.data.view(-1)
    flat[1234:1238] = 3
    bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
    lowest = torch.iinfo(bits.dtype).min
    return lambda turn: bits[1234 + turn].bitwise_xor_(lowest)


def _parameter(weight: Any) -> Write:
    return lambda turn: weight[5 + turn, 6].add_(3)


CHANGES = (_antisymmetric, _spectral_radius, _vector, _data, _numpy, _block, _bit, _parameter)
every_change = pytest.mark.parametrize("change", CHANGES)


def _check(change: Callable[[Any], Write], module: Any, weight: Any, runs: list[Any], **options: Any) -> None:
    """Compare a module before and after each change with one that keeps nothing, and with PyTorch's in float64."""
    dtype = weight.dtype
    theirs = getattr(torch.nn, module.mode.split("_")[0])(I, H, **options).double()
    write = change(weight)
    x = torch.randn(4, 2, I).to(dtype)
    step, states = x[:1, :1].contiguous(), initial(module, 1, dtype)
    before = None
    for turn in (0, *TURNS):
        if turn:
            write(turn)
        theirs.load_state_dict({name: each.double() for name, each in module.state_dict().items()})
        for given in ((step, states), (x, None)):  # a step and a sequence notice a change in ways of their own
            assert_same(module(*given), plain(module, *given))
        wanted = theirs(x.double())[0]
        np.testing.assert_allclose(module(x)[0].double(), wanted, rtol=0, atol=DTYPES[str(dtype).split(".")[1]])
        assert before is None or not torch.equal(before, wanted)
        before = wanted
        runs.clear()
        warm(module, x)
        assert_same(warm(module, step, states), plain(module, step, states))
        assert runs  # the weights are packed again


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@every_change
def test_every_change(change: Callable[[Any], Write], kind: str, runs: list[Any]) -> None:
    module = a_module(kind, I, H)
    _check(change, module, module.weight_hh_l0, runs)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@every_change
def test_every_dtype(change: Callable[[Any], Write], dtype: str, runs: list[Any]) -> None:
    module = a_module("LSTM", I, H).to(getattr(torch, dtype))
    _check(change, module, module.weight_hh_l0, runs)


@pytest.mark.parametrize("name", ["weight_hh_l0_reverse", "weight_hh_l1", "weight_ih_l1_reverse"])
@pytest.mark.parametrize("change", [_data, _bit])
def test_every_layer(change: Callable[[Any], Write], name: str, runs: list[Any]) -> None:
    options = {"num_layers": 2, "bidirectional": True}
    module = a_module("GRU", I, H, **options)
    _check(change, module, getattr(module, name), runs, **options)


@pytest.mark.parametrize("size", [40, 400])
def test_each_thread_of_a_step(size: int) -> None:
    """A long step has several threads, which share the bytes. Changes of the first and the last byte are noticed."""
    module, x = a_module("LSTM", size, size), torch.rand(1, 1, size)
    hx = initial(module, 1, torch.float32)
    for weight in module.parameters():
        data = weight.detach().numpy().reshape(-1).view(np.uint8)
        for place in (3, -1):
            warm(module, x, hx)
            data[place] ^= 0x80  # a sign
            assert_same(module(x, hx), plain(module, x, hx))


def test_modules_that_share_a_parameter(runs: list[Any]) -> None:
    """Each notices a change that is made through the other."""
    one, other = a_module("LSTM", I, H), a_module("LSTM", I, H)
    other.weight_hh_l0 = one.weight_hh_l0
    x = torch.rand(3, 1, I)
    warm(one, x)
    warm(other, x)
    runs.clear()
    one.weight_hh_l0.data[5, 6] += 3
    for module in (one, other):
        assert_same(module(x), plain(module, x))
    assert not runs


def test_several_threads() -> None:
    """A change is seen by the calls of all threads that begin after it."""
    module, x = a_module("GRU", I, H), torch.rand(1, 1, I)
    hx = initial(module, 1, torch.float32)
    flat = module.weight_hh_l0.data.view(-1)
    wrong: list[int] = []
    ready = threading.Barrier(5)

    def work() -> None:
        with torch.no_grad():
            for turn in range(20):
                ready.wait()  # the element has been changed
                wrong.extend(turn for _ in range(5) if not torch.equal(module(x, hx)[0], wanted[turn]))
                ready.wait()

    wanted: dict[int, Any] = {}
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        flat[100 + 7 * turn] += 3
        wanted[turn] = plain(module, x, hx)[0]
        ready.wait()
        ready.wait()
    for thread in threads:
        thread.join()
    assert not wrong
