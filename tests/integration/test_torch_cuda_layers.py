"""Networks as CUDA devices compute them, without a GPU: the CPU reads and writes the addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import cuda_on_cpu

torch = pytest.importorskip("torch")

import vkrnn  # noqa: E402
import vkrnn.torch as ours  # noqa: E402
from vkrnn.convert._torch_layout import GATES, torch_mode  # noqa: E402
from vkrnn.torch._network import Inputs, compute_network, compute_network_backward  # noqa: E402

T, N, I, H = 4, 3, 5, 6
MODES = ["LSTM", "GRU", "RNN_TANH", "GRU reset_after=False", "LSTM output_peephole_new_cell=True"]


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    """Let both ways compute on the CPU, whatever the default device is."""
    with vkrnn.Device("cpu ("):
        yield


def drawn(*shape: int, strided: bool = False) -> Any:
    """Return a tensor, contiguous or not."""
    tensor = torch.randn(*shape, 2, dtype=torch.float64)[..., 0]
    return tensor if strided else tensor.contiguous()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("given", ["all", "strided", "few"])
@pytest.mark.parametrize("mode", MODES)
def test_a_network_is_that_in_host_memory(
    mode: str, given: str, directions: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All results and gradients are the same bits, with and without optional arguments and frozen layers."""
    name, strided, few = torch_mode(mode), given == "strided", given == "few"
    torch.manual_seed(3)
    rows, lstm = directions * GATES[name] * H, name == "LSTM"

    def tensors_of(*shapes: Any) -> list[Any]:
        return [drawn(*shape, strided=strided) for shape in shapes]

    weights = []
    for layer in range(layers):
        weights += tensors_of((rows, directions * H if layer else I), (rows, H))
        weights += [] if few else tensors_of((rows,), (rows,), *[(rows,)] * lstm)
    state = layers * directions, N, H
    h_0, c_0 = [*([] if few else tensors_of(*[state] * (1 + lstm))), None, None][:2]
    masks = [] if few else tensors_of(*[(1, N, directions * H)] * layers)
    between = [] if few else tensors_of(*[(T, N, directions * H)] * (layers - 1))
    inputs = Inputs(*tensors_of((T, N, I)), weights, h_0, c_0, masks, between, None, mode, layers, 0)
    above = [*tensors_of((T, N, directions * H)), *([] if few else tensors_of(*[state] * (1 + lstm))), None, None][:3]
    for trained in range(layers + 1):
        found = []
        for in_place in (False, True):
            with monkeypatch.context() as patch:
                if in_place:
                    cuda_on_cpu.install(patch)
                each = inputs._replace(trained=trained)
                output, *last, kept = compute_network(each)
                found.append([output, *last, *kept])
                if trained < layers:
                    last_output = output if name == "GRU" else None
                    d_source, d_weights, *d_states = compute_network_backward(tuple(above), last_output, kept, each)
                    found[-1] += [d_source, *d_weights, *d_states]
                    assert (d_source is None) == (trained > 0)
        assert_same(*found)


def test_a_module_with_a_bias_of_another_type() -> None:
    """Each parameter's gradient has the parameter's type."""
    module = ours.LSTM(I, H)
    module.bias_ih_l0.data = module.bias_ih_l0.data.half()
    module(torch.randn(T, N, I))[0].sum().backward()
    assert module.bias_ih_l0.grad.dtype == torch.float16
    assert torch.equal(module.bias_hh_l0.grad.half(), module.bias_ih_l0.grad)


def assert_same(got: Any, wanted: Any) -> None:
    """Compare tensors, of which some are absent, and that none shares its memory with another one."""
    assert [each is None for each in got] == [each is None for each in wanted]
    there = [each for each in got if each is not None]
    for one, other in zip(there, (each for each in wanted if each is not None), strict=True):
        assert torch.equal(one, other)
        assert one.shape == other.shape
    assert len({each.untyped_storage().data_ptr() for each in there}) == len(there)


@pytest.mark.parametrize("packed", [False, True])
def test_lengths(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """Lengths are checked in the host's memory. The call reads a copy of them on the device."""
    lengths = torch.tensor([4, 3, 1])
    source = drawn(int(lengths.sum()), I) if packed else drawn(T, N, I)
    inputs = Inputs(source, [drawn(4 * H, I), drawn(4 * H, H)], None, None, [], [], lengths, "LSTM", 1, 0)
    wanted = compute_network(inputs)
    cuda_on_cpu.install(monkeypatch)
    monkeypatch.setattr("vkrnn.torch._network._stays_packed", lambda _: False)
    live = torch.arange(T).unsqueeze(1) < lengths
    for dtype in (torch.int64, torch.int32):
        got = compute_network(inputs._replace(lengths=lengths.to(dtype)))
        for tensor, expected in zip([got[0], *got[3]], [wanted[0], *wanted[3]], strict=True):
            assert torch.equal(*(each if packed else each[live] for each in (tensor, expected)))
        for tensor, expected in zip(got[1:3], wanted[1:3], strict=True):
            assert torch.equal(tensor, expected)
    for wrong in (lengths + 1, lengths - 2):
        with pytest.raises(ValueError, match=r"\[lstm\] lengths: expected "):
            compute_network(inputs._replace(source=drawn(T, N, I), lengths=wrong))


def test_tensors_on_another_device_are_refused() -> None:
    """So are states and biases with too few elements."""
    weights = [drawn(4 * H, I), drawn(4 * H, H)]
    inputs = Inputs(drawn(T, N, I), weights, None, None, [], [], None, "LSTM", 1, 1)
    with pytest.raises(RuntimeError) as error:
        compute_network(inputs._replace(weights=[*weights, drawn(4 * H).to("meta"), drawn(4 * H)]))
    assert str(error.value) == "[vkrnn.torch.lstm] bias: expected a tensor on cpu, where source is, got one on meta"
    with pytest.raises(ValueError, match=r"\[lstm\] recurrent_bias: expected shape \[4H\] = \[24\], got \[23\]"):
        compute_network(inputs._replace(weights=[*weights, drawn(4 * H), drawn(4 * H - 1)]))
    wanted = r"\[lstm\] init_state: expected shape \[1, N, H\] = \[1, 3, 6\], got \[1, 2, 6\]"
    with pytest.raises(ValueError, match=wanted):
        compute_network(inputs._replace(h_0=drawn(1, N - 1, H)))
