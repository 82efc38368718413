"""Conversion of arrays between the caller's layout and the canonical one, which the cells use.

Canonical arrays differ from the caller's in this:

- the gated axis ``[D*G*H]`` is split, and the gates are in the order of the equations;
- rows are in the order of the steps k;
- the direction is the first axis.

A sequence of gate vectors is then ``[D, T, G, N, H]``, and one of states ``[D, T, N, H]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.reference._steps import Blends, Resets
from vkrnn.results import Results

Array = NDArray[Any]
Doubles = NDArray[np.float64]
Descriptor = TypeVar("Descriptor", SingleGateRNNDescriptor, LSTMDescriptor, GRUDescriptor, SLSTMDescriptor)
Kind = TypeVar("Kind", bound=Results[Any])


def as_double(values: ArrayLike) -> Array:
    """Convert to float64, or to complex128 what is complex already (for the complex-step derivative)."""
    array = np.asarray(values)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def as_double_or_none(values: ArrayLike | None) -> Array | None:
    """Convert an array that may be absent."""
    return None if values is None else as_double(values)


def resolve(function: str, descriptor: Descriptor | None, kind: type[Descriptor]) -> Descriptor:
    """Return the descriptor, the defaults if there is none, and refuse another cell's."""
    if descriptor is None:
        return kind()
    if not isinstance(descriptor, kind):
        raise TypeError(f"[{function}] descriptor: expected {kind.__name__}, got {type(descriptor).__name__}")
    return descriptor


def pack_gradients(kind: type[Kind], function: str, gradients: dict[str, Array | None]) -> Kind:
    """Leave out the gradients of inputs that were not given."""
    there = {name: array for name, array in gradients.items() if array is not None}
    absent = {name: f"no {name} was passed" for name in gradients if name not in there}
    return kind(function, there, there.values(), absent)


@dataclass(frozen=True)
class Layout:
    """The sizes of one call, and conversions between the caller's arrays and canonical ones."""

    function: str
    T: int
    N: int
    I: int
    H: int
    G: int
    D: int
    reverse: bool
    heads: int  # without a recurrent weight H, because no unit reads another
    input_heads: int
    recurs: bool  # whether there is a recurrent weight
    gates: tuple[int, ...]  # for each gate of the equations, its slot in memory

    @staticmethod
    def of(
        function: str,
        descriptor: SingleGateRNNDescriptor | LSTMDescriptor | GRUDescriptor | SLSTMDescriptor,
        source: Array,
        recurrent_weight: Array | None,
        input_weight: Array | None,
        gates: tuple[int, ...],
    ) -> Layout:
        """Read the sizes off the tensors and check that these three agree."""
        count, directions = len(gates), 2 if descriptor.bidirectional else 1
        if source.ndim != 3 or 0 in (source.shape[0], source.shape[2]):
            wanted = "expected shape [T, N, I] with T and I at least 1"
            raise ValueError(f"[{function}] source: {wanted}, got {list(source.shape)}")
        steps, batch, features = source.shape
        heads, input_heads, recurs = descriptor.heads, descriptor.input_heads, recurrent_weight is not None
        if recurrent_weight is not None:
            rows, columns = (0, 0, *recurrent_weight.shape)[-2:]
            hidden = rows if columns == count * rows else rows // count  # `check` refuses a transposed weight
        else:
            if heads > 1:
                raise ValueError(f"[{function}] descriptor.heads: expected 1 without recurrent_weight, got {heads}")
            channels = features if input_weight is None else (*input_weight.shape, 0)[0]
            heads = hidden = channels // (directions * count)
        sizes = steps, batch, features, hidden, count, directions
        layout = Layout(function, *sizes, descriptor.reverse, heads, input_heads, recurs, gates)
        if hidden == 0:
            of_source = recurrent_weight is None and input_weight is None
            name = "recurrent_weight" if recurs else "source" if of_source else "input_weight"
            shapes = {
                "recurrent_weight": f"{'2, ' * (directions - 1)}{layout._symbol('GH')}, H",
                "input_weight": f"{layout._symbol('DGH')}, I",
                "source": f"T, N, {layout._symbol('DGH')}",
            }
            got = next(array.shape for array in (recurrent_weight, input_weight, source) if array is not None)
            raise ValueError(f"[{function}] {name}: expected shape [{shapes[name]}] with H at least 1, got {list(got)}")
        if recurrent_weight is not None:
            layout.check_heads("heads", heads, "H")
            layout.check("recurrent_weight", recurrent_weight, "2 GH J" if directions == 2 else "GH J")
        if input_weight is None:
            layout.check("source (without input_weight)", source, "T N DGH")
            if input_heads > 1:
                raise ValueError(
                    f"[{function}] descriptor.input_heads: expected 1 without input_weight, got {input_heads}"
                )
        else:
            layout.check_heads("input_heads", input_heads, "H")
            layout.check_heads("input_heads", input_heads, "I")
            layout.check("input_weight", input_weight, "DGH F")
        return layout

    @property
    def J(self) -> int:
        """Units of a head, the columns of the recurrent weight."""
        return self.H // self.heads

    @property
    def F(self) -> int:
        """Features of an input head, the columns of the input weight."""
        return self.I // self.input_heads

    # Shapes

    def check_heads(self, option: str, heads: int, axis: str) -> None:
        """Raise ValueError unless a number of heads divides a size."""
        size = self._factor(axis)
        if size % heads:
            raise ValueError(
                f"[{self.function}] descriptor.{option}: expected a divisor of {axis} = {size}, got {heads}"
            )

    def check(self, name: str, array: Array, *allowed: str) -> Array:
        """Return the array if it has one of the shapes, each written like ``"T N DGH"``."""
        sizes = [[prod(self._factor(c) for c in axis) for axis in shape.split()] for shape in allowed]
        if list(array.shape) not in sizes:
            symbols = [", ".join(map(self._symbol, shape.split())) for shape in allowed]
            wanted = " or ".join(f"[{symbol}] = {size}" for symbol, size in zip(symbols, sizes, strict=True))
            hint = " (it looks transposed)" if [*array.shape[:-2], *array.shape[:-3:-1]] in sizes else ""
            raise ValueError(f"[{self.function}] {name}: expected shape {wanted}, got {list(array.shape)}{hint}")
        return array

    def _factor(self, letter: str) -> int:
        return int(letter) if letter.isdigit() else int(getattr(self, letter))

    def _symbol(self, axis: str) -> str:
        number = prod(self._factor(c) for c in axis if c in "DG12")
        letters = axis.strip("DG12")
        parts = {"J": ("H", self.heads), "F": ("I", self.input_heads)}.get(letters)
        if parts is not None:
            letters = parts[0] if parts[1] == 1 else f"{parts[0]}/{parts[1]}"
        return letters if letters and number == 1 else f"{number}{letters}"

    # Time: rows of the source and of other arrays in the order of the steps. The inverse is the same slice.

    def source_rows(self, direction: int) -> slice:
        """Return s(k): the source row that step k reads."""
        backwards = direction == 1 if self.D == 2 else self.reverse
        return slice(None, None, -1) if backwards else slice(None)

    def output_rows(self, direction: int) -> slice:
        """Return o(k): the row of output, cell, state, mask and source gradient that belongs to step k.

        Reverse alone leaves its rows in the order of the steps; the backward half of a bidirectional call is aligned
        with the source.
        """
        return slice(None, None, -1) if direction == 1 else slice(None)

    # To the canonical form

    def gate_steps(self, array: Array, *, of_source: bool) -> Array:
        """[T, N, DGH] -> [D, T, G, N, H]."""
        split = array.reshape(self.T, self.N, self.D, self.G, self.H)[..., self.gates, :]
        rows = self.source_rows if of_source else self.output_rows
        return np.stack([split[rows(d), :, d].swapaxes(1, 2) for d in range(self.D)])

    def state_steps(self, array: Array) -> Array:
        """[T, N, DH] -> [D, T, N, H]."""
        split = array.reshape(self.T, self.N, self.D, self.H)
        return np.stack([split[self.output_rows(d), :, d] for d in range(self.D)])

    def recurrent(self, recurrent_weight: Array | None) -> Array:
        """[GH, J] or [2, GH, J] -> [D, G, heads, J, J], where J is the number of units of a head.

        Nothing -> [D, G, H, 1, 0]: each unit is a head, and its products have no terms.
        """
        if recurrent_weight is None:
            return np.zeros((self.D, self.G, self.H, 1, 0))
        return recurrent_weight.reshape(self.D, self.G, self.heads, self.J, self.J)[:, self.gates]

    def peephole(self, values: ArrayLike | None) -> Array:
        """[4H], [2, 4H], [8H] or nothing -> [D, G, 1, H]."""
        if values is None:
            return np.zeros((self.D, self.G, 1, self.H))
        array = self.check("peephole", as_double(values), *(("2 GH", "DGH") if self.D == 2 else ("GH",)))
        return array.reshape(self.D, self.G, 1, self.H)[:, self.gates]

    def secondary_bias(self, values: ArrayLike | None) -> Array:
        """[DH] or nothing -> [D, H]."""
        if values is None:
            return np.zeros((self.D, self.H))
        return self.check("secondary_bias", as_double(values), "DH").reshape(self.D, self.H)

    def state(self, name: str, values: ArrayLike | None) -> Array:
        """[N, DH], [1, N, DH] or nothing -> [D, N, H]."""
        if values is None:
            return np.zeros((self.D, self.N, self.H))
        array = self.check(name, as_double(values), "N DH", "1 N DH")
        split: Array = array.reshape(self.N, self.D, self.H).swapaxes(0, 1)
        return split

    def last_or_each(self, name: str, values: ArrayLike | None) -> Array:
        """[T, N, DH], or what `state` takes, which belongs to the last step, -> [D, T, N, H]."""
        if values is not None:
            values = self.check(name, as_double(values), "N DH", "1 N DH", "T N DH")
            if values.shape == (self.T, self.N, self.D * self.H):
                return self.state_steps(values)
        last = self.state(name, values)[:, np.newaxis]
        return np.concatenate([np.zeros((self.D, self.T - 1, self.N, self.H)), last], axis=1)

    def mask(self, values: ArrayLike | None) -> Array:
        """Anything that broadcasts to [T, N, DH] or [T, N, DGH], or nothing -> [D, T, G, N, H]."""
        if values is not None and not self.recurs:
            raise ValueError(f"[{self.function}] mask: expected a recurrent_weight beside it, got none")
        array = np.ones(()) if values is None else as_double(values)
        wanted = []
        for axis in ("DH", "DGH")[: self.G]:
            full = self.T, self.N, prod(map(self._factor, axis))
            if array.ndim <= 3 and all(a in (1, b) for a, b in zip(array.shape[::-1], full[::-1], strict=False)):
                if axis == "DGH":
                    return self.gate_steps(np.broadcast_to(array, full), of_source=False)
                steps = self.state_steps(np.broadcast_to(array, full))[:, :, np.newaxis]
                return np.broadcast_to(steps, (self.D, self.T, self.G, self.N, self.H))
            wanted.append(f"[T, N, {self._symbol(axis)}] = {list(full)}")
        shapes = f"expected a shape that broadcasts to {' or '.join(wanted)}"
        raise ValueError(f"[{self.function}] mask: {shapes}, got {list(array.shape)}")

    def resets(
        self, reset: ArrayLike | None, reset_state: ArrayLike | None, reset_cell: ArrayLike | None = None
    ) -> list[Resets]:
        """Return the resets of each direction. Those of a backward half apply row t + 1 before row t."""
        if reset is None:
            for name, values in (("reset_state", reset_state), ("reset_cell", reset_cell)):
                if values is not None:
                    raise ValueError(f"[{self.function}] {name}: expected a reset beside it, got none")
        factors = np.ones((self.T, self.N)) if reset is None else np.asarray(reset)
        factors = 1.0 - factors if factors.dtype.kind == "b" else as_double(factors)
        factors = self.check("reset", factors, "T N", "T N 1", "T N DH")
        full = self.T, self.N, self.D * self.H
        starts = [np.zeros(full)] * 2
        for i, (name, values) in enumerate((("reset_state", reset_state), ("reset_cell", reset_cell))):
            if values is not None:
                starts[i] = np.broadcast_to(self.check(name, as_double(values), "N DH", "T N DH"), full)
        factors = np.broadcast_to(factors if factors.ndim == 3 else factors[..., np.newaxis], full)
        steps = [self._between_rows(factors, 1), *(self._between_rows(start, 0) for start in starts)]
        return [Resets(*parts) for parts in zip(*steps, strict=True)]

    def _between_rows(self, array: Array, first: int) -> list[Array]:
        """[T, N, DH] -> D times [T, N, H]. The backward half has `first` before its first step."""
        halves = np.split(array, self.D, axis=-1)
        return [halves[0], *(np.concatenate([np.full_like(half[:1], first), half[:0:-1]]) for half in halves[1:])]

    def reset_gradients(
        self,
        per_direction: Sequence[tuple[Array, Array, Array]],
        reset: ArrayLike | None,
        reset_state: ArrayLike | None,
        reset_cell: ArrayLike | None = None,
    ) -> dict[str, Array | None]:
        """Return the gradients of the arguments, from those of r, s and s_c in the order of the steps."""
        found: dict[str, Array | None] = {}
        for i, (name, values) in enumerate(
            (("reset", reset), ("reset_state", reset_state), ("reset_cell", reset_cell))
        ):
            if values is None or (name == "reset" and np.asarray(values).dtype.kind == "b"):
                found[name] = None
                continue
            steps = [parts[i] for parts in per_direction]
            if self.D == 2:
                steps[1] = np.concatenate([np.zeros_like(steps[1][:1]), steps[1][:0:-1]])
            total = np.concatenate(steps, axis=-1)
            shape = np.shape(values)
            if shape != total.shape:
                total = total.sum(axis=-1 if name == "reset" else 0)
            found[name] = total.reshape(shape)
        return found

    def blends(
        self,
        zoneout_mask: ArrayLike | None,
        leak: ArrayLike | None,
        zoneout_cell_mask: ArrayLike | None = None,
        *,
        output_fwd: ArrayLike | None = None,
        gradients: bool = False,
    ) -> list[Blends]:
        """Return the blends of each direction."""
        masks = {"zoneout_mask": zoneout_mask, "zoneout_cell_mask": zoneout_cell_mask}
        there = [name for name, values in masks.items() if values is not None]
        if leak is not None:
            for name in there:
                raise ValueError(f"[{self.function}] leak: expected no {name} beside it, got both")
            there.append("leak")
        if not there:
            return [Blends(None, None, None)] * self.D
        if gradients and output_fwd is None:
            raise ValueError(f"[{self.function}] output_fwd: expected an array beside {there[0]}, got none")
        hidden = [None] * self.D if output_fwd is None else self.sequence("output_fwd", output_fwd)
        of_h = self._blend_steps("zoneout_mask", zoneout_mask, "DH", "T N DH")
        if leak is not None:
            of_h = self._blend_steps("leak", leak, "", "1", "DH")
        of_c = self._blend_steps("zoneout_cell_mask", zoneout_cell_mask, "DH", "T N DH")
        return [Blends(*parts) for parts in zip(of_h, of_c, hidden, strict=True)]

    def _blend_steps(self, name: str, values: ArrayLike | None, *allowed: str) -> Sequence[Array | None]:
        if values is None:
            return [None] * self.D
        full = self.T, self.N, self.D * self.H
        return list(self.state_steps(np.broadcast_to(self.check(name, as_double(values), *allowed), full)))

    def leak_gradient(self, per_direction: Sequence[Array], leak: ArrayLike | None) -> Array | None:
        """Return the gradient of the leak, from those of the new states' parts of h in each step."""
        if leak is None:
            return None
        of_units = np.concatenate([steps.sum(axis=(0, 1)) for steps in per_direction])
        shape = np.shape(leak)
        return (of_units if of_units.shape == shape else of_units.sum()).reshape(shape)

    def sequence(self, name: str, values: ArrayLike) -> Array:
        """[T, N, DH] -> [D, T, N, H]."""
        return self.state_steps(self.check(name, as_double(values), "T N DH"))

    def upstream(self, values: ArrayLike | None) -> Array:
        """Return the gradient with respect to the output, zeros if it is None, as `sequence` does."""
        return self.sequence(
            "source_gradient", np.zeros((self.T, self.N, self.D * self.H)) if values is None else values
        )

    def z_state(self, values: ArrayLike) -> Array:
        """[T, N, DGH] -> [D, T, G, N, H]."""
        return self.gate_steps(self.check("z_state", as_double(values), "T N DGH"), of_source=False)

    def project(self, source: Array, input_weight: Array | None, bias: ArrayLike | None) -> Array:
        """Return x' = source W^T + b, where W may be the identity and b zero, as [D, T, G, N, H]."""
        x = source
        if input_weight is not None:
            products = self._input_heads(source) @ self._input_blocks(input_weight).swapaxes(-1, -2)
            x = products.transpose(2, 0, 1, 3).reshape(self.T, self.N, self.D * self.G * self.H)
        if bias is not None:
            x = x + self.check("bias", as_double(bias), "DGH")
        return self.gate_steps(x, of_source=True)

    def _input_blocks(self, input_weight: Array) -> Array:
        """[DGH, F] -> [DG, input_heads, units of an input head, F]."""
        return input_weight.reshape(self.D * self.G, self.input_heads, -1, self.F)

    def _input_heads(self, source: Array) -> Array:
        """[T, N, I] -> [input_heads, TN, F]."""
        heads: Array = source.reshape(self.T * self.N, self.input_heads, self.F).swapaxes(0, 1)
        return heads

    # From the canonical form

    def join_gates(self, steps: Sequence[Array], *, of_source: bool) -> Array:
        """D times [T, G, N, H] -> [T, N, DGH]."""
        rows = self.source_rows if of_source else self.output_rows
        aligned = [steps[d][rows(d)] for d in range(self.D)]
        split = np.stack(aligned).transpose(1, 3, 0, 2, 4)[..., np.argsort(self.gates), :]
        joined: Array = split.reshape(self.T, self.N, self.D * self.G * self.H)
        return joined

    def join_states(self, steps: Sequence[Array]) -> Array:
        """D times [T, N, H] -> [T, N, DH]."""
        return np.concatenate([steps[d][self.output_rows(d)] for d in range(self.D)], axis=-1)

    def join_weights(self, per_direction: Sequence[Array], like: ArrayLike | None) -> Array | None:
        """D times [G, ...] in the equations' gate order -> the shape of `like`, nothing if that is nothing."""
        return None if like is None else np.stack(per_direction)[:, np.argsort(self.gates)].reshape(np.shape(like))

    def join_state(self, per_direction: Sequence[Array], like: ArrayLike | None) -> Array | None:
        """D times [N, H] -> the shape of `like`, nothing if that is nothing."""
        return None if like is None else np.concatenate(per_direction, axis=-1).reshape(np.shape(like))

    def project_gradients(
        self, deltas: Sequence[Array], source: Array, input_weight: Array | None, bias: ArrayLike | None
    ) -> dict[str, Array | None]:
        """Go back through `project`: dSource = delta W, dW = sum of delta^T source, db = sum of delta."""
        if bias is not None:
            self.check("bias", as_double(bias), "DGH")
        delta = self.join_gates(deltas, of_source=True)
        gradients: dict[str, Array | None] = {
            "source": delta,
            "input_weight": None,
            "bias": None if bias is None else delta.sum(axis=(0, 1)),
        }
        if input_weight is not None:
            weight = self._input_blocks(input_weight)
            split = delta.reshape(self.T * self.N, *weight.shape[:-1]).transpose(1, 2, 0, 3)
            gradients["source"] = (split @ weight).sum(axis=0).swapaxes(0, 1).reshape(source.shape)
            of_weight = split.swapaxes(-1, -2) @ self._input_heads(source)
            gradients["input_weight"] = of_weight.reshape(input_weight.shape)
        return gradients


# A weight is [G, heads, J, J]: for each gate, a block for each head of J units. An absent one has no columns.


def recur(h: Array, weight: Array) -> Array:
    """Return h_g R_g^T for every gate g: [G, ..., N, H], [G, heads, J, J] -> [G, ..., N, H]."""
    if not weight.size:
        return np.zeros(h.shape)
    heads = h.reshape(len(h), -1, *weight.shape[1:3]).swapaxes(1, 2)
    products: Array = heads @ weight.swapaxes(-1, -2)
    return products.swapaxes(1, 2).reshape(h.shape)


def recur_back(delta: Array, weight: Array, mask: Array | float = 1.0) -> Array:
    """Return the sum over the gates of delta_g R_g m_g: [G, N, H], [G, heads, J, J], [G, N, H] -> [N, H]."""
    if not weight.size:
        return np.zeros_like(delta[0])
    heads = delta.reshape(*delta.shape[:2], *weight.shape[1:3]).swapaxes(1, 2)
    total: Array = ((heads @ weight).swapaxes(1, 2).reshape(delta.shape) * mask).sum(axis=0)
    return total


def recur_weight_gradient(delta: Array, h: Array, heads: int) -> Array:
    """Return the sum over steps and batch of delta_g^T h_g: twice [T, G, N, H] -> [G, heads, J, J]."""
    T, G, N, H = delta.shape
    J = H // heads
    of_delta = delta.reshape(T, G, N, heads, J).transpose(1, 3, 4, 0, 2).reshape(G, heads, J, T * N)
    of_h = h.reshape(T, G, N, heads, J).transpose(1, 3, 0, 2, 4).reshape(G, heads, T * N, J)
    gradient: Array = of_delta @ of_h
    return gradient


def passed_on(dh: Array, clip: float | None) -> Array:
    """Return the gradient of h that a step passes on to the step before, clamped to [-clip, clip]."""
    return dh if clip is None else np.clip(dh, -clip, clip)


def before(first: Array, rows: Array) -> Array:
    """Return the state before each step: `first` before step 0, then the state after the previous step."""
    return np.concatenate([first[None], rows[:-1]])
