"""Paragraphs that the docstrings of the six operations have in common, each written once.

A docstring names a paragraph on a line of its own, ``{bias}``; `documented` puts it there. Within the paragraphs GH and
DGH are the gated axis in one and in two directions, written for the cell at hand: 4H and 8H for the LSTM.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import TypeVar

__all__ = ["documented"]

Function = TypeVar("Function", bound=Callable[..., object])

_PARAGRAPHS = {
    "letters": """
        T, N, I and H stand for time steps, batch, input features and hidden units; D is 2 if the descriptor is
        bidirectional, else 1. Arrays are NumPy's or vkrnn's, or whatever has ``__dlpack__`` on the CPU or
        ``__array__``, as other libraries' tensors have. If any is a `vkrnn.Array`, so are the results, on its device,
        and on a GPU the call returns before it is done; else they are NumPy's. All arrays but `lengths` have the
        source's dtype: float32, float64, float16 or bfloat16 (of the package ml_dtypes); the 16-bit types are summed
        and carried from step to step in float32.
        {axes}With `reverse`, the source is read from its last row to its first and the results' rows stand in the order
        in which they were computed. In two directions the channels of the backward one follow
        those of the forward one, and every row belongs to the source row of the same position.
        """,
    "source": """
        source : array, [T, N, I]
            The input sequence x. Without `input_weight`: [T, N, GH], bidirectional [T, N, DGH].
        """,
    "recurrent_weight": """
        recurrent_weight : array, [GH, H], bidirectional [2, GH, H]
            R; entry 0 is the forward direction's.
        """,
    "input_weight": """
        input_weight : array, [GH, I], bidirectional [DGH, I], optional
            W; the identity if not given: the source then holds what the gates add up.
        """,
    "bias": """
        bias : array, [GH], bidirectional [DGH], optional
            b; zeros if not given.
        """,
    "init_state": """
        init_state : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            h before the first step. Zeros if not given.
        """,
    "init_cell": """
        init_cell : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            c before the first step. Zeros if not given.
        """,
    "mask": """
        mask : array, whatever broadcasts to [T, N, H], bidirectional [T, N, 2H], optional
            m; it multiplies h where h enters the recurrent product, and nothing else. Row t takes part in the step that
            computes row t of the output. Ones if not given.
        """,
    "peephole": """
        peephole : array, [4H], bidirectional [2, 4H] or [8H], optional
            p, a vector for each of the four gates. Zeros if not given.
        """,
    "secondary_bias": """
        secondary_bias : array, [H], bidirectional [2H], optional
            b2, of the candidate's recurrent product; only used with `reset_after`. Zeros if not given.
        """,
    "lengths": """
        lengths : array or list of integers, [N], optional
            Steps of each batch row, 1 to T. Rows past a sequence's end are zeros in every result; reverse order and the
            backward direction start at its own end; what lies past the end in the arguments does not matter as long as
            it is finite. T for each if not given.
        """,
    "descriptor": """
        descriptor : {Descriptor}, optional
            Direction, activations and the rest. The defaults if not given.
        """,
    "name": """
        name : str, optional
            A label for messages and debugging tools.
        """,
    "device": """
        device : Device or int or str, optional
            Where to run: a device, its position in `devices()` or a part of its name. `default_device()` if not given.
        """,
    "source_gradient": """
        source_gradient : array, [T, N, H], bidirectional [T, N, 2H]
            Gradient with respect to the output, in the order of its rows.
        """,
    "z_state": """
        z_state : array, [T, N, GH], bidirectional [T, N, DGH]
            What the forward call with ``training=True`` returned under this name.
        """,
    "state_gradient": """
        state_gradient : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            Gradient with respect to h after each direction's last step. Zeros if not given.
        """,
    "cell_gradient": """
        cell_gradient : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            Gradient with respect to c after each direction's last step. Zeros if not given.
        """,
    "out": """
        out : sequence of array or None, optional
            For each result, in their order, an array to write it to; None for a new one. A single result's array may
            stand by itself.
        """,
    "forward_again": """
        The other arguments and the descriptor are those of the forward call; its ``training`` changes nothing here.
        """,
    "raises": """
        Raises
        ------
        TypeError
            If an argument is no array or not of the source's dtype, the descriptor is another cell's, or the name is no
            str.
        ValueError
            If an argument has the wrong shape or an axis but the batch of size 0, or arrays are on different devices,
            or `out` shares memory with anything; the message says what was expected.
        NotImplementedError
            If the device cannot compute in the dtype.
        MemoryError
            If the call needs more memory than the device has free.
        DeviceError
            If there is no device, or it was closed or lost.
        """,
}

_AXES = {
    1: "",
    3: "An axis of 3H holds the gates z, r, o one after the other (r, z, o with `reset_gate_first`). ",
    4: "An axis of 4H holds the gates i, f, z, o one after the other (i, z, f, o with `forget_gate_last`). ",
}


def documented(gates: int, descriptor: str) -> Callable[[Function], Function]:
    """Complete a function's docstring, for a cell of so many gates."""

    def paragraph(match: re.Match[str]) -> str:
        text = inspect.cleandoc(_PARAGRAPHS[match[1]])
        text = text.replace("{axes}", _AXES[gates]).replace("{Descriptor}", descriptor)
        text = text.replace("DGH", f"{2 * gates}H").replace("GH", f"{gates}H".replace("1H", "H"))
        return textwrap.fill(text, 100) if match[1] == "letters" else text

    def complete(function: Function) -> Function:
        if function.__doc__ is not None:  # python -OO has none
            function.__doc__ = re.sub(r"^\{(\w+)\}$", paragraph, inspect.cleandoc(function.__doc__), flags=re.MULTILINE)
        return function

    return complete
