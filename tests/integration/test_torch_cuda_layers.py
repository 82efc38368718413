"""The addresses with which layers are computed on CUDA devices, without a GPU: the CPU reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import cuda_on_cpu

torch = pytest.importorskip("torch")

import vkrnn  # noqa: E402
import vkrnn.torch as ours  # noqa: E402
from vkrnn.convert._torch_layout import FORWARD, GATES, descriptor, torch_mode  # noqa: E402
from vkrnn.torch import _calls, _cuda_calls, _cuda_layers, _ops  # noqa: E402

T, N, I, H = 4, 3, 5, 6
MODES = ["LSTM", "GRU", "RNN_TANH", "GRU reset_after=False", "LSTM output_peephole_new_cell=True"]


@pytest.fixture(autouse=True)
def _cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both ways compute on the CPU, whatever the default device is."""
    cuda_on_cpu.install(monkeypatch)
    with vkrnn.Device("cpu ("):
        yield


def drawn(*shape: int, strided: bool = False) -> Any:
    """Return a tensor, contiguous or not."""
    tensor = torch.randn(*shape, 2, dtype=torch.float64)[..., 0]
    return tensor if strided else tensor.contiguous()


@pytest.mark.parametrize("given", ["all", "strided", "few"])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer_is_that_of_the_ordinary_way(mode: str, given: str) -> None:
    """All results and gradients are the same bits, with and without optional arguments."""
    name, strided, few = torch_mode(mode), given == "strided", given == "few"
    torch.manual_seed(3)
    rows, lstm = GATES[name] * H, name == "LSTM"
    weights = [drawn(rows, I, strided=strided), drawn(rows, H, strided=strided)]
    weights += [None if few else drawn(rows, strided=strided) for _ in range(2)]
    peephole = drawn(rows, strided=strided) if lstm and not few else None
    states = [None if few or number > lstm else drawn(1, N, H, strided=strided) for number in range(2)]
    mask = None if few else drawn(1, N, H, strided=strided)
    tensors = [drawn(T, N, I, strided=strided), *weights, peephole, *states, mask]
    function = FORWARD[name].__name__
    for training in (False, True):
        wanted = _ops.compute_layer(*tensors, None, mode, training)
        how = descriptor(mode, bidirectional=False, training=training, produce_cell=True)
        got = _cuda_layers.forward_on_cuda(function, how, _cuda_layers.Operands(*tensors))
        assert_same(got, wanted)
    z_state = wanted[3]
    kept = {"LSTM": wanted[4], "GRU": wanted[0]}.get(name)
    above = drawn(T, N, H, strided=strided), *(None if few or number > lstm else drawn(1, N, H) for number in range(2))
    expected = _ops.compute_layer_backward(*above, z_state, z_state if kept is None else kept, *tensors, None, mode)
    how = descriptor(mode, bidirectional=False)
    named = {} if kept is None else {"cell_output_fwd" if lstm else "output_fwd": kept}
    saved, operands = {"z_state": z_state, **named}, _cuda_layers.Operands(*tensors)
    found = _cuda_layers.backward_on_cuda(function + "_gradients", how, above, saved, operands)
    assert_same(found, expected)


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN_TANH"])
def test_a_bias_of_another_type(mode: str) -> None:
    """The sum of the biases has the source's type. So do their gradients, which autograd converts."""
    rows, lstm = GATES[mode] * H, mode == "LSTM"
    tensors = [drawn(T, N, I), drawn(rows, I), drawn(rows, H), drawn(rows).half(), drawn(rows), *[None] * 4]
    how = descriptor(mode, bidirectional=False, training=True, produce_cell=True)
    wanted = _ops.compute_layer(*tensors, None, mode, training=True)
    operands, function = _cuda_layers.Operands(*tensors), FORWARD[mode].__name__
    assert_same(_cuda_layers.forward_on_cuda(function, how, operands), wanted)
    output, _, _, z_state, cells = wanted
    above = drawn(T, N, H), None, None
    states = {"LSTM": cells, "GRU": output}.get(mode, z_state)
    expected = _ops.compute_layer_backward(*above, z_state, states, *tensors, None, mode)
    kept = {"z_state": z_state} | ({} if mode == "RNN_TANH" else {f"{'cell_output' if lstm else 'output'}_fwd": states})
    how = descriptor(mode, bidirectional=False)
    found = _cuda_layers.backward_on_cuda(f"{function}_gradients", how, above, kept, operands)
    assert_same(found, expected)
    assert {each.dtype for each in found if each is not None} == {torch.float64}


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
def test_lengths(packed: bool) -> None:  # noqa: FBT001
    """Lengths are checked in the host's memory. The call reads a copy of them on the device."""
    lengths = torch.tensor([4, 3, 1])
    source = drawn(int(lengths.sum()), I) if packed else drawn(T, N, I)
    given = {"source": source, "recurrent_weight": drawn(4 * H, H), "input_weight": drawn(4 * H, I)}
    how = descriptor("LSTM", bidirectional=False, training=True, produce_cell=True)
    compute = _calls._packed_on_cuda if packed else _calls._on_cuda
    got = compute("lstm", {**given, "lengths": lengths}, how)
    wanted = _calls.call("lstm", {**given, "lengths": lengths}, how, packed=packed)
    assert got.keys() == wanted.keys()
    live = torch.arange(T).unsqueeze(1) < lengths
    for name, tensor in got.items():
        assert torch.equal(*(each if packed else each[live] for each in (tensor, wanted[name])))
    with pytest.raises(ValueError, match=r"\[lstm\] lengths: expected "):
        _calls._on_cuda("lstm", {**given, "source": drawn(T, N, I), "lengths": lengths + 1}, how)


def test_addresses_outside_of_tensors_are_refused() -> None:
    """A call refuses tensors on another device, and tensors with too few elements for the address."""
    call = _cuda_calls.InPlaceCall("lstm", drawn(T, N, I))
    with pytest.raises(RuntimeError) as error:
        call.give("peephole", drawn(4 * H).to("meta"))
    wanted = "[vkrnn.torch.lstm] peephole: expected a tensor on cpu, where source is, got one on meta"
    assert str(error.value) == wanted
    with pytest.raises(RuntimeError) as error:
        call.give("secondary_bias", drawn(3 * H - 1), (H,), 2 * H)
    wanted = f"[vkrnn.torch.lstm] secondary_bias: expected a tensor with {3 * H} elements, got {3 * H - 1}"
    assert str(error.value) == wanted
