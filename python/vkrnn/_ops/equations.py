"""The cells' equations over the operations of a library that differentiates them: a loop over the time steps.

Kernels compute calls and their first derivatives. Everything beyond, such as second derivatives and forward mode, is
derived by the library from this loop. `vkrnn.reference` has the equations in NumPy, with first derivatives by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from vkrnn.descriptors import Activation
from vkrnn.results import STATES

__all__ = ["Library", "run"]


class Library(Protocol):
    """What the equations need of a library besides arithmetic, ``@``, indexing, `reshape` and `swapaxes`."""

    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    log_sigmoid: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    einsum: Callable[..., Any]

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        """Choose between x and y, which may be a number."""

    def clamp(self, x: Any, least: float | None, most: float | None) -> Any:
        """Clamp to numbers, of which one may be None."""

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """Join arrays along an axis."""

    def broadcast(self, x: Any, shape: tuple[Any, ...]) -> Any:
        """Broadcast to a shape."""

    def flip(self, x: Any) -> Any:
        """Reverse the first axis."""

    def zeros(self, shape: tuple[Any, ...], like: Any) -> Any:
        """Return zeros of the dtype of an array, on its device."""

    def wide(self, x: Any) -> Any:
        """Convert to float32, unless the array has float32 or float64."""

    def narrow(self, x: Any, like: Any) -> Any:
        """Convert to the dtype of `like`."""

    def factor(self, reset: Any, like: Any) -> Any:
        """Return a reset as the factor of the states, in the dtype of `like`."""

    def count(self, T: Any, like: Any) -> Any:
        """Return 0, 1, ..., T - 1 as integers, on the device of `like`."""

    def take(self, x: Any, steps: Any) -> Any:
        """Return x[steps[k, n], n] as [T, N, ...]."""

    def passed_on(self, h: Any, limit: float) -> Any:
        """Return h, whose gradient is clamped to [-limit, limit]."""

    def scan(self, step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, rows: Any) -> tuple[Any, Any]:
        """Call ``carry, result = step(carry, row)`` for each step, and return the last carry and all results."""


class _Weights(NamedTuple):
    """Those of one direction, with the gates in the order of the equations."""

    recurrent: Any  # [G, heads, J, J] or None
    peephole: Any  # [G, H] or None
    secondary_bias: Any  # [H] or None


_MOST_GATES = 4


class _Functions:
    """The activations of a descriptor."""

    def __init__(self, library: Library, descriptor: Any) -> None:
        self._library, self._descriptor = library, descriptor

    def plain(self, activation: Any, p: Any) -> Any:
        """Apply an activation."""
        library, d = self._library, self._descriptor
        if activation == Activation.HARD_SIGMOID:
            return library.clamp(d.hard_sigmoid_alpha * p + d.hard_sigmoid_beta, 0.0, 1.0)
        known = {
            Activation.NONE: lambda p: p,
            Activation.RELU: library.relu,
            Activation.TANH: library.tanh,
            Activation.SIGMOID: library.sigmoid,
        }
        return known[activation](p)

    def clipped(self, p: Any) -> Any:
        """Clamp a gate's sum, if the descriptor says so."""
        clip = self._descriptor.clip
        return self._library.clamp(p, -clip, clip) if clip else p

    def gate(self, activation: Any, p: Any) -> Any:
        """Apply the activation of a gate to its sum."""
        return self.plain(activation, self.clipped(p))


def _recur(library: Library, weights: Any, h: Any, m: Any, gates: slice = slice(None)) -> list[Any]:
    """Return (h m) R_g^T for these gates, or zeros without a weight.

    [G, heads, J, J], [N, H] and a mask [N, H], or one for each gate [N, G, H] -> G times [N, H].
    """
    if weights is None:
        return [0.0] * len(range(*gates.indices(_MOST_GATES)))
    weights = weights[gates]
    if len(m.shape) == 3:
        operands = (h[:, None] * m)[:, gates].reshape(h.shape[0], *weights.shape[:3])
        products = library.einsum("ngkj,gkuj->gnku", operands, weights)
    else:
        operands = (h * m).reshape(h.shape[0], *weights.shape[1:3])
        products = library.einsum("nkj,gkuj->gnku", operands, weights)
    return [products[gate].reshape(h.shape) for gate in range(weights.shape[0])]


def _single_gate_rnn(library: Library, d: Any, w: _Weights, x: list[Any], m: Any, states: Any) -> Any:
    (inside,) = _recur(library, w.recurrent, states[0], m, slice(1))
    return (_Functions(library, d).gate(d.activation, x[0] + inside),)


def _lstm(library: Library, d: Any, w: _Weights, x: list[Any], m: Any, states: Any) -> Any:
    (h, c), of = states, _Functions(library, d)
    sums = [own + inside for own, inside in zip(x, _recur(library, w.recurrent, h, m), strict=True)]
    p = [0.0] * 4 if w.peephole is None else [w.peephole[gate] for gate in range(4)]
    i = of.gate(d.input_gate_activation, sums[0] + p[0] * c)
    f = of.gate(d.forget_gate_activation, sums[1] + p[1] * c)
    z = of.gate(d.cell_gate_activation, sums[2] + p[2] * c)
    new = f * c + i * z
    o = of.gate(d.output_gate_activation, sums[3] + p[3] * (new if d.output_peephole_new_cell else c))
    return o * of.plain(d.activation, new), new


def _gru(library: Library, d: Any, w: _Weights, x: list[Any], m: Any, states: Any) -> Any:
    (h,), of = states, _Functions(library, d)
    second = 0.0 if w.secondary_bias is None else w.secondary_bias
    in_z, in_r = _recur(library, w.recurrent, h, m, slice(2))
    z = of.gate(d.update_gate_activation, x[0] + in_z)
    r = of.gate(d.reset_gate_activation, x[1] + in_r)
    if d.reset_after:
        candidate = (_recur(library, w.recurrent, h, m, slice(2, 3))[0] + second) * r
    else:
        (candidate,) = _recur(library, w.recurrent, h * r, m, slice(2, 3))
    o = of.gate(d.output_gate_activation, x[2] + candidate)
    return ((1 - z) * h + z * o if d.flip_z else z * h + (1 - z) * o,)


def _slstm(library: Library, d: Any, w: _Weights, x: list[Any], mask: Any, states: Any) -> Any:
    (h, c, n, m), of = states, _Functions(library, d)
    sums = [own + inside for own, inside in zip(x, _recur(library, w.recurrent, h, mask), strict=True)]
    in_sum, forget_sum, z, o = map(of.clipped, sums)
    log_forget = forget_sum if d.forget_gate == "exponential" else library.log_sigmoid(forget_sum)
    stays = log_forget + m
    m = library.where((n == 0) | (in_sum >= stays), in_sum, stays)
    i, f = (library.exp(library.clamp(each - m, None, 0.0)) for each in (in_sum, stays))
    c, n = f * c + i * library.tanh(z), f * n + i
    return library.sigmoid(o) * c / n, c, n, m


_STEPS = {"single_gate_rnn": _single_gate_rnn, "lstm": _lstm, "gru": _gru, "slstm": _slstm}


_IN_STEPS = ("r", "s", "s_c")  # rows of resets, which are in the order of the steps already


def _slots(cell: str, d: Any) -> list[int]:
    """Return where the gates of the equations are in memory."""
    if cell == "lstm":
        return [0, 2, 1, 3] if d.forget_gate_last else [0, 1, 2, 3]
    if cell == "gru":
        return [1, 0, 2] if d.reset_gate_first else [0, 1, 2]
    return [0, 1, 2, 3] if cell == "slstm" else [0]


def run(library: Library, cell: str, d: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sequences of the states of a call, [T, N, D H], and the states after the last steps, [N, D H].

    Arguments and results have the names and shapes of vkrnn's function `cell`; absent arguments may be None.
    """
    call = _Call(library, cell, d, {name: each for name, each in given.items() if each is not None})
    found = [call.direction(number) for number in range(call.D)]
    states = STATES[: len(found[0][1])]
    results = {}
    for at, state in enumerate(states):
        results[state.sequence] = library.concatenate([sequences[at] for sequences, _ in found], -1)
        results[state.last] = library.concatenate([last[at] for _, last in found], -1)
    return {name: library.narrow(each, given["source"]) for name, each in results.items()}


class _Call:
    """The arguments of a call, and how those of one direction are cut out of them."""

    def __init__(self, library: Library, cell: str, d: Any, given: Mapping[str, Any]) -> None:
        self._library, self._cell, self._descriptor = library, cell, d
        self._given = {
            name: each if name in ("lengths", "reset") else library.wide(each) for name, each in given.items()
        }
        self._slots = _slots(cell, d)
        self.D, self.G = 2 if d.bidirectional else 1, len(self._slots)
        self.T, self.N, features = self._given["source"].shape
        weight = self._given.get("input_weight")
        self.H = (features if weight is None else weight.shape[0]) // (self.D * self.G)
        self._x = self._projected()

    def _projected(self) -> Any:
        """Return x W^T + b as [T, N, D, G, H]."""
        x, d, weight = self._given["source"], self._descriptor, self._given.get("input_weight")
        if weight is not None:
            parts = d.input_heads
            heads = x.reshape(self.T, self.N, parts, -1)
            blocks = weight.reshape(self.D * self.G, parts, self.H // parts, -1)
            x = self._library.einsum("tnkf,gkuf->tngku", heads, blocks)
        x = x.reshape(self.T, self.N, self.D * self.G * self.H)
        if "bias" in self._given:
            x = x + self._given["bias"]
        return x.reshape(self.T, self.N, self.D, self.G, self.H)

    def direction(self, number: int) -> tuple[list[Any], list[Any]]:
        """Return the sequences of the states, [T, N, H], and the last states, [N, H], of a direction."""
        library, d, step = self._library, self._descriptor, _STEPS[self._cell]
        backward = number == 1
        x, alive = self._x[:, :, number], None
        lengths = self._given.get("lengths")
        if lengths is not None:
            steps = library.count(self.T, lengths).reshape(self.T, 1)
            alive = (steps < lengths).reshape(self.T, self.N, 1)
        if d.reverse and self.D == 1:
            last = self.T if lengths is None else lengths
            x = library.flip(x) if lengths is None else library.take(x, library.clamp(last - 1 - steps, 0, None))
        rows = {"x": x, "m": self._mask(number), **self._blends(number), **self._resets(number, alive)}
        if alive is not None:
            rows["alive"] = alive
        if backward:
            rows |= {name: library.flip(each) for name, each in rows.items() if name not in _IN_STEPS}
        weights = self._weights(number)

        def one(states: Any, row: Any) -> tuple[Any, Any]:
            before = states
            if d.gradient_clip is not None:
                before = (library.passed_on(before[0], d.gradient_clip), *before[1:])
            if "r" in row:
                before = self._after_reset(row, before)
            own = [row["x"][:, gate] for gate in self._slots]
            after = step(library, d, weights, own, row["m"], before)
            parts = zip(after, before, (row.get("b"), row.get("b_c"), None, None), strict=False)
            after = tuple(new if b is None else b * new + (1 - b) * old for new, old, b in parts)
            if alive is None:
                return after, after
            kept = tuple(library.where(row["alive"], new, old) for new, old in zip(after, states, strict=True))
            return kept, tuple(library.where(row["alive"], new, 0.0) for new in after)

        last_states, sequences = library.scan(one, self._initial(number), rows)
        return [library.flip(each) if backward else each for each in sequences], list(last_states)

    def _after_reset(self, row: Mapping[str, Any], states: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the states after a reset. The stabilizer of an sLSTM has no scale: it stays, or starts anew."""
        r, starts = row["r"], (row["s"], row["s_c"], 0.0)
        found = tuple(r * each + (1 - r) * start for each, start in zip(states, starts, strict=False))
        return (*found, *(self._library.where(r == 0, 0.0 * each, each) for each in states[3:]))

    def _blends(self, number: int) -> dict[str, Any]:
        """Return the parts of the new states, of h and of c."""
        full = self.T, self.N, self.D * self.H
        given = {
            "b": self._given.get("zoneout_mask", self._given.get("leak")),
            "b_c": self._given.get("zoneout_cell_mask"),
        }
        return {
            name: self._part(self._library.broadcast(each, full), number)
            for name, each in given.items()
            if each is not None
        }

    def _part(self, array: Any, number: int) -> Any:
        """Return a direction's units of the last axis."""
        return array[..., number * self.H : (number + 1) * self.H]

    def _initial(self, number: int) -> tuple[Any, ...]:
        count = {"lstm": 2, "slstm": 4}.get(self._cell, 1)
        zeros = self._library.zeros((self.N, self.H), self._x)
        found = []
        for state in STATES[:count]:
            given = self._given.get(state.initial)
            found.append(zeros if given is None else self._part(given.reshape(self.N, self.D * self.H), number))
        return tuple(found)

    def _mask(self, number: int) -> Any:
        """Return a direction's mask, [T, N, H], or those of the gates, [T, N, G, H]."""
        mask = self._given.get("mask", self._library.zeros((1, 1, 1), self._x) + 1)
        units = self.D * self.H
        if self.G == 1 or mask.shape[-1:] != (units * self.G,):
            return self._part(self._library.broadcast(mask, (self.T, self.N, units)), number)
        masks = self._library.broadcast(mask, (self.T, self.N, units * self.G))
        return self._in_order(masks.reshape(self.T, self.N, self.D, self.G, self.H)[:, :, number], axis=2)

    def _resets(self, number: int, alive: Any) -> dict[str, Any]:
        """Return the resets in the order of the steps. Those of a backward half apply row t + 1 before row t."""
        library, reset = self._library, self._given.get("reset")
        if reset is None:
            return {}
        full = self.T, self.N, self.D * self.H
        factor = library.factor(reset, self._x)
        factor = factor if len(factor.shape) == 3 else factor.reshape(self.T, self.N, 1)
        zeros = library.zeros((1, 1, 1), self._x)
        found = {"r": factor, "s": self._given.get("reset_state", zeros), "s_c": self._given.get("reset_cell", zeros)}
        found = {name: self._part(library.broadcast(each, full), number) for name, each in found.items()}
        if number == 0:
            return found
        if alive is not None:  # rows past the lengths are no boundary
            found["r"] = library.where(alive, found["r"], found["r"] * 0 + 1)
        first = {"r": 1, "s": 0, "s_c": 0}
        return {
            name: library.concatenate([each[:1] * 0 + first[name], library.flip(each[1:])], 0)
            for name, each in found.items()
        }

    def _weights(self, number: int) -> _Weights:
        heads = self._descriptor.heads
        J = self.H // heads
        recurrent = self._given.get("recurrent_weight")
        if recurrent is not None:
            recurrent = self._in_order(recurrent.reshape(self.D, self.G, heads, J, J)[number])
        peephole, second = self._given.get("peephole"), self._given.get("secondary_bias")
        return _Weights(
            recurrent,
            None if peephole is None else self._in_order(peephole.reshape(self.D, self.G, self.H)[number]),
            None if second is None else self._part(second.reshape(self.D * self.H), number),
        )

    def _in_order(self, array: Any, axis: int = 0) -> Any:
        """Return an array with the gates, which are along an axis, in the order of the equations."""
        if self._slots == sorted(self._slots):
            return array
        before = (slice(None),) * axis
        return self._library.concatenate([array[(*before, slice(slot, slot + 1))] for slot in self._slots], axis)
