"""Few cases that together have every pair of properties that stand together in any of many."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from cases import ACTIVATIONS, FLAGS, OPTIONAL, UPSTREAM, Case


def properties(case: Case) -> frozenset[Hashable]:
    """Return what is special about a case, and what is not: options, direction, arguments, numbers, sizes of 1."""
    options = {**dict.fromkeys((*FLAGS[case.cell], "reverse", "bidirectional"), False), **ACTIVATIONS[case.cell]}
    arguments = (*OPTIONAL[case.cell], *UPSTREAM[case.cell])
    mask = None if case.mask_shape is None else tuple(size == 1 for size in case.mask_shape)
    return frozenset(
        [
            *(options | dict(case.options)).items(),
            *((name, name in case.present) for name in arguments),
            *((name, getattr(case, name) == 1) for name in "TNIH"),
            ("mask's axes", mask),
            ("values", case.values),
            ("lenient", case.lenient),
        ]
    )


def covering(cases: Sequence[Case]) -> list[Case]:
    """Return some of the cases: every pair of properties that one of them has, one of the chosen of its cell has.

    Each is the one that has the most pairs that none before it had.
    """
    numbers: dict[Hashable, int] = {}
    pairs_of = [  # as the bits of a number
        sum(
            1 << numbers.setdefault((case.cell, frozenset(pair)), len(numbers))
            for pair in itertools.combinations(properties(case), 2)
        )
        for case in cases
    ]
    missing = (1 << len(numbers)) - 1
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: (pairs_of[i] & missing).bit_count())
        chosen.append(cases[best])
        missing &= ~pairs_of[best]
    return chosen
