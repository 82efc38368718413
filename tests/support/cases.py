"""The table of cases that conformance, gradient and error tests and the benchmarks' smoke tests use.

Shapes are written out here from the documentation and not from the reference's code, so that the two check each other.
A case's numbers follow from the case alone.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor

Floats: TypeAlias = NDArray[np.float32]
Descriptor: TypeAlias = SingleGateRNNDescriptor | LSTMDescriptor | GRUDescriptor | SLSTMDescriptor

GATES = {"single_gate_rnn": 1, "lstm": 4, "gru": 3, "slstm": 4}
# The states besides h.
CELLS: dict[str, tuple[str, ...]] = {
    "single_gate_rnn": (),
    "lstm": ("cell",),
    "gru": (),
    "slstm": ("cell", "normalizer", "stabilizer"),
}
DESCRIPTORS: dict[str, type[Descriptor]] = {
    "single_gate_rnn": SingleGateRNNDescriptor,
    "lstm": LSTMDescriptor,
    "gru": GRUDescriptor,
    "slstm": SLSTMDescriptor,
}
# The optional arguments in the order of their gradients; mask has none.
OPTIONAL = {
    "single_gate_rnn": ("input_weight", "bias", "init_state", "mask"),
    "lstm": ("input_weight", "bias", "peephole", "init_state", "init_cell", "mask"),
    "gru": ("input_weight", "bias", "init_state", "secondary_bias", "mask"),
    "slstm": ("input_weight", "bias", "init_state", "init_cell", "init_normalizer", "init_stabilizer", "mask"),
}
# Arguments of the gradients only.
UPSTREAM = {cell: ("state_gradient", *(f"{name}_gradient" for name in names)) for cell, names in CELLS.items()}
# The boolean properties that change a cell's equations or its gate order. All are off by default.
FLAGS: dict[str, tuple[str, ...]] = {
    "single_gate_rnn": (),
    "lstm": ("forget_gate_last", "output_peephole_new_cell"),
    "gru": ("reset_gate_first", "reset_after", "flip_z"),
    "slstm": (),
}
# The options that are words, each with its values, the default first.
WORDS: dict[str, dict[str, tuple[str, ...]]] = {cell: {} for cell in GATES}
WORDS["slstm"] = {"forget_gate": ("sigmoid", "exponential")}
# The activation properties, each with its default.
ACTIVATIONS: dict[str, dict[str, str]] = {
    "single_gate_rnn": {"activation": "relu"},
    "lstm": {
        "input_gate_activation": "sigmoid",
        "forget_gate_activation": "sigmoid",
        "cell_gate_activation": "tanh",
        "output_gate_activation": "sigmoid",
        "activation": "tanh",
    },
    "gru": {"update_gate_activation": "sigmoid", "reset_gate_activation": "sigmoid", "output_gate_activation": "tanh"},
    "slstm": {},
}
# The numeric properties, each with its default.
_OF_ACTIVATIONS = {"hard_sigmoid_alpha": 0.2, "hard_sigmoid_beta": 0.5}
NUMBERS: dict[str, dict[str, float | None]] = {
    cell: (_OF_ACTIVATIONS if ACTIVATIONS[cell] else {}) | {"clip": 0.0, "gradient_clip": None} for cell in GATES
}
# The numbers of blocks on the weights' diagonals, by weight.
HEADS = {"recurrent_weight": "heads", "input_weight": "input_heads"}
NAMES = tuple(member.name.lower() for member in Activation)
_SHORT = {
    "input_weight": "W",
    "bias": "b",
    "init_state": "h0",
    "init_cell": "c0",
    "init_normalizer": "n0",
    "init_stabilizer": "m0",
    "secondary_bias": "b2",
    "state_gradient": "dh",
    "cell_gradient": "dc",
    "normalizer_gradient": "dn",
    "stabilizer_gradient": "dm",
}


@dataclass(frozen=True)
class Case:
    """One call of one cell: sizes, descriptor, optional arguments, and the kind of numbers.

    `options` are keyword arguments of the cell's descriptor. `present` holds the optional arguments, those of the
    gradients included. Without ``input_weight`` I must be D*G*H. `lenient` passes states as [1, N, DH] and a
    bidirectional peephole as [8H]. `each_cell` passes the gradients of all cells, [T, N, DH]; the
    stabilizer's stays that of the last step. `values` is one of:

    - ``modest``: small enough that no gate saturates; nothing is zero
    - ``saturated``: source and bias so large that most gates saturate
    - ``kinks``: powers of two, so that the first pre-activations are exact in float32 and many of them hit a corner of
      relu or hard-sigmoid exactly; finite differences do not apply there
    - ``dropout``: modest, with a mask of zeros and twos
    """

    cell: str
    T: int
    N: int
    I: int
    H: int
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    present: frozenset[str] = frozenset()
    mask_shape: tuple[int, ...] | None = None
    seed: int = 0
    values: str = "modest"
    lenient: bool = False
    each_cell: bool = False
    tags: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the case when it is created."""
        allowed = {*OPTIONAL[self.cell], *UPSTREAM[self.cell]}
        assert self.present <= allowed, f"{self.cell} has no {sorted(self.present - allowed)}"
        assert "input_weight" in self.present or self.I == self.D * self.G * self.H, f"I does not fit in {self.id}"
        assert self.mask_shape is None or "mask" in self.present, f"a mask's shape without a mask in {self.id}"
        assert self.values in ("modest", "saturated", "kinks", "dropout"), self.values

    @property
    def G(self) -> int:
        """Gates of the cell."""
        return GATES[self.cell]

    @property
    def D(self) -> int:
        """Directions."""
        return 2 if self.options.get("bidirectional") else 1

    def heads(self, weight: str) -> int:
        """Return how many blocks a weight has."""
        return int(self.options.get(HEADS[weight], 1))

    @property
    def is_smooth(self) -> bool:
        """Whether every gate and activation is smooth, and no gradient is clamped."""
        values = vars(self.descriptor()).values()
        corners = any(getattr(value, "name", "") in ("RELU", "HARD_SIGMOID") for value in values)
        clips = self.options.get("clip") or self.options.get("gradient_clip") is not None
        return not corners and not clips

    @property
    def id(self) -> str:
        """Readable name, unique in the table."""
        sizes = f"T{self.T}N{self.N}I{self.I}H{self.H}"
        flags = [name for name, value in self.options.items() if value is True]
        functions = [f"{name}={value}" for name, value in self.options.items() if value is not True]
        if len(functions) > 1 and len(functions) == len(ACTIVATIONS[self.cell]):
            names = {str(value) for value in self.options.values() if value is not True}
            functions = [f"all={names.pop()}"] if len(names) == 1 else functions
        optional = [*OPTIONAL[self.cell], *UPSTREAM[self.cell]]
        short = _SHORT | ({"cell_gradient": "dcs"} if self.each_cell else {})
        parts = [short.get(name, name) for name in optional if name in self.present]
        if "W" not in parts:
            parts.insert(0, "noW")
        if self.mask_shape is not None:
            parts[parts.index("mask")] = "mask" + "x".join(map(str, self.mask_shape or ("scalar",)))
        extra = ["lenient"] * self.lenient + [self.values] * (self.values != "modest")
        extra += [f"seed{self.seed}"] * (self.seed != 0)
        cell = self.cell.removeprefix("single_gate_")
        return "-".join([cell, sizes, *flags, *functions, *parts, *extra, *sorted(self.tags)])

    def descriptor(self, **changes: Any) -> Any:
        """Return the case's descriptor; `changes` override its options (``training=True`` before gradients)."""
        return DESCRIPTORS[self.cell](**{**self.options, **changes})

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the argument of that name."""
        T, N, I, H, G, D = self.T, self.N, self.I, self.H, self.G, self.D
        state = (1, N, D * H) if self.lenient else (N, D * H)
        return {
            "source": (T, N, I),
            "recurrent_weight": (*[2] * (D - 1), G * H, H // self.heads("recurrent_weight")),
            "input_weight": (D * G * H, I // self.heads("input_weight")),
            "bias": (D * G * H,),
            "secondary_bias": (D * H,),
            "peephole": (2, G * H) if D == 2 and not self.lenient else (D * G * H,),
            "init_state": state,
            "init_cell": state,
            "init_normalizer": state,
            "init_stabilizer": state,
            "mask": (T, N, D * H) if self.mask_shape is None else self.mask_shape,
            "source_gradient": (T, N, D * H),
            "state_gradient": state,
            "cell_gradient": (T, N, D * H) if self.each_cell else state,
            "normalizer_gradient": (T, N, D * H) if self.each_cell else state,
            "stabilizer_gradient": state,
        }[name]

    def _draw(self, name: str) -> Floats:
        """Draw the numbers of one argument from a stream of its own, so that cases are independent."""
        rng = np.random.default_rng([self.seed, zlib.crc32(f"{self.id} {name}".encode())])
        shape = self.shape(name)
        functions = set((ACTIVATIONS[self.cell] | dict(self.options)).values())
        if self.values == "kinks":
            # With I + H even, the sum before the bias is an even number of quarters, and often 0. The bias then
            # puts relu (or other multiples of a half) or hard-sigmoid at its corner.
            size = {"init_state": 0.25, "mask": 2.0, "init_cell": 1.0}.get(name, 0.5)
            if name == "bias" and "hard_sigmoid" in functions:
                size = 2.5
            signs = 1.0 if name in ("mask", "init_normalizer") else rng.choice([-1.0, 1.0], shape)
            return np.asarray(np.full(shape, size) * signs, np.float32)
        away_from_zero = rng.uniform(0.2, 1.0, shape) * rng.choice([-1.0, 1.0], shape)
        if name == "init_normalizer":
            return np.asarray(0.5 + np.abs(away_from_zero), np.float32)  # the cell is divided by it
        if name == "mask":
            drawn = rng.integers(0, 2, shape) * 2.0 if self.values == "dropout" else 1.5 - np.abs(away_from_zero)
            return np.asarray(drawn, np.float32)
        fan_in = shape[-1] if name in HEADS else 1
        scale = 1 / math.sqrt(fan_in)
        if self.values == "saturated" and name in ("source", "bias"):
            scale *= 12
        elif {"none", "relu"} & functions:
            scale *= 0.6  # these are unbounded: keep the states from growing
            if name == "bias":
                return np.asarray(scale * np.abs(away_from_zero), np.float32)  # and relu from staying at 0
        return np.asarray(scale * away_from_zero, np.float32)


def by_id(value: Case | str) -> str:
    """Return a test's parameter as text: the id of a case, or a string itself."""
    return value if isinstance(value, str) else value.id


def inputs(case: Case) -> dict[str, Floats]:
    """Return the float32 arrays that the forward function and its gradients take, by name."""
    names = ["source", "recurrent_weight", *(name for name in OPTIONAL[case.cell] if name in case.present)]
    return {name: case._draw(name) for name in names}


def without_heads(case: Case) -> Case:
    """Return the case whose weights are dense."""
    options = {name: value for name, value in case.options.items() if name not in HEADS.values()}
    return replace(case, options=options)


def dense(case: Case, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays with dense weights in place of those with heads: zeros outside of their blocks."""
    found = dict(arrays)
    for name in HEADS.keys() & arrays.keys():
        heads, columns = case.heads(name), arrays[name].shape[-1]
        blocks = arrays[name].reshape(-1, heads, case.H // heads, columns)
        full = np.zeros((*blocks.shape[:3], heads, columns), blocks.dtype)
        for head in range(heads):
            full[:, head, :, head] = blocks[:, head]
        found[name] = full.reshape(without_heads(case).shape(name))
    return found


def blocks_of(case: Case, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays, gradients of a dense call, with the blocks of the heads in place of dense weights."""
    found = dict(arrays)
    for name in HEADS.keys() & arrays.keys():
        heads, columns = case.heads(name), case.shape(name)[-1]
        full = arrays[name].reshape(-1, heads, case.H // heads, heads, columns)
        blocks = np.stack([full[:, head, :, head] for head in range(heads)], axis=1)
        found[name] = blocks.reshape(case.shape(name))
    return found


def lengths_of(case: Case) -> NDArray[np.int64]:
    """Return a random length from 0 to T per sequence, not all T."""
    rng = np.random.default_rng(zlib.crc32(case.id.encode()))
    lengths = rng.integers(0, case.T + 1, case.N)
    if (lengths == case.T).all():
        lengths[rng.integers(case.N)] = case.T // 2
    return lengths


def gradient_inputs(case: Case, forward_results: Any) -> dict[str, Any]:
    """Return the arguments that the gradients take besides `inputs`.

    Those are source_gradient, state_gradient and cell_gradient (the latter two if present), and the results of a
    training call under the names by which the gradients take them.
    """
    wanted = ["z_state", *(f"{name}_output_fwd" for name in CELLS[case.cell])]
    if case.cell == "gru":
        wanted.append("output_fwd")
    names = ["source_gradient", *(name for name in UPSTREAM[case.cell] if name in case.present)]
    upstream = {name: case._draw(name) for name in names}
    return upstream | {name: getattr(forward_results, name.removesuffix("_fwd")) for name in wanted}


def last_states(
    case: Case, sequence: NDArray[Any], lengths: NDArray[Any] | None = None, initial: Any = 0
) -> NDArray[Any]:
    """Return the state after each direction's and sequence's last step: [T, N, DH] -> [N, DH]."""
    lengths = np.full(case.N, case.T) if lengths is None else lengths
    ends = sequence[lengths - 1, np.arange(case.N), : case.H]
    last = np.concatenate([ends, sequence[0, :, case.H :]], axis=-1)
    return np.where(lengths[:, None] == 0, np.reshape(initial, (-1, last.shape[1]) if np.ndim(initial) else ()), last)


def loss(
    case: Case,
    arrays: Mapping[str, NDArray[Any]],
    results: Any,
    upstream: Mapping[str, NDArray[Any]],
    lengths: NDArray[Any] | None = None,
) -> Any:
    """Return the scalar loss whose gradients are computed, from the inputs and results of a training call."""
    total = np.sum(upstream["source_gradient"] * results.output)
    for state in ("state", *CELLS[case.cell]):
        name, result, initial = f"{state}_gradient", f"{state}_output".removeprefix("state_"), f"init_{state}"
        if name in upstream:
            found = getattr(results, result)
            if case.T == 1 or upstream[name].shape != found.shape:
                found = last_states(case, found, lengths, arrays.get(initial, 0))
            total += np.sum(upstream[name].reshape(found.shape) * found)
    return total


def gradient_names(case: Case) -> tuple[str, ...]:
    """Return the names of the gradients in the order of the results."""
    given = (name for name in OPTIONAL[case.cell] if name in case.present and name != "mask")
    return ("source", "recurrent_weight", *given)


# The table

DIRECTIONS: tuple[dict[str, bool], ...] = ({}, {"reverse": True}, {"bidirectional": True})
_SIZES = ((5, 3, 7, 4), (4, 5, 3, 6), (3, 2, 6, 5), (6, 4, 2, 3))  # pairwise different


def _all(cell: str) -> frozenset[str]:
    return frozenset((*OPTIONAL[cell], *UPSTREAM[cell]))


def _case(cell: str, sizes: tuple[int, int, int, int], options: dict[str, Any], **rest: Any) -> Case:
    """Make a case. Without an input weight, I follows from the other sizes."""
    T, N, I, H = sizes
    present = rest.setdefault("present", _all(cell))
    if "input_weight" not in present:
        I = (2 if options.get("bidirectional") else 1) * GATES[cell] * H
    return Case(cell, T, N, I, H, options, **rest)


def _arguments(cell: str) -> Iterator[Case]:
    """Yield each direction, with and without W, with no other optional argument, with each one alone, and with all."""
    optional = [name for name in (*OPTIONAL[cell], *UPSTREAM[cell]) if name != "input_weight"]
    subsets = [frozenset[str](), *(frozenset([name]) for name in optional), frozenset(optional)]
    sizes = itertools.cycle(_SIZES)
    # reset_after, so that the secondary bias has an effect
    options: dict[str, Any] = {"reset_after": True} if cell == "gru" else {}
    weights = (frozenset(["input_weight"]), frozenset[str]())
    for direction, weight, subset in itertools.product(DIRECTIONS, weights, subsets):
        yield _case(cell, next(sizes), direction | options, present=weight | subset)


def _functions(cell: str) -> Iterator[Case]:
    """Yield each activation on each gate, and the same one on all gates; for the GRU with reset before and after."""
    directions, sizes = itertools.cycle(DIRECTIONS), itertools.cycle(_SIZES)
    resets: tuple[dict[str, bool], ...] = ({}, {"reset_after": True}) if cell == "gru" else ({},)
    for gate, activation, reset in itertools.product(ACTIVATIONS[cell], NAMES, resets):
        if cell == "single_gate_rnn":
            for direction in DIRECTIONS:
                yield _case(cell, next(sizes), direction | {gate: activation})
        else:
            yield _case(cell, next(sizes), next(directions) | reset | {gate: activation})
    if len(ACTIVATIONS[cell]) > 1:
        for activation in NAMES:
            yield _case(cell, (3, 2, 5, 4), next(directions) | dict.fromkeys(ACTIVATIONS[cell], activation))


def _flags(cell: str) -> Iterator[Case]:
    """Yield, for each direction, the cell's flags.

    GRU: all flags with and without W. LSTM: gate orders and requested results with W, and a gate order without W.
    """
    sizes = itertools.cycle(_SIZES)
    everything = _all(cell)
    if cell == "gru":
        for direction in DIRECTIONS:
            for weight, *values in itertools.product((False, True), repeat=1 + len(FLAGS[cell])):
                on = {name: True for name, value in zip(FLAGS[cell], values, strict=True) if value}
                present = everything if weight else everything - {"input_weight"}
                yield _case(cell, next(sizes), direction | on, present=present, seed=1)
    if cell == "lstm":
        lasts = itertools.cycle((False, True, True, False))
        for direction in DIRECTIONS:
            for training, cells in itertools.product((False, True), repeat=2):
                flags = {"forget_gate_last": next(lasts), "training": training, "produce_cell": cells}
                on = {name: True for name, value in flags.items() if value}
                yield _case(cell, next(sizes), direction | on, seed=1)
            options = direction | {"forget_gate_last": True}
            yield _case(cell, next(sizes), options, present=everything - {"input_weight"}, seed=1)
    if cell == "single_gate_rnn":
        for direction in DIRECTIONS:
            yield _case(cell, next(sizes), direction | {"training": True}, seed=1)


def _words(cell: str) -> Iterator[Case]:
    """Yield, for each direction, the values of options that are words, and units of an sLSTM without a past."""
    sizes = itertools.cycle(_SIZES)
    if cell != "slstm":
        return
    for direction in DIRECTIONS:
        for forget_gate, cells in itertools.product(WORDS[cell]["forget_gate"], ({}, {"produce_cell": True})):
            yield _case(cell, next(sizes), direction | cells | {"forget_gate": forget_gate}, seed=1)
        options = direction | {"forget_gate": "exponential"}
        yield _case(cell, next(sizes), options, present=_all(cell) - {"input_weight"}, seed=1)
        few = frozenset(["input_weight", "init_cell", "init_stabilizer", "cell_gradient"])
        yield _case(cell, next(sizes), options, present=few, seed=1)


def _shapes(cell: str) -> Iterator[Case]:
    """Yield sizes of 1, primes beyond a workgroup, every rank of mask, and lenient shapes."""
    directions = itertools.cycle(DIRECTIONS)
    # tanh, because relu would die or grow over these
    chosen: dict[str, dict[str, Any]] = {"single_gate_rnn": {"activation": "tanh"}, "gru": {"reset_after": True}}
    options = chosen.get(cell, {})
    ones = [(1, 1, 1, 1), (1, 3, 5, 2), (5, 1, 7, 4), (4, 3, 1, 6), (3, 2, 5, 1), (1, 1, 3, 2), (17, 2, 3, 5)]
    primes = [(2, 67, 3, 131), (2, 1, 5, 257), (3, 131, 67, 2), (2, 3, 257, 5)]
    for sizes in ones:
        yield _case(cell, sizes, next(directions) | options)
    for sizes in primes:
        yield _case(cell, sizes, next(directions) | options, tags=frozenset(["wide"]))
    yield _case(cell, primes[0], {"bidirectional": True} | options, tags=frozenset(["wide"]))
    T, N, I, H = 5, 3, 7, 4
    for axes in [(T, 1, H), (1, N, H), (T, N, 1), (1, 1, H), (N, H), (H,), ()]:
        direction = next(directions)
        shape = (*axes[:-1], 2 * H) if "bidirectional" in direction and axes[-1:] == (H,) else axes
        yield _case(cell, (T, N, I, H), direction | options, mask_shape=shape)
    for direction in DIRECTIONS:
        yield _case(cell, (T, N, I, H), direction | options, lenient=True)
    yield _case(cell, (T, N, I, H), {"bidirectional": True} | options, mask_shape=(1, N, 2 * H))
    large = (31, 32, 61, 127)
    yield _case(cell, large, options, tags=frozenset(["large"]))
    yield _case(cell, large, {"bidirectional": True} | options, tags=frozenset(["large"]))


def _gate_masks(cell: str) -> Iterator[Case]:
    """Yield cases with a mask for each gate: directions, gate orders, heads, and axes that the masks lack."""
    if GATES[cell] == 1:
        return
    directions = itertools.cycle(DIRECTIONS)
    T, N, I, H = 5, 3, 4, 6
    for flags in ({}, *({flag: True} for flag in FLAGS[cell])):
        for direction in DIRECTIONS:
            width = GATES[cell] * H * (2 if "bidirectional" in direction else 1)
            for axes in ((T, N, width), (1, N, width)):
                yield _case(cell, (T, N, I, H), direction | flags, mask_shape=axes, values="dropout")
    resets: tuple[dict[str, bool], ...] = ({}, {"reset_after": True}) if cell == "gru" else ({},)
    for options in resets:
        for more, axes in (({"heads": 3}, (T, 1)), ({"heads": 6}, ()), ({"heads": 2, "gradient_clip": 0.125}, (N,))):
            direction = next(directions)
            width = GATES[cell] * H * (2 if "bidirectional" in direction else 1)
            yield _case(cell, (T, N, I, H), direction | options | more, mask_shape=(*axes, width))
        wide = (2, 67, 3, 131)
        width = GATES[cell] * wide[-1]
        yield _case(cell, wide, options, mask_shape=(*wide[:2], width), tags=frozenset(["wide"]))
        yield _case(cell, (3, 2, 257, 1), options, mask_shape=(3, 2, GATES[cell]))


def _cells(cell: str) -> Iterator[Case]:
    """Yield gradients of all cells: alone, with all other arguments, and with other sizes."""
    if cell == "slstm":
        for direction in DIRECTIONS:
            yield _case(cell, (5, 3, 7, 4), direction, each_cell=True)
            yield _case(cell, (17, 2, 3, 5), direction | {"clip": 0.5}, each_cell=True, lenient=True)
        yield _case(cell, (2, 67, 3, 131), {"bidirectional": True}, each_cell=True, tags=frozenset(["wide"]))
    if cell != "lstm":
        return
    few, everything = frozenset(["input_weight", "cell_gradient"]), _all(cell)
    for direction in DIRECTIONS:
        yield _case(cell, (5, 3, 7, 4), direction, present=few, each_cell=True)
        yield _case(cell, (4, 5, 3, 6), direction | {"forget_gate_last": True}, each_cell=True)
        without_weight = {"present": everything - {"input_weight"}, "each_cell": True}
        yield _case(cell, (3, 2, 6, 5), direction | {"output_peephole_new_cell": True}, **without_weight)
        yield _case(cell, (17, 2, 3, 5), direction | {"clip": 0.5}, each_cell=True, lenient=True)
    yield _case(cell, (1, 3, 5, 2), {}, each_cell=True, seed=1)
    yield _case(cell, (2, 67, 3, 131), {"bidirectional": True}, each_cell=True, tags=frozenset(["wide"]))
    yield _case(cell, (31, 32, 61, 127), {}, each_cell=True, tags=frozenset(["large"]))


def _numbers(cell: str) -> Iterator[Case]:
    """Yield cases with saturated gates, corners that are hit exactly, and dropout masks."""
    for direction in DIRECTIONS:
        bounded = {"activation": "sigmoid"} if cell == "single_gate_rnn" else {}
        yield _case(cell, (5, 3, 7, 4), direction | bounded, values="saturated")
        yield _case(cell, (5, 3, 7, 4), direction | bounded, values="dropout")
        if not ACTIVATIONS[cell]:
            continue
        hard = dict.fromkeys(ACTIVATIONS[cell], "hard_sigmoid")
        yield _case(cell, (5, 3, 7, 4), direction | hard, values="saturated")
        kinked: dict[str, Any] = dict.fromkeys(ACTIVATIONS[cell], "relu")
        yield _case(cell, (2, 4, 3, 5), direction | kinked, values="kinks")
        # One step only: 0.2 is not exact, so a hard-sigmoid fed by another is only near its corners.
        kinked = dict.fromkeys(ACTIVATIONS[cell], "hard_sigmoid")
        if cell == "gru":
            kinked["output_gate_activation"] = "tanh"
        yield _case(cell, (1, 4, 3, 5), direction | kinked, values="kinks")


def _gates(cell: str) -> Iterator[Case]:
    """Yield other hard sigmoids, clipped gates and gradients, and an output gate that sees the new cell."""
    kinds = itertools.cycle(("hard_sigmoid", "sigmoid", "tanh"))
    functions: dict[str, Any] = dict(zip(ACTIVATIONS[cell], kinds, strict=False))
    new_cell: dict[str, Any] = {"output_peephole_new_cell": True} if cell == "lstm" else {}
    falling = {"hard_sigmoid_alpha": -0.3, "hard_sigmoid_beta": 0.4} if ACTIVATIONS[cell] else {}
    falling |= {"clip": 0.75, "gradient_clip": 0.25}
    yield _case(cell, (4, 5, 3, 6), {"bidirectional": True} | new_cell | functions | falling)
    yield _case(cell, (5, 3, 7, 4), {"reverse": True} | new_cell | {"clip": 0.5})
    yield _case(cell, (5, 3, 7, 4), {"reverse": True, "gradient_clip": 0.0})
    for reset in ({}, {"reset_after": True}) if cell == "gru" else ({},):
        yield _case(cell, (6, 4, 2, 3), reset | {"gradient_clip": 0.125})
    if cell == "lstm":
        yield _case(cell, (5, 3, 7, 4), {"forget_gate_last": True} | new_cell)


def _mixed(cell: str) -> Iterator[Case]:
    """Yield cases with random options, arguments and sizes."""
    rng = np.random.default_rng([19, GATES[cell], *([1] if cell == "slstm" else [])])
    for seed in range(2, 7):
        options: dict[str, Any] = dict(DIRECTIONS[rng.integers(3)])
        options |= {name: True for name in FLAGS[cell] if rng.integers(2)}
        options |= {name: str(rng.choice(NAMES)) for name in ACTIVATIONS[cell] if rng.integers(2)}
        options |= {name: str(rng.choice(words)) for name, words in WORDS[cell].items() if rng.integers(2)}
        present = frozenset(name for name in sorted(_all(cell)) if rng.integers(4))
        T, N, I, H = (int(size) for size in rng.permutation([2, 3, 4, 5, 6, 7, 9])[:4])
        yield _case(cell, (T, N, I, H), options, present=present, seed=seed)


def _heads(cell: str) -> Iterator[Case]:
    """Yield weights in blocks: heads and input heads alone and together, of one unit, of several vectors, and mixed."""
    everything = _all(cell)
    resets: tuple[dict[str, bool], ...] = ({}, {"reset_after": True}) if cell == "gru" else ({},)
    directions = itertools.cycle(DIRECTIONS)
    for reset in resets:
        for direction in DIRECTIONS:
            yield _case(cell, (5, 3, 4, 6), direction | reset | {"heads": 3, "input_heads": 2})
        options = next(directions) | reset
        yield _case(cell, (4, 5, 3, 8), options | {"heads": 2}, present=everything - {"input_weight", "mask"})
        yield _case(cell, (4, 2, 8, 4), options | {"input_heads": 4}, present=frozenset(["input_weight"]))
        yield _case(cell, (6, 3, 5, 7), next(directions) | reset | {"heads": 7})
        yield _case(cell, (4, 3, 6, 6), next(directions) | reset | {"heads": 6, "input_heads": 6})
        yield _case(cell, (3, 5, 6, 60), next(directions) | reset | {"heads": 20, "input_heads": 6})
        yield _case(cell, (3, 4, 64, 64), next(directions) | reset | {"heads": 4, "input_heads": 8})
        wide = {"heads": 3, "input_heads": 3}
        yield _case(cell, (9, 7, 9, 111), next(directions) | reset | wide, tags=frozenset(["wide"]))


CASES: tuple[Case, ...] = tuple(
    case
    for cell in GATES
    for block in (
        _arguments,
        _functions,
        _flags,
        _words,
        _shapes,
        _gate_masks,
        _numbers,
        _gates,
        _mixed,
        _cells,
        _heads,
    )
    for case in block(cell)
)
assert len({case.id for case in CASES}) == len(CASES), "two cases have the same id"
