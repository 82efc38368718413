"""The modules of vkrnn.torch in plain PyTorch: a loop over rows and steps, for autograd to differentiate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["Loop"]

Tensor = torch.Tensor
DEFAULTS: dict[str, dict[str, Any]] = {
    "LSTM": {
        "peephole": False,
        "input_gate_activation": "sigmoid",
        "forget_gate_activation": "sigmoid",
        "cell_gate_activation": "tanh",
        "output_gate_activation": "sigmoid",
        "activation": "tanh",
        "output_peephole_new_cell": False,
    },
    "GRU": {
        "reset_after": True,
        "flip_z": False,
        "update_gate_activation": "sigmoid",
        "reset_gate_activation": "sigmoid",
        "output_gate_activation": "tanh",
    },
    "RNN": {"activation": "tanh"},
}
NUMBERS = {"hard_sigmoid_alpha": 0.2, "hard_sigmoid_beta": 0.5, "clip": 0.0, "gradient_clip": None}
HEADS = {"weight_hh": "heads", "weight_ih": "input_heads"}


class _PassedOn(torch.autograd.Function):
    """A state, whose gradient is clamped."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return state.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.clamp(-ctx.limit, ctx.limit), None


class Loop:
    """A module in float64 with the same parameters and the options that it was made with.

    `masks` are the recurrent masks of the layers, [1, N, DH]; none are ones.
    """

    def __init__(self, module: Any, options: dict[str, Any], masks: Sequence[Tensor] = ()) -> None:
        """Copy the module."""
        self.kind = module.mode.split("_")[0]
        self.module = copy.deepcopy(module).double()
        self.options = DEFAULTS[self.kind] | NUMBERS | dict.fromkeys(HEADS.values(), 1) | options
        self.masks = masks

    def __getattr__(self, name: str) -> Any:
        """Return the module's attribute."""
        return getattr(self.module, name)

    def __call__(self, given: Any, hx: Any = None) -> tuple[Any, Any]:
        """Return what the module returns."""
        if isinstance(given, torch.nn.utils.rnn.PackedSequence):
            return self._packed(given, hx)
        unbatched, first = given.dim() == 2, self.module.batch_first
        time = 0 if unbatched or not first else 1
        rows = [given] if unbatched else list(given.unbind(1 - time))
        states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        outputs, last = self._layers(rows, [state.unsqueeze(1) if unbatched else state for state in states])
        if unbatched:
            return outputs[0], self._of_kind([state.squeeze(1) for state in last])
        return torch.stack(outputs, 1 - time), self._of_kind(last)

    def _packed(self, packed: Any, hx: Any) -> tuple[Any, Any]:
        sizes, order = packed.batch_sizes.tolist(), packed.unsorted_indices
        steps = packed.data.split(sizes)
        rows = [torch.stack([step[n] for step in steps if n < len(step)]) for n in range(sizes[0])]
        states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
        if packed.sorted_indices is not None:
            states = tuple(state[:, packed.sorted_indices] for state in states)
        outputs, last = self._layers(rows, states)
        data = torch.stack([outputs[n][t] for t, size in enumerate(sizes) for n in range(size)])
        last = last if order is None else [state[:, order] for state in last]
        return packed._replace(data=data), self._of_kind(last)

    def _of_kind(self, last: Sequence[Tensor]) -> Any:
        return tuple(last) if self.kind == "LSTM" else last[0]

    def _layers(self, rows: list[Tensor], states: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the outputs of all rows, and the last states of all layers and directions."""
        module, H = self.module, self.module.hidden_size
        ends = ["", "_reverse"][: 1 + module.bidirectional]
        last: list[list[Tensor]] = []
        for number in range(module.num_layers):
            halves = []
            for d, end in enumerate(ends):
                weights = {
                    name: getattr(module, f"{name}_l{number}{end}", None)
                    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "peephole")
                }
                for name, heads in HEADS.items():
                    parts = weights[name].split(H // self.options[heads])
                    count = self.options[heads]
                    gates = [parts[at : at + count] for at in range(0, len(parts), count)]
                    weights[name] = torch.cat([torch.block_diag(*blocks) for blocks in gates])
                found = []
                for n, row in enumerate(rows):
                    state = [each[len(last), n] for each in states] or [row.new_zeros(H)] * (1 + (self.kind == "LSTM"))
                    mask = self.masks[number][0, n].split(H)[d].double() if len(self.masks) else torch.ones(H)
                    found.append(self._row(row.flip(0) if d else row, state, mask, weights))
                halves.append([torch.stack(output).flip(0) if d else torch.stack(output) for output, _ in found])
                last.append([torch.stack(each) for each in zip(*(state for _, state in found), strict=True)])
            rows = [torch.cat(parts, dim=1) for parts in zip(*halves, strict=True)]
        return rows, [torch.stack(each) for each in zip(*last, strict=True)]

    def _row(
        self, row: Tensor, state: list[Tensor], mask: Tensor, weights: dict[str, Any]
    ) -> tuple[list[Tensor], list[Tensor]]:
        output = []
        step: Callable[..., list[Tensor]] = getattr(self, f"_{self.kind.lower()}")
        limit = self.options["gradient_clip"]
        for x in row:
            if limit is not None:
                state = [_PassedOn.apply(state[0], limit), *state[1:]]  # type: ignore[no-untyped-call]
            state = step(x, state, mask, weights)
            output.append(state[0])
        return output, state

    def _lstm(self, x: Tensor, state: list[Tensor], mask: Tensor, weights: dict[str, Any]) -> list[Tensor]:
        h, c = state
        outside, inside = self._sums(x, h * mask, weights)
        peephole = weights["peephole"]
        reads = torch.zeros(4, len(h)) if peephole is None else peephole.view(4, -1)
        i, f, g, o = (a + b for a, b in zip(outside, inside, strict=True))
        i = self._gate("input_gate_activation", i + reads[0] * c)
        f = self._gate("forget_gate_activation", f + reads[1] * c)
        g = self._gate("cell_gate_activation", g + reads[2] * c)
        new = f * c + i * g
        read = new if self.options["output_peephole_new_cell"] else c
        o = self._gate("output_gate_activation", o + reads[3] * read)
        return [o * self._activation("activation", new), new]

    def _gru(self, x: Tensor, state: list[Tensor], mask: Tensor, weights: dict[str, Any]) -> list[Tensor]:
        (h,) = state
        outside, inside = self._sums(x, h * mask, weights)
        r = self._gate("reset_gate_activation", outside[0] + inside[0])
        z = self._gate("update_gate_activation", outside[1] + inside[1])
        candidate = r * inside[2]
        if not self.options["reset_after"]:
            _, (_, _, candidate) = self._sums(x, h * mask * r, weights)
        n = self._gate("output_gate_activation", outside[2] + candidate)
        return [(1 - z) * h + z * n if self.options["flip_z"] else z * h + (1 - z) * n]

    def _rnn(self, x: Tensor, state: list[Tensor], mask: Tensor, weights: dict[str, Any]) -> list[Tensor]:
        ((outside,), (inside,)) = self._sums(x, state[0] * mask, weights)
        return [self._gate("activation", outside + inside)]

    def _sums(self, x: Tensor, h: Tensor, weights: dict[str, Any]) -> Iterator[tuple[Tensor, ...]]:
        """Return the gates' products with the input and with the state, each with its bias."""
        for vector, matrix, bias in ((x, "weight_ih", "bias_ih"), (h, "weight_hh", "bias_hh")):
            product = weights[matrix] @ vector
            yield (product if weights[bias] is None else product + weights[bias]).split(self.module.hidden_size)

    def _gate(self, option: str, p: Tensor) -> Tensor:
        clip = self.options["clip"]
        return self._activation(option, p.clamp(-clip, clip) if clip else p)

    def _activation(self, option: str, p: Tensor) -> Tensor:
        name = self.options[option]
        if name == "hard_sigmoid":
            return (self.options["hard_sigmoid_alpha"] * p + self.options["hard_sigmoid_beta"]).clamp(0, 1)
        known = {"none": lambda p: p, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
        return known[name](p)
