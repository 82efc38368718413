"""vkrnn.torch on a CUDA device: against the CPU and PyTorch, in the order of streams, in graphs, without growth."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import vkrnn
from targets import require_cuda_device

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no CUDA device", allow_module_level=True)
require_cuda_device()

import vkrnn.torch as ours  # noqa: E402

T, N, I, H = 9, 5, 7, 12
GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def arguments(cell: str, dtype: Any, *, options: bool, D: int = 1) -> dict[str, Any]:
    """Return drawn tensors on the CPU, with every argument of the cell if `options`."""
    draw = torch.Generator().manual_seed(7)

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, generator=draw, dtype=torch.float64).mul(0.4).to(dtype)

    G = GATES[cell]
    stacked = (G * H, H) if D == 1 else (D, G * H, H)
    given = {"source": tensor(T, N, I), "recurrent_weight": tensor(*stacked), "input_weight": tensor(D * G * H, I)}
    if options:
        given |= {"bias": tensor(D * G * H), "init_state": tensor(N, D * H), "mask": tensor(1, N, D * H).abs()}
        if cell == "lstm":
            given |= {"init_cell": tensor(N, D * H), "peephole": tensor(D * 4 * H)}
        if cell == "gru":
            given["secondary_bias"] = tensor(D * H)
    return given


def in_pieces(layers: Any, source: Any, streams: Any, pieces: int) -> Any:
    """Return the output of layers on streams of their own, each a piece of the time behind the layer below."""
    current = torch.cuda.current_stream()
    values = [list(source.chunk(pieces)), *[[None] * pieces for _ in layers]]
    events: Any = [[None] * pieces for _ in layers]
    states = [None] * len(layers)
    for stream in streams:
        stream.wait_stream(current)
    for diagonal in range(pieces + len(layers) - 1):
        for number, layer in enumerate(layers):
            piece = diagonal - number
            if 0 <= piece < pieces:
                with torch.cuda.stream(streams[number]):
                    if number:
                        streams[number].wait_event(events[number - 1][piece])
                    values[number + 1][piece], states[number] = layer(values[number][piece], states[number])
                    events[number][piece] = streams[number].record_event()
    for stream in streams:
        current.wait_stream(stream)
    return torch.cat(values[-1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_captured_gradients_of_layers_on_streams_of_their_own(kind: str) -> None:
    """Autograd frees a layer's source, which was made on another stream, before the backward pass has read it."""
    torch.manual_seed(0)
    layers = [getattr(ours, kind)(128, 128, device="cuda", backend="vkrnn") for _ in range(2)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    source, above = torch.randn(2, 128, 32, 128, device="cuda")
    with vkrnn.fp32_precision("ieee"):
        wanted = torch.autograd.grad(layers[1](layers[0](source)[0])[0], parameters, above)
    streams, side, graph = [torch.cuda.Stream() for _ in layers], torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def gradients() -> Any:
        with vkrnn.fp32_precision("ieee"):
            return torch.autograd.grad(in_pieces(layers, source, streams, 2), parameters, above)

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(), gradients()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = gradients()
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * float(other.abs().max()))


def computed(cell: str, given: dict[str, Any], where: str, descriptor: Any, lengths: Any = None) -> dict[str, Any]:
    """Return output and gradients of a call on tensors of that device."""
    there = {name: tensor.detach().clone().to(where) for name, tensor in given.items()}
    for name, tensor in there.items():
        tensor.requires_grad_(name != "mask")
    output = getattr(ours, cell)(**there, descriptor=descriptor, lengths=lengths).output
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape).to(output)
    (output * weights).sum().backward()
    found = {name: tensor.grad for name, tensor in there.items() if tensor.requires_grad}
    assert {tensor.device.type for tensor in found.values()} == {where.partition(":")[0]}
    return {"output": output.detach()} | found


def assert_close(got: dict[str, Any], wanted: dict[str, Any], tolerance: float) -> None:
    """Compare tensors by name, relative to the largest value of each."""
    for name, tensor in wanted.items():
        one, other = got[name].double().cpu(), tensor.double().cpu()
        error = (one - other).abs().max() / other.abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{name}: {error:.2e}"


def test_the_compiler_is_checked_once(tmp_path: Any) -> None:
    """The first process leaves a file in the cache's folder, and the second one finds it."""
    program = (
        "import logging, numpy as np, vkrnn; logging.basicConfig(level=logging.INFO)\n"
        "vkrnn.lstm(np.ones((3, 2, 16), np.float32), np.ones((16, 4), np.float32), device='cuda:0')"
    )
    logged = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"VKRNN_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        logged.append("checking the results of NVRTC-" in done.stderr)
    assert logged == [True, False]
    assert len(list(tmp_path.glob("cuda/*.checked"))) == 1


DESCRIPTORS = {
    "single_gate_rnn": vkrnn.SingleGateRNNDescriptor(activation="tanh"),
    "lstm": vkrnn.LSTMDescriptor(),
    "gru": vkrnn.GRUDescriptor(reset_after=True),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("options", [False, True])
def test_functions_agree_with_the_cpu_in_float64(cell: str, dtype: Any, options: bool) -> None:  # noqa: FBT001
    """Outputs and gradients of every argument, with the options that no other library has."""
    given = arguments(cell, dtype, options=options)
    wide = {name: tensor.double() for name, tensor in given.items()}
    wanted = computed(cell, wide, "cpu", DESCRIPTORS[cell])
    assert_close(computed(cell, given, "cuda", DESCRIPTORS[cell]), wanted, TOLERANCES[dtype])


@pytest.mark.parametrize("cell", GATES)
def test_two_directions_and_lengths(cell: str) -> None:
    """Lengths may be on the host or on the device."""
    given = arguments(cell, torch.float64, options=cell != "gru", D=2)
    descriptor = type(DESCRIPTORS[cell])(bidirectional=True)
    lengths = torch.tensor([9, 3, 1, 7, 9])
    wanted = computed(cell, given, "cpu", descriptor, lengths)
    for where in (lengths, lengths.cuda()):
        assert_close(computed(cell, given, "cuda", descriptor, where), wanted, 1e-10)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("form", ["plain", "batch_first", "packed", "unbatched"])
def test_modules_agree_with_pytorch(name: str, form: str) -> None:
    """Two layers in two directions, in float64: outputs, last states, gradients."""
    theirs = getattr(torch.nn, name)(I, H, 2, bidirectional=True, batch_first=form == "batch_first").double().cuda()
    own = getattr(ours, name)(I, H, 2, bidirectional=True, batch_first=form == "batch_first").double().cuda()
    own.load_state_dict(theirs.state_dict())
    own.backend = "vkrnn"
    shape = {"unbatched": (T, I), "batch_first": (N, T, I)}.get(form, (T, N, I))
    x = torch.randn(*shape, dtype=torch.float64, device="cuda")
    results = []
    for module in (theirs, own):
        source = x.clone().requires_grad_()
        given: Any = source
        if form == "packed":
            given = torch.nn.utils.rnn.pack_padded_sequence(source, torch.tensor([9, 2, 5, 1, 8]), enforce_sorted=False)
        output, last = module(given)
        data = output.data if form == "packed" else output
        states = last if isinstance(last, tuple) else (last,)
        (data.sin().sum() + sum(state.cos().sum() for state in states)).backward()
        gradients = {key: parameter.grad for key, parameter in module.named_parameters()}
        results.append({"output": data.detach(), "source": source.grad, **gradients, **dict(enumerate(states))})
        results[-1] = {str(key): value.detach() for key, value in results[-1].items()}
    assert_close(results[1], results[0], 1e-9)


def test_float32_products_follow_pytorchs_setting() -> None:
    """TF32 rounds if PyTorch allows it to cuDNN, and not within vkrnn's own block."""
    module, x = ours.LSTM(256, 256, backend="vkrnn").cuda(), torch.randn(20, 64, 256, device="cuda")
    wide = torch.nn.LSTM(256, 256).double().cuda()
    wide.load_state_dict(module.state_dict())
    errors = {}
    before = torch.backends.cudnn.allow_tf32
    try:
        with torch.no_grad():
            exact = wide(x.double())[0]
            for allowed in (True, False):
                torch.backends.cudnn.allow_tf32 = allowed
                errors[allowed] = float((module(x)[0] - exact).abs().max())
            torch.backends.cudnn.allow_tf32 = True
            with vkrnn.fp32_precision("ieee"):
                assert torch.equal(module(x)[0], _with_tf32(module, x, allowed=False))
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert errors[False] < 3e-6
    assert errors[False] * 10 < errors[True] < 3e-3


def _with_tf32(module: Any, x: Any, *, allowed: bool) -> Any:
    torch.backends.cudnn.allow_tf32 = allowed
    return module(x)[0]


def test_autocast() -> None:
    """Modules compute in the type of the block, as PyTorch's do."""
    x = torch.randn(T, N, I, device="cuda")
    for module in (ours.GRU(I, H, backend="vkrnn").cuda(), ours.SLSTM(I, H).cuda()):
        with torch.autocast("cuda", torch.bfloat16):
            output, last = module(x)
        assert output.dtype == last[0].dtype == torch.bfloat16
        output.float().sum().backward()
        assert module.weight_ih_l0.grad.dtype == torch.float32


def test_tensors_that_need_a_copy() -> None:
    """Tensors that are not contiguous, or not aligned to sixteen bytes, give the same bits."""
    given = arguments("lstm", torch.float32, options=False)
    wanted = computed("lstm", given, "cuda", None)["output"]
    x = given["source"].cuda()
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    shifted = torch.empty(x.numel() + 1, device="cuda")[1:].view(x.shape).copy_(x)
    assert not strided.is_contiguous()
    assert shifted.data_ptr() % 16
    weights = {name: tensor.cuda() for name, tensor in given.items() if name != "source"}
    for source in (strided, shifted):
        assert torch.equal(ours.lstm(source, **weights).output, wanted)


def test_calls_are_ordered_on_pytorchs_stream() -> None:
    """Nothing waits for the host: inputs may still be computed, and results be used at once, on any stream."""
    module = ours.LSTM(64, 64, backend="vkrnn").cuda()
    x = torch.randn(64, 16, 64, device="cuda")
    with torch.no_grad():
        wanted = module(x)[0]
        for _ in range(20):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                late = torch.zeros_like(x)
                torch.cuda._sleep(3_000_000)
                late += x
                got = module(late)[0] * 1
            torch.cuda.current_stream().wait_stream(stream)
            assert torch.equal(got, wanted)


def test_another_stream_may_keep_the_gpu_busy() -> None:
    """A persistent loop that finds no room for its workgroups is computed again, and nothing hangs."""
    module = ours.LSTM(512, 512, backend="vkrnn").cuda()
    x = torch.randn(64, 64, 512, device="cuda")
    big = torch.randn(8192, 8192, device="cuda")
    with torch.no_grad():
        wanted = module(x)[0]
        other = torch.cuda.Stream()
        for _ in range(10):
            with torch.cuda.stream(other):
                for _ in range(4):
                    big @ big
            assert torch.equal(module(x)[0], wanted)
    torch.cuda.synchronize()


def uses_cublas(module: Any, x: Any) -> bool:
    """Return whether cuBLASLt computes the products of a module's call."""
    given = {"source": x, "recurrent_weight": module.weight_hh_l0, "input_weight": module.weight_ih_l0}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in given.items()}
    return vkrnn.plan(vkrnn.lstm, **arrays, device="cuda:0").strategy["gemm"] == "cublas"


@pytest.mark.parametrize("sizes", [(32, 8, 64), (64, 64, 2048)], ids=["kernels", "cublas"])
def test_a_cuda_graph_replays_a_call(sizes: tuple[int, int, int]) -> None:
    """A captured call computes from the new contents of its input, with products of our kernels or of cuBLASLt."""
    module = ours.LSTM(sizes[-1], sizes[-1], backend="vkrnn").cuda()
    x = torch.randn(sizes, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), vkrnn.fp32_precision("tf32"):
        assert uses_cublas(module, x) == (sizes[-1] == 2048)
        with torch.cuda.stream(side):
            for _ in range(3):
                module(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            output = module(x)[0]
        for _ in range(3):
            x.normal_()
            graph.replay()
            assert torch.equal(output, module(x)[0])


def test_compiled_and_checked_by_pytorch() -> None:
    """opcheck, gradcheck in float64, and a graph without breaks."""
    given = {name: tensor.cuda() for name, tensor in arguments("lstm", torch.float64, options=True).items()}
    leaves = {name: tensor.requires_grad_() for name, tensor in given.items() if name != "mask"}

    def function(*tensors: Any) -> Any:
        return ours.lstm(**dict(zip(leaves, tensors, strict=True)), mask=given["mask"]).output

    assert torch.autograd.gradcheck(function, tuple(leaves.values()), fast_mode=True)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(*leaves.values()), function(*leaves.values()))


def test_training_does_not_grow() -> None:
    """Memory is flat over many steps, and no more than PyTorch's own allows for."""
    peaks = {}
    for modules in (torch.nn, ours):
        module = modules.LSTM(256, 256).cuda()
        if modules is ours:
            module.backend = "vkrnn"
        optimizer = torch.optim.SGD(module.parameters(), 1e-3)
        x = torch.randn(64, 32, 256, device="cuda")
        held = []
        torch.cuda.reset_peak_memory_stats()
        for step in range(60):
            optimizer.zero_grad()
            module(x)[0].square().mean().backward()
            optimizer.step()
            if step in (20, 59):
                torch.cuda.synchronize()
                held.append(torch.cuda.memory_allocated())
        peaks[modules] = torch.cuda.max_memory_allocated()
        assert held[0] == held[1]
        del module, optimizer
        gc.collect()
    assert peaks[ours] <= 1.5 * peaks[torch.nn]


@pytest.mark.parametrize("packed", [False, True])
def test_the_faster_one_computes(caplog: pytest.LogCaptureFixture, packed: bool) -> None:  # noqa: FBT001
    """A new kind of call is measured once, without a trace in gradients or random numbers; the choice is logged."""
    torch.manual_seed(1)
    model = ours.convert(torch.nn.LSTM(40, 40, 2, dropout=0.5).cuda())
    x = torch.randn(12, 4, 40, device="cuda")
    given: Any = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([12, 7, 3, 2])) if packed else x
    state = torch.cuda.get_rng_state()
    count = len(ours.choices())
    with caplog.at_level("INFO", "vkrnn"):
        first = model(given)[0]
    assert len(ours.choices()) == count + 1
    logged = [
        record.message
        for record in caplog.records
        if record.message.startswith("backend='auto': vkrnn.torch.LSTM(40, 40")
    ]
    assert logged == [f"backend='auto': {ours.choices()[-1]}"]
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.cuda.set_rng_state(state)
    again = model(given)[0]
    assert torch.equal(*(each.data if packed else each for each in (first, again)))
    assert len(ours.choices()) == count + 1
    with torch.no_grad():
        model(given)
    assert len(ours.choices()) == count + 2


def test_backends_that_are_fixed() -> None:
    """The backend "torch" gives PyTorch's bits. vkrnn computes what only vkrnn can, whatever backend is chosen."""
    theirs, x = torch.nn.GRU(I, H).cuda(), torch.randn(T, N, I, device="cuda")
    own = ours.GRU(I, H, backend="torch").cuda()
    own.load_state_dict(theirs.state_dict())
    count = len(ours.choices())
    assert torch.equal(own(x)[0], theirs(x)[0])
    ours.LSTM(I, H, peephole=True).cuda()(x)
    assert len(ours.choices()) == count


def test_what_vkrnn_cannot_compute_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the reason."""
    theirs, x = torch.nn.GRU(I, H + 1).cuda(), torch.randn(T, N, I, device="cuda")
    own = ours.GRU(I, H + 1).cuda()
    own.load_state_dict(theirs.state_dict())

    def refuse(*_: Any) -> None:
        raise vkrnn.DeviceError("no NVRTC")

    with monkeypatch.context() as patch:
        patch.setattr(own, "_compute", refuse)
        assert torch.equal(own(x)[0], theirs(x)[0])
    assert ours.choices()[-1].endswith("vkrnn does not work)")


def test_mistakes() -> None:
    """Tensors on different devices and of other types are refused, and PyTorch's context stays usable."""
    given = {name: tensor.cuda() for name, tensor in arguments("lstm", torch.float32, options=False).items()}
    with pytest.raises(
        RuntimeError, match=r"input_weight: expected a tensor on cuda:0, where source is, got one on cpu"
    ):
        ours.lstm(**{**given, "input_weight": given["input_weight"].cpu()})
    with pytest.raises(TypeError, match="expected dtype float32, float64, float16 or bfloat16, got int32"):
        ours.lstm(**{name: tensor.int() for name, tensor in given.items()})
    with pytest.raises(ValueError, match="recurrent_weight"):
        ours.lstm(given["source"], given["recurrent_weight"][:5])
    with pytest.raises(MemoryError):
        vkrnn.empty((1 << 40,), device="cuda:0")
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_functions_on_arrays_take_tensors() -> None:
    """The functions for NumPy arrays compute where tensors are; their results go back without a copy."""
    given = arguments("gru", torch.float32, options=True)
    there = {name: tensor.cuda() for name, tensor in given.items()}
    found = vkrnn.gru(**there)
    wanted = vkrnn.gru(**{name: tensor.numpy() for name, tensor in given.items()}, device="cpu").output
    back = torch.from_dlpack(found.output)
    assert back.is_cuda
    assert back.data_ptr() == found.output.__cuda_array_interface__["data"][0]
    np.testing.assert_allclose(back.cpu().numpy(), wanted, atol=1e-5)
    np.testing.assert_array_equal(found.output.numpy(), back.cpu().numpy())
