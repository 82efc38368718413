"""A small set of cases with every pair of options, arguments, directions and sizes, and few kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cases import ACTIVATIONS, CELLS, DIRECTIONS, FLAGS, GATES, NAMES, NUMBERS, OPTIONAL, UPSTREAM, WORDS, Case

# Two factors and their values, all by index.
Pair: TypeAlias = tuple[int, int, int, int]

# T, N, I, H: pairwise different, H a multiple of four or not, some sizes 1. Without an input weight, I follows.
SIZES = ((5, 3, 7, 4), (4, 5, 3, 6), (3, 1, 6, 1))
# The numeric properties at their defaults and away from them.
SETTINGS: tuple[dict[str, float], ...] = (
    {},
    {"hard_sigmoid_alpha": -0.3, "hard_sigmoid_beta": 0.4, "clip": 0.75, "gradient_clip": 0.25},
)


def covering_array(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return rows with a value for each factor, such that each pair of values of two factors is in some row.

    The algorithm is greedy, as in Cohen et al., "The AETG System" (1997), but deterministic. A row starts with a pair
    that is missing. Every other factor takes the value that covers the most missing pairs, or the least used one in a
    tie.
    """
    names, counts = list(factors), [len(values) for values in factors.values()]
    missing = {
        (one, a, other, b)
        for one, other in itertools.combinations(range(len(names)), 2)
        for a, b in itertools.product(range(counts[one]), range(counts[other]))
    }
    used = [[0] * count for count in counts]
    rows = []
    while missing:
        one, a, other, b = min(missing)
        row = {one: a, other: b}
        for factor in range(len(names)):
            if factor not in row:
                values = range(counts[factor])
                gains = [(_gain(missing, row, factor, value), -used[factor][value], -value) for value in values]
                row[factor] = -max(gains)[2]
        missing -= {_pair(*chosen) for chosen in itertools.combinations(row.items(), 2)}
        for factor, value in row.items():
            used[factor][value] += 1
        rows.append({names[factor]: factors[names[factor]][value] for factor, value in sorted(row.items())})
    return rows


def _pair(one: tuple[int, int], other: tuple[int, int]) -> Pair:
    return (*one, *other) if one < other else (*other, *one)


def _gain(missing: set[Pair], row: Mapping[int, int], factor: int, value: int) -> int:
    """Return how many missing pairs the row covers if the factor has the value."""
    return sum(_pair(chosen, (factor, value)) in missing for chosen in row.items())


def covering_cases() -> list[Case]:
    """Return cases of all cells that need few different kernels.

    Flags, activations, numbers, H, the kind of mask and whether all cells have gradients reach a kernel as
    constants: they make a variant. The variants of a cell have every pair of these, except that each activation is at
    each gate in only one of them. The cases have every pair of a variant and of what does not reach the kernel
    (direction, arguments, shape of the mask), and every pair of the latter.
    """
    cases = []
    for cell in GATES:
        variants = _variants(cell)
        rows = covering_array(
            {
                "variant": range(len(variants)),
                "direction": DIRECTIONS,
                "mask_has_steps": (True, False),
                **dict.fromkeys(_arguments(cell), (True, False)),
            }
        )
        rows.sort(key=lambda row: row["variant"])  # a device caches few kernels
        cases += [_case(cell, variants[row["variant"]], row) for row in rows]
    return cases


def _variants(cell: str) -> list[dict[str, Any]]:
    """Return the constants of the kernels. The rotation shifts the list of activations along the gates."""
    flags = dict.fromkeys((*FLAGS[cell], *(["each_cell"] if CELLS[cell] else [])), (False, True))
    numbers = [{name: setting[name] for name in NUMBERS[cell] if name in setting} for setting in SETTINGS]
    heads = (False, True)
    masks = ("mask", "", "mask of gates") if GATES[cell] > 1 else ("mask", "")
    rows = covering_array({"sizes": SIZES, "mask": masks, "numbers": numbers, "heads": heads, **flags, **WORDS[cell]})
    assert len(rows) >= len(NAMES) or not ACTIVATIONS[cell], "too few variants for each activation at each gate"
    return [{"rotation": number % len(NAMES), **row} for number, row in enumerate(rows)]


def _arguments(cell: str) -> list[str]:
    return [name for name in (*OPTIONAL[cell], *UPSTREAM[cell]) if name != "mask"]


def _case(cell: str, variant: Mapping[str, Any], rest: Mapping[str, Any]) -> Case:
    T, N, I, H = variant["sizes"]
    options: dict[str, Any] = (
        dict(rest["direction"]) | variant["numbers"] | {flag: True for flag in FLAGS[cell] if variant[flag]}
    )
    options |= {name: variant[name] for name in WORDS[cell]}
    for gate, name in enumerate(ACTIVATIONS[cell]):
        options[name] = NAMES[(variant["rotation"] + gate) % len(NAMES)]
    present = {name for name in _arguments(cell) if rest[name]} | ({"mask"} if variant["mask"] else set())
    D = 2 if options.get("bidirectional") else 1
    if "input_weight" not in present:
        I = D * GATES[cell] * H
    if variant["heads"] and H % 2 == 0:
        options["heads"] = 2
        if "input_weight" in present:
            options["input_heads"] = math.gcd(H, I)
    mask_shape = None
    if variant["mask"] == "mask of gates" or (variant["mask"] and not rest["mask_has_steps"]):
        gates = GATES[cell] if variant["mask"] == "mask of gates" else 1
        mask_shape = T if rest["mask_has_steps"] else 1, N, D * gates * H
    each_cell = variant.get("each_cell", False)
    return Case(cell, T, N, I, H, options, frozenset(present), mask_shape, each_cell=each_cell)
