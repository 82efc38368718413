"""What the host does for calls of vkrnn.torch on a CUDA device: repeated calls, lengths, gradients of cells."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest

import vkrnn
from scale import HANGS_AFTER
from targets import require_cuda_device

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no CUDA device", allow_module_level=True)
require_cuda_device()

import vkrnn.torch as ours  # noqa: E402

T, N, I, H = 9, 5, 7, 12


def drawn(*shape: int) -> Any:
    """Return a tensor on the device."""
    return torch.randn(shape, dtype=torch.float64, device="cuda")


def weights(directions: int = 1) -> dict[str, Any]:
    """Return an LSTM's matrices."""
    stacked = (4 * H, H) if directions == 1 else (directions, 4 * H, H)
    return {"recurrent_weight": drawn(*stacked) / 4, "input_weight": drawn(directions * 4 * H, I) / 4}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_repeated_calls(name: str, gradients: bool) -> None:  # noqa: FBT001
    """They read inputs, states and parameters anew, also those that PyTorch does not count as changed."""
    module = getattr(ours, name)(I, H, 2, backend="vkrnn").double().cuda()
    theirs = getattr(torch.nn, name)(I, H, 2).double().cuda()
    states = [drawn(2, N, H) for _ in range(1 + (name == "LSTM"))]
    for number in range(4):
        x = drawn(T, N, I)
        module.bias_hh_l1.data[number] += 1
        with torch.no_grad():
            module.weight_ih_l0[number] -= 1
        theirs.load_state_dict(module.state_dict())
        found = []
        with torch.set_grad_enabled(gradients):
            for each in (module, theirs):
                hx = [state.clone().requires_grad_(gradients) for state in states]
                source = x.clone().requires_grad_(gradients)
                output, last = each(source, tuple(hx) if name == "LSTM" else hx[0])
                found.append([output, *(last if name == "LSTM" else [last])])
                if gradients:
                    loss = sum(tensor.sin().sum() for tensor in found[-1])
                    found[-1] += torch.autograd.grad(loss, [source, *hx, *each.parameters()])
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-9)
        states = [tensor.detach() for tensor in found[0][1 : 1 + len(states)]]
    assert "_kept" in module.__dict__


@pytest.mark.parametrize("packed", [False, True])
def test_the_host_does_not_wait_for_lengths(packed: bool) -> None:  # noqa: FBT001
    """If they are in its memory. The call returns before what was submitted earlier is done."""
    lengths = torch.tensor([9, 7, 3, 1])
    module = ours.LSTM(I, H, 2, bidirectional=True, backend="vkrnn").double().cuda()
    given, x = weights(), drawn(T, 4, I).requires_grad_()
    returned = threading.Event()
    waits = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: returned.wait(HANGS_AFTER) and None)
    for number in range(3):
        sequences = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
        torch.cuda.synchronize()
        if number == 2:  # the first call compiles, and the second is the first that adds to a gradient
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            assert ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(stream, waits, None) == 0
        before = torch.cuda.Event()
        before.record()
        output = module(sequences)[0].data if packed else ours.lstm(x, **given, lengths=lengths).output
        output.sum().backward()
    early = not before.query()
    returned.set()
    torch.cuda.synchronize()  # `waits` has been called
    assert early


@pytest.mark.parametrize("packed", [False, True])
def test_lengths_are_in_no_graph(packed: bool) -> None:  # noqa: FBT001
    """A graph would read the host's memory again, whatever is there then."""
    module, x = ours.LSTM(I, H, backend="vkrnn").double().cuda(), drawn(T, 2, I)
    lengths, given = torch.tensor([9, 4]), weights()
    sequences = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)

    def call() -> Any:
        return module(sequences) if packed else ours.lstm(x, **given, lengths=lengths)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.add_(1)
            call()

    with torch.no_grad():
        call()
        with pytest.raises(RuntimeError, match="a call with lengths cannot be captured"):
            capture()
        call()


def test_memory_that_runs_out() -> None:
    """A call raises an error, whatever it was about to allocate. After that, everything works as before."""
    module = ours.LSTM(512, 512, backend="vkrnn").cuda()
    x = torch.randn(64, 64, 512, device="cuda")
    wanted = module(x)[0].detach()
    _, total = torch.cuda.mem_get_info()
    try:
        for mebibytes in range(0, 120, 8):
            torch.cuda.empty_cache()
            allowed = torch.cuda.memory_allocated() + (mebibytes << 20)
            torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))
            try:
                module(x)[0].sum().backward()
            except (MemoryError, torch.OutOfMemoryError) as error:
                last = mebibytes, str(error)
        assert last[0] > 0
        assert "memory" in last[1]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(module(x)[0], wanted)


@pytest.mark.parametrize("lengths", [None, [9, 3, 1, 7, 9]])
def test_gradients_of_the_cells(lengths: Any) -> None:
    """Those of the last cells, and of all, are the CPU's."""
    descriptor = vkrnn.LSTMDescriptor(bidirectional=True, produce_cell=True)
    given = weights(2) | {"source": drawn(T, N, I)}
    ends = [each - 1 for each in lengths or [T] * N], range(N)
    found: list[list[Any]] = []
    for where in ("cpu", "cuda"):
        there = {name: tensor.detach().clone().to(where).requires_grad_() for name, tensor in given.items()}
        cells = ours.lstm(**there, descriptor=descriptor, lengths=lengths).cell_output
        found.append([])
        for loss in (cells[ends][:, :H].sin().sum() + cells[0, :, H:].cos().sum(), cells.sin().sum()):
            found[-1] += [each.cpu() for each in torch.autograd.grad(loss, list(there.values()), retain_graph=True)]
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
