"""PyTorch's recurrent layers, which ``bench`` and ``tune`` time for comparison if PyTorch is installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from statistics import geometric_mean
from typing import Any

from vkrnn._cli.sample import Floats
from vkrnn.devices import Device

__all__ = ["compared", "copied_calls", "find", "prepare", "resident_call"]

# The modules that compute what the measured cells do. A GRU that resets before the product is not among them.
_MODULES = {"single_gate_rnn": "RNN", "lstm": "LSTM", "gru_reset_after": "GRU"}


def find() -> Any:
    """Return the package, or None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch")
    except ImportError:
        return None


def prepare(torch: Any, device: Device) -> str:
    """Return where PyTorch computes beside this device: "cuda" beside a GPU if it can, else "cpu".

    cuDNN then rounds float32 products if the device does, and not otherwise.
    """
    if torch is None or device.type == "cpu" or not torch.cuda.is_available():
        return "cpu"
    torch.backends.cudnn.allow_tf32 = device._rounds()
    return "cuda"


def copied_calls(
    torch: Any, cell: str, source: Floats, upstream: Floats, place: str
) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
    """Return a forward call, and one with gradients, on NumPy arrays that each call copies; None for other cells."""
    if torch is None or cell not in _MODULES:
        return None
    layer = getattr(torch.nn, _MODULES[cell])(source.shape[2], upstream.shape[2]).to(place)
    given, above = torch.from_numpy(source), torch.from_numpy(upstream)

    def forward() -> Any:
        with torch.no_grad():
            return layer(given.to(place))[0].cpu()

    def train() -> Any:
        fed = given.to(place).requires_grad_()
        found = torch.autograd.grad(layer(fed)[0], [fed, *layer.parameters()], above.to(place))
        return [each.cpu() for each in found]

    return forward, train


def resident_call(
    torch: Any, cell: str, which: str, arguments: Mapping[str, Any], dtype: str, place: str
) -> Callable[[], Any] | None:
    """Return a pass of a measured call on tensors of that place, which waits for the results; None for other cells.

    Numbers are PyTorch's own: they do not matter for times.
    """
    if torch is None or cell not in _MODULES:
        return None
    (T, N, features), H = arguments["source"].shape, arguments["recurrent_weight"].shape[1]
    kind = {"dtype": getattr(torch, dtype), "device": place}
    layer = getattr(torch.nn, _MODULES[cell])(features, H, **kind)
    source, upstream = torch.randn(T, N, features, **kind, requires_grad=True), torch.randn(T, N, H, **kind)
    read = [source, *layer.parameters()]
    output = layer(source)[0] if which == "gradients" else None

    def call() -> Any:
        if which == "gradients":
            results = torch.autograd.grad(output, read, upstream, retain_graph=True)
        else:
            with torch.set_grad_enabled(which == "training"):
                results = layer(source)
        if place == "cuda":
            torch.cuda.synchronize()
        return results

    return call


def compared(torch: Any, place: str, ratios: Mapping[str, float]) -> str:
    """Return a sentence about the speed-ups of vkrnn over PyTorch, by the names of rows."""
    if torch is None:
        return "PyTorch is not installed (pip install torch), so there is no comparison with it."
    if not ratios:
        return "No row compares with PyTorch."
    rows = f"{len(ratios)} rows" if len(ratios) > 1 else "1 row"
    worst = min(ratios, key=lambda name: ratios[name])
    return (
        f"PyTorch {torch.__version__} on {'the GPU' if place == 'cuda' else 'the CPU'} takes "
        f"{geometric_mean(ratios.values()):.2f} times as long as vkrnn (geometric mean of {rows}), "
        f"at least {ratios[worst]:.2f} times ({worst})."
    )
