"""The operations as NumPy programs, which show how much rounding alone changes the results.

Limits for long sequences and wide layers are based on float32 programs, and those of 16-bit types on matrix units on
programs that round the operands of products, or the numbers that are stored (see tolerances.py). The equations are
explained in `vkrnn.reference`; a test checks that the two agree in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cases import ACTIVATIONS, CELLS, NUMBERS, Case, blocks_of, dense, without_heads

Array = NDArray[Any]
Function = Callable[[Array], Array]


def _sigmoid(p: Array) -> Array:
    with np.errstate(over="ignore"):
        y: Array = 1 / (1 + np.exp(-p))
    return y


def exact_product(a: Array, b: Array) -> Array:
    """Return ``a @ b``."""
    product: Array = a @ b
    return product


def rounded_product(a: Array, b: Array) -> Array:
    """Return the product of the operands after they are rounded to eleven significant bits."""

    def rounded(operand: Array) -> Array:
        fractions, exponents = np.frexp(operand)
        return np.ldexp(np.rint(fractions * 2.0**11) * 2.0**-11, exponents)

    return exact_product(rounded(a), rounded(b))


def _values(alpha: float, beta: float) -> dict[str, Function]:
    return {
        "none": lambda p: p,
        "relu": lambda p: np.maximum(p, 0),
        "tanh": np.tanh,
        "sigmoid": _sigmoid,
        "hard_sigmoid": lambda p: np.clip(p.dtype.type(alpha) * p + p.dtype.type(beta), 0, 1),
    }


def _slopes(alpha: float) -> dict[str, Function]:
    return {
        "none": np.ones_like,
        "relu": lambda y: (y > 0).astype(y.dtype),
        "tanh": lambda y: 1 - y * y,
        "sigmoid": lambda y: y * (1 - y),
        "hard_sigmoid": lambda y: y.dtype.type(alpha) * ((y > 0) & (y < 1)),
    }


def _clipped_slope(value: Function, slope: Function, clip: float) -> Function:
    def of(y: Array) -> Array:
        low, high = sorted(value(np.array([-clip, clip], y.dtype)))
        near = 4 * np.finfo(y.dtype).eps
        return slope(y) * ((y > low + near * abs(low)) & (y < high - near * abs(high)))

    return of


@dataclass(frozen=True)
class Pass:
    """One direction, with steps in the order of computation and gates in that of the equations."""

    case: Case
    x: Array  # [T, N, G, H]: the projected source with the bias
    weight: Array  # [G, H, H]
    mask: Array  # [T, N, G, H]
    init: tuple[Array, ...]  # h, and the cell states
    vectors: Array  # peephole [4, H], secondary bias [1, H]
    product: Callable[[Array, Array], Array] = exact_product
    stored: Function = np.asarray  # rounds the deltas and the operands that gradients store for all steps
    carried: Function = np.asarray  # rounds what the recurrent product of the next step reads

    @property
    def names(self) -> list[str]:
        """Return the gates' activations and, for the LSTM, the cell's."""
        if self.case.cell == "slstm":
            return ["none", "none", "tanh", "sigmoid"]
        return [self.case.options.get(name, default) for name, default in ACTIVATIONS[self.case.cell].items()]

    @property
    def gates(self) -> int:
        """Return how many activations belong to gates, to which `clip` applies."""
        return len(self.names) - (self.case.cell == "lstm")

    def functions(self) -> tuple[list[Function], list[Function]]:
        """Return the activations, and their derivatives as functions of the value."""
        numbers = NUMBERS[self.case.cell] | dict(self.case.options)
        alpha, beta, clip = (numbers.get(name, 0.0) for name in ("hard_sigmoid_alpha", "hard_sigmoid_beta", "clip"))
        f = [_values(alpha, beta)[name] for name in self.names]
        df = [_slopes(alpha)[name] for name in self.names]
        if clip == 0:
            return f, df
        clipped: list[Function] = [lambda p, of=of: of(np.clip(p, -clip, clip)) for of in f[: self.gates]]
        slopes = [_clipped_slope(f[g], df[g], clip) for g in range(self.gates)]
        return clipped + f[self.gates :], slopes + df[self.gates :]

    def peepholes(self) -> tuple[Array, Array]:
        """Return the weights [4, H] of the previous cell state, and the output gate's weights [H] of the new one."""
        before, new = self.vectors.copy(), np.zeros_like(self.vectors[-1])
        if self.case.options.get("output_peephole_new_cell"):
            before[-1], new = new, self.vectors[-1]
        return before, new

    def weighed(self, before: Array, new: Array) -> Array:
        """Return each gate's peephole term: [T, N, G, H]."""
        cells = np.repeat(before[:, :, None], self.case.G, axis=2)
        if self.case.options.get("output_peephole_new_cell"):
            cells[:, :, -1] = new
        return cells

    def log_forget(self, f: Array) -> Array:
        """Return the logarithm of the forget gate of an sLSTM."""
        if self.case.options.get("forget_gate") == "exponential":
            return f
        return np.minimum(f, 0) - np.log1p(np.exp(-np.abs(f)))

    def forward(self) -> tuple[Array, Array, Array]:
        """Return h, the cell states [T, C, N, H] and the training state of all steps."""
        f, _ = self.functions()
        h, *cells = self.init
        c = cells[0] if cells else h
        on_before, on_new = self.peepholes()
        R = self.weight
        rows = []
        for x, m in zip(self.x, self.mask, strict=True):
            r = np.stack([self.product(self.carried(h * m[:, g]), R_g.T) for g, R_g in enumerate(R)], axis=1)
            if self.case.cell == "single_gate_rnn":
                kept = x + r
                h = f[0](kept[:, 0])
            elif self.case.cell == "lstm":
                a = x + r + on_before * c[:, None]
                i, forget, z = (f[g](a[:, g]) for g in range(3))
                c = forget * c + i * z
                o = f[3](a[:, 3] + on_new * c)
                kept = np.stack([i, forget, z, o], axis=1)
                h = o * f[4](c)
                cells = [c]
            elif self.case.cell == "slstm":
                c, n, stabilizer = cells
                kept = np.stack([f[g](x[:, g] + r[:, g]) for g in range(4)], axis=1)
                i, stays, z, o = kept.swapaxes(0, 1)
                stays = self.log_forget(stays) + stabilizer
                stabilizer = np.where(n == 0, i, np.maximum(i, stays))
                i, forget = np.exp(i - stabilizer), np.exp(np.minimum(stays - stabilizer, 0))
                cells = [forget * c + i * z, forget * n + i, stabilizer]
                h = o * cells[0] / cells[1]
            else:
                z, reset = f[0](x[:, 0] + r[:, 0]), f[1](x[:, 1] + r[:, 1])
                after = self.case.options.get("reset_after")
                if after:
                    candidate = reset * (r[:, 2] + self.vectors[0])
                else:
                    candidate = self.product(self.carried(h * reset * m[:, 2]), R[2].T)
                o = f[2](candidate + x[:, 2])
                kept = np.stack([z, reset, o], axis=1)
                h = (1 - z) * h + z * o if self.case.options.get("flip_z") else z * h + (1 - z) * o
            rows.append((h, np.stack(cells) if cells else np.empty((0, *h.shape)), kept))
        return tuple(np.stack(part) for part in zip(*rows, strict=True))  # type: ignore[return-value]

    def backward(self, h: Array, cells: Array, kept: Array, up: Array, dh: Array, up_cells: Array) -> dict[str, Array]:
        """Return the gates' gradients [T, N, G, H] as "delta", and the others by name, except source, W and b.

        `h`, `cells` and `kept` are forward results. `up` and `up_cells` are the gradients of every h and of all cell
        states, `dh` is that of the last h.
        """
        f, df = self.functions()
        on_before, on_new = self.peepholes()
        R, flip, after = self.weight, *(self.case.options.get(name) for name in ("flip_z", "reset_after"))
        if self.case.cell == "single_gate_rnn":
            h = f[0](kept[:, :, 0])
        c, up_cell = (each[:, 0] if each.shape[1] else np.zeros_like(h) for each in (cells, up_cells))
        if self.case.cell == "lstm":
            h = kept[:, :, 3] * f[4](c)
        if self.case.cell == "slstm":
            h = kept[:, :, 3] * c / cells[:, 1]
        h_before = np.concatenate([self.init[0][None], h[:-1]])
        cells_before = np.concatenate([np.stack(self.init[1:])[None], cells[:-1]]) if cells.shape[1] else cells
        c_before = cells_before[:, 0] if cells.shape[1] else h_before
        delta = np.empty_like(kept)
        fed = h_before[:, :, None] * self.mask  # the operand of each gate's R
        into = np.empty_like(kept)  # the gradient of that product
        limit = self.case.options.get("gradient_clip", np.inf)
        dc, d_cells = np.zeros_like(dh), np.zeros_like(cells[0])
        for k in reversed(range(len(kept))):
            m, total, d = self.mask[k], up[k] + dh, delta[k]
            direct = np.zeros_like(dh)  # gradient of the previous state that does not pass through R
            if self.case.cell == "single_gate_rnn":
                d[:, 0] = total * df[0](h[k])
                into[k] = d
            elif self.case.cell == "lstm":
                i, forget, z, o = kept[k].swapaxes(0, 1)
                y = f[4](c[k])
                d[:, 3] = total * y * df[3](o)
                d_cell = dc + up_cell[k] + total * o * df[4](y) + on_new * d[:, 3]
                d[:, 0] = d_cell * z * df[0](i)
                d[:, 1] = d_cell * c_before[k] * df[1](forget)
                d[:, 2] = d_cell * i * df[2](z)
                dc = d_cell * forget + (on_before * d).sum(axis=1)
                d_cells = dc[None]
                into[k] = d
            elif self.case.cell == "slstm":
                i_sum, f_sum, z, o = kept[k].swapaxes(0, 1)
                n, stabilizer = cells[k, 1:]
                enters = i_sum >= stabilizer
                late = self.log_forget(f_sum) + cells_before[k, 2] - stabilizer
                i, forget = np.exp(i_sum - stabilizer), np.where(enters, np.exp(np.minimum(late, 0)), 1)
                forget = forget.astype(i.dtype)
                of_ratio = total * o / n
                d_c = d_cells[0] + up_cells[k, 0] + of_ratio
                d_n = d_cells[1] + up_cells[k, 1] - of_ratio * c[k] / n
                to_i = (d_c * z + d_n) * i
                to_f = (d_c * c_before[k] + d_n * cells_before[k, 1]) * forget
                to_f = to_f * ~((cells_before[k, 1] == 0) & (late >= 0))
                d_m = d_cells[2] + up_cells[k, 2] - to_i - to_f
                to_i, to_f = to_i + d_m * enters, to_f + d_m * ~enters
                sigmoid = self.case.options.get("forget_gate") != "exponential"
                d[:, 0] = to_i * df[0](i_sum)
                d[:, 1] = to_f * df[1](f_sum) * (_sigmoid(-f_sum) if sigmoid else 1)
                d[:, 2] = d_c * i * df[2](z)
                d[:, 3] = total * c[k] / n * df[3](o)
                d_cells = np.stack([d_c * forget, d_n * forget, to_f])
                into[k] = d
            else:
                z, reset, o = kept[k].swapaxes(0, 1)
                sign = -1 if flip else 1
                d[:, 0] = total * (h_before[k] - o) * sign * df[0](z)
                d[:, 2] = total * (z if flip else 1 - z) * df[2](o)
                direct = total * (1 - z if flip else z)
                if after:
                    q = self.product(self.stored(h_before[k] * m[:, 2]), R[2].T) + self.vectors[0]
                    d[:, 1] = d[:, 2] * q * df[1](reset)
                    into[k] = d
                    into[k, :, 2] *= reset
                else:
                    back = self.product(self.carried(d[:, 2]), R[2])
                    d[:, 1] = back * h_before[k] * m[:, 2] * df[1](reset)
                    into[k] = d
                    into[k, :, 2] = 0
                    direct = direct + back * reset * m[:, 2]
            dh = direct + sum(self.product(self.carried(into[k, :, g]), R[g]) * m[:, g] for g in range(len(R)))
            dh = np.clip(dh, -limit, limit)
        if self.case.cell == "gru" and not after:
            into[:, :, 2] = delta[:, :, 2]
            fed[:, :, 2] *= kept[:, :, 1]
        delta, into, fed = self.stored(delta), self.stored(into), self.stored(fed)
        flat = [(into[:, :, g].reshape(-1, h.shape[-1]), fed[:, :, g].reshape(-1, h.shape[-1])) for g in range(len(R))]
        return {
            "delta": delta,
            "recurrent_weight": np.stack([self.product(a.T, b) for a, b in flat]),
            "peephole": (delta * self.weighed(c_before, c)).sum(axis=(0, 1)),
            "secondary_bias": into[:, :, -1].sum(axis=(0, 1)) * bool(after),
            "init_state": dh,
        } | {f"init_{name}": gradient for name, gradient in zip(CELLS[self.case.cell], d_cells, strict=True)}


@dataclass(frozen=True)
class Order:
    """A permutation of the features and hidden units of a case, which changes the order of sums only."""

    case: Case
    units: Array  # [H]
    features: Array  # [I]

    @classmethod
    def of_number(cls, case: Case, number: int) -> Order:
        """Return the n-th permutation. Number 0 is the identity."""
        rng = np.random.default_rng(number)
        units, features = (rng.permutation(count) if number else np.arange(count) for count in (case.H, case.I))
        return cls(case, units, features)

    def inverse(self) -> Order:
        """Return the inverse permutation."""
        return Order(self.case, np.argsort(self.units), np.argsort(self.features))

    def of(self, name: str, array: Array) -> Array:
        """Return the argument or result of that name after the permutation."""
        if name == "recurrent_weight":
            return self._along(self._along(array, -1, self.units), -2, self.units)
        if name == "input_weight":
            return self._along(self._along(array, -1, self.features), 0, self.units)
        if name == "source" and "input_weight" in self.case.present:
            return self._along(array, -1, self.features)
        if array.ndim == 0 or array.shape[-1] % self.case.H:  # a mask for all units
            return array
        return self._along(array, -1, self.units)

    @staticmethod
    def _along(array: Array, axis: int, order: Array) -> Array:
        """Permute each block of H or I numbers along an axis; there is one block per gate or direction."""
        runs = np.arange(0, array.shape[axis], len(order))
        return np.take(array, (runs[:, None] + order).ravel(), axis)


class Program:
    """A case's calls on given arrays in one float type, with sums in the n-th `Order`."""

    def __init__(
        self,
        case: Case,
        arrays: Mapping[str, Array],
        dtype: type[np.floating[Any]] = np.float32,
        order: int = 0,
        product: Callable[[Array, Array], Array] = exact_product,
        stored: Function = np.asarray,
        carried: Function = np.asarray,
    ) -> None:
        """Convert the arrays to the form of `Pass`."""
        self.given, self.case, self.dtype, self.product = case, without_heads(case), dtype, product
        self.stored, self.carried = stored, carried
        arrays, case = dense(case, arrays), self.case
        self.order = Order.of_number(case, order)
        self.arrays = {name: self.order.of(name, array.astype(dtype)) for name, array in arrays.items()}
        order = {"forget_gate_last": [0, 2, 1, 3], "reset_gate_first": [1, 0, 2]}
        flags = [flag for flag in order if case.options.get(flag)]
        self.slots = order[flags[0]] if flags else list(range(case.G))
        self.passes = [self._pass(direction) for direction in range(case.D)]

    def _rows(self, direction: int, *, source: bool) -> slice:
        backwards = direction == 1 or (source and case_reversed(self.case))
        return slice(None, None, -1 if backwards else 1)

    def _gates(self, array: Array, direction: int, *, source: bool) -> Array:
        split = array.reshape(self.case.T, self.case.N, self.case.D, self.case.G, self.case.H)
        return split[self._rows(direction, source=source), :, direction][:, :, self.slots]

    def _states(self, array: Array, direction: int) -> Array:
        split = array.reshape(-1, self.case.N, self.case.D, self.case.H)
        return split[self._rows(direction, source=False), :, direction]

    def _mask(self, array: Array, direction: int) -> Array:
        """Return the masks of the gates, which may be the same for all: [T, N, G, H]."""
        T, N, G, H, D = (getattr(self.case, letter) for letter in "TNGHD")
        if G > 1 and array.shape[-1:] == (D * G * H,):
            return self._gates(np.broadcast_to(array, (T, N, D * G * H)), direction, source=False)
        of_all = self._states(np.broadcast_to(array, (T, N, D * H)), direction)
        return np.broadcast_to(of_all[:, :, None], (T, N, G, H))

    def _state(self, name: str, direction: int, given: Mapping[str, Array]) -> Array:
        shape = (self.case.N, self.case.D, self.case.H)
        return given[name].reshape(shape)[:, direction] if name in given else np.zeros(shape, self.dtype)[:, direction]

    def _each(self, name: str, direction: int, given: Mapping[str, Array]) -> Array:
        """Return the gradients of all steps; those of the last one alone are zeros in the steps before."""
        if name in given and given[name].shape == (self.case.T, self.case.N, self.case.D * self.case.H):
            return self._states(given[name], direction)
        last = self._state(name, direction, given)
        return np.concatenate([np.zeros((self.case.T - 1, *last.shape), self.dtype), last[None]])

    def _cells(self, names: str, direction: int, given: Mapping[str, Array]) -> Array:
        """Return what is given for the cell states: [T, C, N, H]."""
        found = [self._each(names.format(name), direction, given) for name in CELLS[self.case.cell]]
        return np.stack(found, axis=1) if found else np.empty((self.case.T, 0, self.case.N, self.case.H))

    def _pass(self, direction: int) -> Pass:
        case, given = self.case, self.arrays
        x = given["source"].reshape(case.T * case.N, case.I)
        x = self.product(x, given["input_weight"].T) if "input_weight" in given else x
        x = x + given.get("bias", self.dtype(0))
        vectors = np.zeros((case.G, case.H), self.dtype)
        if "peephole" in given:
            vectors = given["peephole"].reshape(case.D, case.G, case.H)[direction][self.slots]
        if "secondary_bias" in given:
            vectors = given["secondary_bias"].reshape(case.D, 1, case.H)[direction]
        return Pass(
            case,
            self._gates(x, direction, source=True),
            given["recurrent_weight"].reshape(case.D, case.G, case.H, case.H)[direction][self.slots],
            self._mask(given.get("mask", np.ones((), self.dtype)), direction),
            tuple(self._state(f"init_{name}", direction, given) for name in ("state", *CELLS[case.cell])),
            vectors,
            self.product,
            self.stored,
            self.carried,
        )

    def _join_gates(self, parts: list[Array], *, source: bool) -> Array:
        back = np.argsort(self.slots)
        turned = [part[self._rows(d, source=source)][:, :, back] for d, part in enumerate(parts)]
        return np.stack(turned, axis=2).reshape(self.case.T, self.case.N, -1)

    def _join_states(self, parts: list[Array]) -> Array:
        return np.concatenate([part[self._rows(d, source=False)] for d, part in enumerate(parts)], axis=-1)

    def _turned_back(self, results: Mapping[str, Array]) -> dict[str, Array]:
        inverse = self.order.inverse()
        return {name: inverse.of(name, array) for name, array in results.items()}

    def forward(self) -> dict[str, Array]:
        """Return the output, the cell states and z_state, whatever the descriptor requests."""
        h, cells, kept = zip(*(one.forward() for one in self.passes), strict=True)
        found = {"output": self._join_states(h), "z_state": self._join_gates(kept, source=False)}
        for number, name in enumerate(CELLS[self.case.cell]):
            found[f"{name}_output"] = self._join_states([each[:, number] for each in cells])
        return self._turned_back(found)

    def gradients(self, upstream: Mapping[str, Array]) -> dict[str, Array]:
        """Return the gradients by name. `upstream` has the arguments that the forward call lacks."""
        case, given = self.case, self.arrays
        up = {name: self.order.of(name, array.astype(self.dtype)) for name, array in upstream.items()}
        none = np.zeros((case.T, case.N, case.D * case.H), self.dtype)
        found = [
            one.backward(
                self._states(up.get("output_fwd", none), d),
                self._cells("{}_output_fwd", d, up),
                self._gates(up["z_state"], d, source=False),
                self._states(up["source_gradient"], d),
                self._state("state_gradient", d, up),
                self._cells("{}_gradient", d, up),
            )
            for d, one in enumerate(self.passes)
        ]
        delta = self._join_gates([part["delta"] for part in found], source=True)
        flat = delta.reshape(case.T * case.N, -1)
        weight = given.get("input_weight")
        back = np.argsort(self.slots)
        gradients = {
            "source": delta if weight is None else self.product(flat, weight).reshape(case.T, case.N, case.I),
            "recurrent_weight": np.stack([part["recurrent_weight"][back] for part in found]),
            "input_weight": self.product(flat.T, given["source"].reshape(case.T * case.N, case.I)),
            "bias": flat.sum(axis=0),
            "peephole": np.stack([part["peephole"][back] for part in found]),
            "secondary_bias": np.concatenate([part["secondary_bias"] for part in found]),
            "init_state": np.concatenate([part["init_state"] for part in found], axis=-1),
        } | {
            f"init_{name}": np.concatenate([part[f"init_{name}"] for part in found], axis=-1)
            for name in CELLS[case.cell]
        }
        wanted = [name for name in given if name != "mask"]
        turned = self._turned_back({name: gradients[name].reshape(given[name].shape) for name in wanted})
        return blocks_of(self.given, turned)


def case_reversed(case: Case) -> bool:
    """Return whether the only direction runs from the last row to the first."""
    return bool(case.options.get("reverse")) and case.D == 1


def narrows_operands(gemm: str, dtype: np.dtype[Any]) -> bool:
    """Return whether 16-bit calls with this product strategy keep deltas in the type between the loop and products."""
    return gemm == "cublas" or (gemm == "matrices" and dtype != np.float16)


def rounded_program(case: Case, arrays: Mapping[str, Array], strategy: Mapping[str, Any]) -> Program:
    """Return the program that rounds what a 16-bit call with these strategies rounds on matrix units."""
    dtype = arrays["source"].dtype

    def in_dtype(numbers: Array) -> Array:
        return numbers.astype(dtype).astype(numbers.dtype)

    # All operands keep float16's digits, and `split` scales deltas into its range.
    carried = in_dtype if strategy["schedule"] == "split" and dtype != np.float16 else np.asarray
    stored = in_dtype if narrows_operands(strategy["gemm"], dtype) else np.asarray
    return Program(case, arrays, np.float64, product=rounded_product, stored=stored, carried=carried)
