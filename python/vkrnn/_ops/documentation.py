"""Paragraphs that the docstrings of the operations share.

In these, GH and DGH stand for the axis that holds the gates in one and in two directions: 4H and 8H for the LSTM.
"""

from __future__ import annotations

import textwrap

from vkrnn import _core
from vkrnn._base.text import Function, clean, with_paragraphs

__all__ = ["documented", "with_paragraphs"]

_PARAGRAPHS = {
    "letters": """
        T, N, I and H stand for time steps, batch rows, input features and hidden units. {axes}

        Arrays are NumPy arrays, `vkrnn.Array` objects, or anything with ``__dlpack__`` on the CPU or ``__array__``,
        such as other libraries' tensors. All of them except `lengths` have the dtype of the source: float32, float64,
        float16 or bfloat16 (of the package ml_dtypes). The 16-bit types are summed and carried from step to step in
        float32. If any argument is a `vkrnn.Array`, the results are too, and on a GPU the call returns before it is
        done. Otherwise the results are NumPy arrays.

        With `reverse`, the source is read from its last row to its first, and the results are in the order in which
        they were computed. With `bidirectional`, the channels of the backward direction follow those of the forward
        direction, and every row belongs to the source row of the same position.
        """,
    "source": """
        source : array, [T, N, I]
            The input sequence x; time is the first axis. Without `input_weight`: [T, N, GH], bidirectional [T, N, DGH].
        """,
    "recurrent_weight": """
        recurrent_weight : array or None, [GH, H], bidirectional [2, GH, H]
            R; entry 0 is the forward direction's. With `heads`, its blocks, [GH, H / heads]: see `{Descriptor}`. None
            leaves out the recurrent products, and no unit reads another. H then comes from `input_weight`, or from the
            channels of `source`; `mask` and `heads` are refused.
        """,
    "input_weight": """
        input_weight : array, [GH, I], bidirectional [DGH, I], optional
            W. If not given, the source is added to the gates as it is. With `input_heads`, its blocks,
            [GH, I / input_heads].
        """,
    "bias": """
        bias : array, [GH], bidirectional [DGH], optional
            b. Zeros if not given.
        """,
    "init_state": """
        init_state : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            h before the first step. Zeros if not given.
        """,
    "init_cell": """
        init_cell : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            c before the first step. Zeros if not given.
        """,
    "init_normalizer": """
        init_normalizer : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            n before the first step. Zeros if not given.
        """,
    "init_stabilizer": """
        init_stabilizer : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            m before the first step. Zeros if not given. Where n is 0, it has no effect on h.
        """,
    "mask": """
        mask : array, whatever broadcasts to [T, N, H], bidirectional [T, N, 2H], optional
            m. It multiplies h where h enters the recurrent product, and nothing else. Row t belongs to the step that
            computes row t of the output. Ones if not given.{gate_masks}
        """,
    "peephole": """
        peephole : array, [4H], bidirectional [2, 4H] or [8H], optional
            p, a vector for each of the four gates. Zeros if not given.
        """,
    "secondary_bias": """
        secondary_bias : array, [H], bidirectional [2H], optional
            b2, added to the recurrent product of the candidate. Used with `reset_after` only: without it, a UserWarning
            says that it has no effect. Zeros if not given.
        """,
    "lengths": """
        lengths : array or list of integers, [N], optional
            Number of steps of each batch row, 0 to T. Past its end a row is zero in every result. Reverse order and the
            backward direction start at its end. Arguments may hold any finite numbers past the end. T if not given.
        """,
    "reset": """
        reset : array, [T, N], [T, N, 1] or [T, N, H], bidirectional 2H instead of H, optional
            r, of bool (True starts anew: r = 0) or of the source's type, from 0 to 1, which is not checked. Before step
            t, each state h becomes ``r[t] * h + (1 - r[t]) * s``, with s from `reset_state`{reset_cell_too}. Rows
            are those of the output. The backward direction applies row t + 1 before row t, so that documents never mix.
        """,
    "reset_state": """
        reset_state : array, [N, H] or [T, N, H], bidirectional 2H instead of H, optional
            The h that resets start from. Zeros if not given.
        """,
    "reset_cell": """
        reset_cell : array, [N, H] or [T, N, H], bidirectional 2H instead of H, optional
            The c that resets start from. Zeros if not given.
        """,
    "output_fwd": """
        output_fwd : array, [T, N, H], bidirectional [T, N, 2H], optional
            The ``output`` of the forward call. Needed with `zoneout_mask`{zoneout_cell_mask_too} or `leak`, and ignored
            without them.
        """,
    "zoneout_mask": """
        zoneout_mask : array, [T, N, H] or [H], bidirectional 2H instead of H, optional
            The new state's part of h after a step: 1 takes the new h, 0 keeps that of the step before (after its
            reset). [H] is the same in every step. Row t belongs to the step that computes row t of the output. Values
            are not checked; there is no gradient.
        """,
    "zoneout_cell_mask": """
        zoneout_cell_mask : array, [T, N, H] or [H], bidirectional 2H instead of H, optional
            The same for c.
        """,
    "leak": """
        leak : array, [], [1] or [H], bidirectional 2H instead of H, optional
            The new state's part of h after a step, as `zoneout_mask`, of all units or of each; a float will do. It has
            a gradient, and cannot be given beside a zoneout mask.
        """,
    "descriptor": """
        descriptor : {Descriptor}, optional
            Direction, activations and other options. ``{Descriptor}()`` if not given.
        """,
    "name": """
        name : str, optional
            A label for error messages and debugging tools.
        """,
    "device": """
        device : Device or int or str, optional
            Where to run: a device, its position in `devices()`, or part of its name. `default_device()` if not given.
        """,
    "source_gradient": """
        source_gradient : array or None, [T, N, H], bidirectional [T, N, 2H]
            Gradient with respect to the output, in the order of its rows. None means zeros, for a loss on the last
            states alone.
        """,
    "z_state": """
        z_state : array, [T, N, GH], bidirectional [T, N, DGH]
            The ``z_state`` of the forward call, which had ``training=True``.
        """,
    "state_gradient": """
        state_gradient : array, [N, H] or [1, N, H], bidirectional [N, 2H] or [1, N, 2H], optional
            Gradient with respect to h after the last step of each direction. Zeros if not given.
        """,
    "cell_gradient": """
        cell_gradient : array, [N, H], [1, N, H] or [T, N, H], bidirectional 2H instead of H, optional
            Gradient with respect to c after the last step of each direction; if [T, N, DH] with T > 1, with respect to
            all cells, in the order of the rows of ``cell_output``. Zeros if not given.
        """,
    "normalizer_gradient": """
        normalizer_gradient : array, [N, H], [1, N, H] or [T, N, H], bidirectional 2H instead of H, optional
            The same with respect to n. Zeros if not given.
        """,
    "stabilizer_gradient": """
        stabilizer_gradient : array, [N, H], [1, N, H] or [T, N, H], bidirectional 2H instead of H, optional
            The same with respect to m. Zeros if not given.
        """,
    "out": """
        out : sequence of array or None, optional
            An array to write each result to, in the order of the results; None allocates one. A single result's array
            need not be in a sequence.
        """,
    "forward_again": """
        Pass the arguments and the descriptor of the forward call.
        """,
    "raises": """
        Raises
        ------
        TypeError
            If an argument is no array or has another dtype than the source, if the descriptor belongs to another
            function, or if the name is no str.
        ValueError
            If an argument has the wrong shape, if another axis than N has size 0, if arrays are on different devices,
            or if `out` shares memory with an argument or another result. The message says what was expected.
        NotImplementedError
            If the device cannot compute in the dtype.
        MemoryError
            If the call needs more memory than the device has free.
        DeviceError
            If there is no device, or it was closed or lost.
        """,
    "warnings": """
        Warnings
        --------
        No error reports these mistakes:

        - Time is the first axis. A batch-first source, [N, T, I], is accepted, and computed as N steps of T rows.
        - Results are a named tuple of what was asked for, not PyTorch's ``(output, (h, c))``. The state after the last
          step is ``output[-1]`` (one direction, no `lengths`).
        """,
    "gradient_warnings": """
        Warnings
        --------
        No error reports these mistakes:

        - The descriptor and the arguments must be those of the forward call; only ``training`` and `bias` do not
          matter. With others, or without one, the results are gradients of another function.
        - Time is the first axis. Batch-first arrays are accepted, and computed as N steps of T rows.
        - Results are a named tuple. Gradients of arguments that were not given are left out, so read them by name.
        """,
}

_AXES = {
    "single_gate_rnn": "",
    "gru": "An axis of 3H holds the gates z, r, o one after the other (r, z, o with `reset_gate_first`).",
    "lstm": "An axis of 4H holds the gates i, f, z, o one after the other (i, z, f, o with `forget_gate_last`).",
    "slstm": "An axis of 4H holds the gates i, f, z, o one after the other.",
}


_GATE_MASKS = """
    What broadcasts to [T, N, GH], bidirectional [T, N, DGH], is a mask for the recurrent product of each gate."""


def documented(function: Function) -> Function:
    """Insert the paragraphs into the docstring of one of the functions."""
    [cell] = [cell for cell in _core.cells() if function.__name__ in (cell.name, cell.gradients_name)]
    gates = len(cell.gates)

    def for_cell(text: str) -> str:
        too = " or `reset_cell`" if "init_cell" in dict(cell.forward) else ""
        also = ", `zoneout_cell_mask`" if "zoneout_cell_mask" in dict(cell.forward) else ""
        of_cell = {"{axes}": _AXES[cell.name], "{Descriptor}": cell.descriptor_name, "{reset_cell_too}": too}
        of_cell["{zoneout_cell_mask_too}"] = also
        of_cell["{gate_masks}"] = _GATE_MASKS if gates > 1 else ""
        text = clean(text)
        for placeholder, value in of_cell.items():
            text = text.replace(placeholder, value)
        return text.replace("DGH", f"{2 * gates}H").replace("GH", f"{gates}H".replace("1H", "H"))

    paragraphs = {name: for_cell(text) for name, text in _PARAGRAPHS.items()}
    paragraphs["letters"] = "\n\n".join(textwrap.fill(each, 100) for each in paragraphs["letters"].split("\n\n"))
    return with_paragraphs(paragraphs)(function)
