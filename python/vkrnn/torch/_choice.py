"""Measures whether vkrnn or PyTorch's own module is faster for a call on a CUDA device, and remembers the choice."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from vkrnn.torch._calls import may_round
from vkrnn.torch._tracing import seen_by_others

__all__ = ["Backend", "HasBackend", "checked_backend", "choices", "choose", "has_gradients", "is_settled"]

Backend = Literal["auto", "vkrnn", "torch"]

_REPEATS = 5
_MOST = 256  # choices
_settings = operator.attrgetter(
    "mode",
    "input_size",
    "hidden_size",
    "proj_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
    "training",
)
_chosen: dict[tuple[Any, ...], tuple[str, str]] = {}  # the way, and the line of choices()
_logger = logging.getLogger("vkrnn")


def checked_backend(backend: object, where: str) -> Backend:
    """Return the backend, or raise a TypeError or ValueError whose message begins with `where`."""
    if not isinstance(backend, str):
        raise TypeError(f"{where} backend: expected a str, got {backend!r} ({type(backend).__name__})")
    if backend not in get_args(Backend):
        raise ValueError(f"{where} backend: expected 'auto', 'vkrnn' or 'torch', got {backend!r}")
    return backend  # type: ignore[return-value]


class HasBackend(torch.nn.Module):
    """A module whose `backend` is checked whenever it is set."""

    backend: Backend = "auto"

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        if name == "backend":
            checked_backend(value, f"[{self._get_name()}]")
        super().__setattr__(name, value)


def choices() -> list[str]:
    """Describe what ``backend="auto"`` has chosen on CUDA devices so far in this process, a line for each kind of call.

    The modules time a new kind of call once with each, with CUDA events after a warm-up, and use the faster one from
    then on. A kind is a module's sizes and options, the shape and dtype of its input, and whether there are gradients.
    Numbers of steps and of batch rows count up to the next power of two. The latest 256 choices are kept.

    Examples
    --------
    >>> import vkrnn.torch
    >>> vkrnn.torch.choices()  # doctest: +SKIP
    ['vkrnn.torch.LSTM(128, 128), input [128, 32, 128] float32, with gradients: vkrnn (0.52 ms, torch 1.37 ms)']
    """
    return [line for _, line in _chosen.values()]


def choose(module: Any, input: Any, hx: Any, ways: Mapping[str, Callable[[Any, Any], Any]]) -> str:  # noqa: A002
    """Return the name of the faster of two ways to compute a module's call. A new kind of call is measured.

    Return "vkrnn" if nothing can be measured: within a transform, under a tracer, or while a CUDA graph is captured.
    """
    data = input.data if isinstance(input, PackedSequence) else input
    if type(data) is not Tensor or seen_by_others():
        return "vkrnn"
    kind = _kind(module, input, data, hx)
    found = _chosen.get(kind)
    if found is None:
        with torch.cuda.device(data.device):
            if torch.cuda.is_current_stream_capturing() or torch._C._autograd._top_saved_tensors_default_hooks(True):  # noqa: FBT003, SLF001
                return "vkrnn"
        gradients = has_gradients(module, data, hx)
        way, times, lasting = _measured(module, input, hx, ways, gradients=gradients)
        if not lasting:
            return way
        if len(_chosen) == _MOST:
            del _chosen[next(iter(_chosen))]  # the oldest
        found = _chosen[kind] = way, f"{_described(module, input, gradients=gradients)}: {_compared(way, times)}"
        _logger.info("backend='auto': %s", found[1])
    return found[0]


def is_settled(module: Any, input: Tensor, hx: Any) -> bool:  # noqa: A002
    """Return whether `choose` has measured this kind of call, and will not do so again."""
    return _kind(module, input, input, hx) in _chosen


def _kind(module: Any, input: Any, data: Tensor, hx: Any) -> tuple[Any, ...]:  # noqa: A002
    """Return what the choice depends on. This takes the host a few microseconds in each call.

    Numbers of steps and rows share a choice up to the next power of two, so that a training run with sequences of many
    lengths times only a few kinds.
    """
    *rows, features = data.shape
    return (
        _settings(module),
        (*[(size - 1).bit_length() for size in rows], features),
        0 if input is data else len(input.batch_sizes).bit_length(),
        data.dtype,
        data.get_device(),
        has_gradients(module, data, hx),
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
        may_round(),
    )


def has_gradients(module: Any, data: Tensor, hx: Any) -> bool:
    """Return whether a call records gradients."""
    return torch.is_grad_enabled() and (
        data.requires_grad
        or any(parameter.requires_grad for parameter in module._parameters.values())  # noqa: SLF001
        or any(state.requires_grad for state in _tensors(hx))
    )


def _described(module: Any, input: Any, *, gradients: bool) -> str:  # noqa: A002
    data, packed = input, ""
    if isinstance(input, PackedSequence):
        data, packed = input.data, f"packed, {len(input.batch_sizes)} steps, "
    dtype = str(data.dtype).removeprefix("torch.")
    return f"{module}, input {list(data.shape)} {packed}{dtype}, {'with' if gradients else 'without'} gradients"


def _compared(backend: str, times: Mapping[str, float]) -> str:
    other = next(way for way in ("torch", "vkrnn") if way != backend)
    shown = [f"{times[way]:.3g} ms" if way in times else "does not work" for way in (backend, other)]
    return f"{backend} ({shown[0]}, {other} {shown[1]})"


def _tensors(hx: Any) -> Iterator[Tensor]:
    for state in hx if isinstance(hx, (tuple, list)) else (hx,):
        if isinstance(state, Tensor):
            yield state


def _measured(
    module: Any,
    input: Any,  # noqa: A002
    hx: Any,
    ways: Mapping[str, Callable[[Any, Any], Any]],
    *,
    gradients: bool,
) -> tuple[str, dict[str, float], bool]:
    """Return the faster way, the least milliseconds of each way that works, and whether the choice is final.

    It is not final if memory ran out, or if neither way works; the call itself then raises the error. Measuring neither
    changes the random numbers that follow nor accumulates gradients.
    """
    device = (input.data if isinstance(input, PackedSequence) else input).device
    times: dict[str, float] = {}
    lasting = True
    with torch.random.fork_rng([device]), torch.cuda.device(device):
        for name, way in ways.items():
            try:
                for _ in range(2):
                    _work(module, input, hx, way, gradients=gradients)
            except Exception as error:  # noqa: BLE001 - the other way remains
                _logger.warning("backend='auto': %s cannot compute %r: %s", name, module, error)
                lasting = lasting and not isinstance(error, (MemoryError, torch.OutOfMemoryError))
                continue
            times[name] = min(_timed(module, input, hx, way, gradients=gradients) for _ in range(_REPEATS))
    if not times:
        return "vkrnn", times, False
    return min(times, key=times.__getitem__), times, lasting


def _timed(module: Any, input: Any, hx: Any, way: Callable[[Any, Any], Any], *, gradients: bool) -> float:  # noqa: A002
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    _work(module, input, hx, way, gradients=gradients)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _work(module: Any, input: Any, hx: Any, way: Callable[[Any, Any], Any], *, gradients: bool) -> None:  # noqa: A002
    """Make a call and, if wanted, compute the gradients with respect to all that requires them."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.requires_grad)

    if isinstance(input, PackedSequence):
        given = input._replace(data=leaf(input.data))
        data = given.data
    else:
        given = data = leaf(input)
    states = tuple(map(leaf, _tensors(hx)))
    again = None if hx is None else states if isinstance(hx, (tuple, list)) else states[0]
    with torch.set_grad_enabled(gradients):
        output, _ = way(given, again)
        if gradients:
            result = output.data if isinstance(output, PackedSequence) else output
            wanted = [each for each in (data, *states, *module._parameters.values()) if each.requires_grad]  # noqa: SLF001
            torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
