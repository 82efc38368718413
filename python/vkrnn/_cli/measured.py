"""Calls that are measured to compare the strategies of a device: drawn once, made with several strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkrnn._cli.sample import SAMPLES, Sample
from vkrnn._interop.foreign import bfloat16
from vkrnn.arrays import asarray
from vkrnn.descriptors import GRUDescriptor
from vkrnn.devices import Device

__all__ = ["CELLS", "PASSES", "MeasuredCall", "Strategy", "draw_calls", "open_with"]

Strategy = Mapping[str, str | int]

CELLS: dict[str, Sample] = {sample.forward.__name__: sample for sample in SAMPLES}
_GRU = CELLS["gru"]
CELLS |= {
    "gru": Sample(_GRU.forward, _GRU.backward, 3, GRUDescriptor(training=True), _GRU.saved),
    "gru_reset_after": _GRU,
}
PASSES = ("forward", "training", "gradients")


@dataclass(frozen=True)
class MeasuredCall:
    """One of the calls that are measured: a pass of a cell, with everything that it needs except the device."""

    cell: str
    which: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    dtype: str

    def on(self, device: Device) -> Callable[[], Any]:
        """Return the call with its arrays on the device."""
        placed = {
            name: asarray(value, device=device) if isinstance(value, np.ndarray) else value
            for name, value in self.arguments.items()
        }
        return lambda: self.function(**placed)


def draw_calls(
    room: int,
    cells: Sequence[str],
    sizes: Sequence[tuple[int, int, int, int]],
    dtypes: Sequence[str],
    wanted: Sequence[str],
) -> Iterator[tuple[str, MeasuredCall | None]]:
    """Yield the calls with their labels, and None in place of a call that cannot fit the host or `room` bytes.

    `sizes` are T, N, I, H, and `wanted` are passes.
    """
    rng = np.random.default_rng(0)
    for name in cells:
        for each in sizes:
            try:
                passes = _passes(CELLS[name], each, rng, room)
            except MemoryError:
                passes = {}
            for dtype in dtypes:
                for which in wanted:
                    label = f"{name} {which} {dtype} {','.join(map(str, each))}"
                    if which not in passes:
                        yield label, None
                        continue
                    function, arguments = passes[which]
                    cast = {key: _cast(value, dtype) for key, value in arguments.items()}
                    yield label, MeasuredCall(name, which, function, cast, dtype)


def open_with(like: Device, strategy: Strategy) -> Device:
    """Open a device with this strategy fixed, or none if the dict is empty. Tuned strategies are not used."""
    device = Device(like.index, float32=like.float32, **strategy)  # type: ignore[arg-type]
    device._open(tuned=False)
    return device


def _passes(
    sample: Sample, sizes: tuple[int, int, int, int], rng: np.random.Generator, room: int
) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Draw the arguments of each pass. Raises MemoryError if those of float32 take more than `room` bytes."""
    T, N, features, H = sizes
    elements = T * N * (features + (sample.gates + 3) * H) + sample.gates * H * (features + H)
    if 4 * elements > room:
        raise MemoryError
    given = sample.arguments(rng, features, H)
    source, upstream = (rng.standard_normal((T, N, size), np.float32) for size in (features, H))
    saved = {
        # Contents do not matter for times, but strategies must agree on gradients of them.
        "z_state": rng.standard_normal((T, N, sample.gates * H), np.float32),
        "cell_output": rng.standard_normal((T, N, H), np.float32),
        "normalizer_output": 1 + rng.random((T, N, H), np.float32),
        "stabilizer_output": rng.standard_normal((T, N, H), np.float32),
        "output": rng.uniform(-1, 1, (T, N, H)).astype(np.float32),
    }
    kept = {argument: saved[result] for argument, result in sample.saved.items()}
    forward = {"source": source, **given, "descriptor": _without_training(given["descriptor"])}
    return {
        "forward": (sample.forward, forward),
        "training": (sample.forward, {"source": source, **given}),
        "gradients": (sample.backward, {"source": source, "source_gradient": upstream, **kept, **given}),
    }


def _without_training(descriptor: Any) -> Any:
    options = {name: getattr(descriptor, name) for name in type(descriptor).__dataclass_fields__}
    return type(descriptor)(**{**options, "training": False})


def _cast(value: Any, dtype: str) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if dtype == "bfloat16":
        return value.astype(bfloat16("[tune]"))
    return value.astype(dtype)
