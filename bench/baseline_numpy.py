"""The cells in float32 NumPy, as fast as a script without vkrnn can be.

There is one product for the whole input before the time loop, one per step, and one for each weight's gradient after
it. Masks, peepholes and directions, which the benchmarks do not use, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .common import HOST_CALL, Contender, Floats, cpu_name, timed
from .problems import Arrays


class Tape(NamedTuple):
    """What the forward pass saves for the gradients: the states and the gates of all steps."""

    h: Floats  # [T + 1, N, H]; row 0 is the initial state
    c: Floats  # [T + 1, N, H], LSTM only
    gates: Floats  # [T, N, GH]
    recurrent: Floats  # [T, N, H], GRU only: the candidate's recurrent product with its bias


def _sigmoid(x: Floats, out: Floats) -> None:
    """Write the sigmoid of x, which is half a tanh of half of x, and a half."""
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)
    np.multiply(out, 0.5, out=out)
    np.add(out, 0.5, out=out)


def _tape(arrays: Arrays) -> Tape:
    T, N, _, H = (getattr(arrays.sizes, letter) for letter in "TNIH")
    source, W, bias = (arrays.given[name] for name in ("source", "input_weight", "bias"))
    gates = (source.reshape(T * N, -1) @ W.T + bias).reshape(T, N, -1)
    h, c = (np.zeros((T + 1, N, H), np.float32) for _ in range(2))
    return Tape(h, c, gates, np.empty((T, N, H), np.float32))


def _rnn_forward(arrays: Arrays) -> Tape:
    tape, R = _tape(arrays), arrays.given["recurrent_weight"].T
    for k in range(len(tape.gates)):
        tape.gates[k] += tape.h[k] @ R
        np.tanh(tape.gates[k], out=tape.h[k + 1])
    return tape


def _rnn_backward(arrays: Arrays, tape: Tape) -> tuple[Floats, Floats]:
    R = arrays.given["recurrent_weight"]
    delta, dh = np.empty_like(tape.gates), np.zeros_like(tape.h[0])
    for k in reversed(range(len(delta))):
        delta[k] = (arrays.source_gradient[k] + dh) * (1 - tape.h[k + 1] ** 2)
        dh = delta[k] @ R
    return delta, delta


def _lstm_forward(arrays: Arrays) -> Tape:
    tape, R, H = _tape(arrays), arrays.given["recurrent_weight"].T, arrays.sizes.H
    # All gates are activated at once, since sigmoid(x) = tanh(x / 2) / 2 + 1 / 2.
    scale, shift = np.full(4 * H, 0.5, np.float32), np.full(4 * H, 0.5, np.float32)
    scale[2 * H : 3 * H], shift[2 * H : 3 * H] = 1, 0
    product, y = np.empty_like(tape.gates[0]), np.empty_like(tape.c[0])
    for k, gates in enumerate(tape.gates):
        np.add(gates, np.matmul(tape.h[k], R, out=product), out=gates)
        np.multiply(gates, scale, out=gates)
        np.tanh(gates, out=gates)
        np.multiply(gates, scale, out=gates)
        np.add(gates, shift, out=gates)
        i, f, z, o = (gates[:, gate : gate + H] for gate in range(0, 4 * H, H))
        np.multiply(f, tape.c[k], out=tape.c[k + 1])
        np.add(tape.c[k + 1], np.multiply(i, z, out=y), out=tape.c[k + 1])
        np.multiply(o, np.tanh(tape.c[k + 1], out=y), out=tape.h[k + 1])
    return tape


def _lstm_backward(arrays: Arrays, tape: Tape) -> tuple[Floats, Floats]:
    R = arrays.given["recurrent_weight"]
    delta, dh, dc = np.empty_like(tape.gates), np.zeros_like(tape.h[0]), np.zeros_like(tape.h[0])
    y = np.tanh(tape.c[1:])
    for k in reversed(range(len(delta))):
        i, f, z, o = np.split(tape.gates[k], 4, axis=1)
        d_i, d_f, d_z, d_o = np.split(delta[k], 4, axis=1)
        dh += arrays.source_gradient[k]
        dc += dh * o * (1 - y[k] ** 2)
        np.multiply(dc * z, i * (1 - i), out=d_i)
        np.multiply(dc * tape.c[k], f * (1 - f), out=d_f)
        np.multiply(dc * i, 1 - z**2, out=d_z)
        np.multiply(dh * y[k], o * (1 - o), out=d_o)
        dc *= f
        dh = delta[k] @ R
    return delta, delta


def _gru_forward(arrays: Arrays) -> Tape:
    tape, R, H = _tape(arrays), arrays.given["recurrent_weight"].T, arrays.sizes.H
    product, y = np.empty_like(tape.gates[0]), np.empty_like(tape.h[0])
    for k, gates in enumerate(tape.gates):
        np.matmul(tape.h[k], R, out=product)
        np.add(product[:, 2 * H :], arrays.given["secondary_bias"], out=tape.recurrent[k])
        both = np.add(gates[:, : 2 * H], product[:, : 2 * H], out=product[:, : 2 * H])
        _sigmoid(both, out=gates[:, : 2 * H])
        r, z, o = (gates[:, gate : gate + H] for gate in range(0, 3 * H, H))
        np.add(o, np.multiply(r, tape.recurrent[k], out=y), out=o)
        np.tanh(o, out=o)
        np.multiply(z, np.subtract(tape.h[k], o, out=y), out=y)
        np.add(o, y, out=tape.h[k + 1])
    return tape


def _gru_backward(arrays: Arrays, tape: Tape) -> tuple[Floats, Floats]:
    R, H = arrays.given["recurrent_weight"], arrays.sizes.H
    delta, dh = np.empty_like(tape.gates), np.zeros_like(tape.h[0])
    recurrent = np.empty_like(delta)  # the gradient of the recurrent product, which the reset gate scales
    for k in reversed(range(len(delta))):
        r, z, o = np.split(tape.gates[k], 3, axis=1)
        d_r, d_z, d_o = np.split(delta[k], 3, axis=1)
        dh += arrays.source_gradient[k]
        np.multiply(dh * (1 - z), 1 - o**2, out=d_o)
        np.multiply(dh * (tape.h[k] - o), z * (1 - z), out=d_z)
        np.multiply(d_o * tape.recurrent[k], r * (1 - r), out=d_r)
        recurrent[k] = delta[k]
        recurrent[k, :, 2 * H :] *= r
        dh = dh * z + recurrent[k] @ R
    return delta, recurrent


FORWARD: dict[str, Callable[[Arrays], Tape]] = {
    "single_gate_rnn": _rnn_forward,
    "lstm": _lstm_forward,
    "gru": _gru_forward,
}
BACKWARD: dict[str, Callable[[Arrays, Tape], tuple[Floats, Floats]]] = {
    "single_gate_rnn": _rnn_backward,
    "lstm": _lstm_backward,
    "gru": _gru_backward,
}


def _gradients(arrays: Arrays, tape: Tape) -> dict[str, Floats]:
    delta, recurrent = BACKWARD[arrays.cell](arrays, tape)
    source, W = arrays.given["source"], arrays.given["input_weight"]
    rows = delta.reshape(-1, delta.shape[2])
    recurrent_rows = recurrent.reshape(rows.shape)
    gradients = {
        "source": (rows @ W).reshape(source.shape),
        "recurrent_weight": recurrent_rows.T @ tape.h[:-1].reshape(len(rows), -1),
        "input_weight": rows.T @ source.reshape(len(rows), -1),
        "bias": rows.sum(axis=0),
    }
    if arrays.cell == "gru":
        gradients["secondary_bias"] = recurrent_rows[:, 2 * arrays.sizes.H :].sum(axis=0)
    return gradients


def on_numpy(arrays: Arrays, *, gradients: bool) -> Contender:
    """Return NumPy as a contender."""

    def work() -> Mapping[str, Floats]:
        tape = FORWARD[arrays.cell](arrays)
        results = {"output": tape.h[1:]}
        if gradients:
            back = _gradients(arrays, tape)
            results |= {f"gradient of {name}": array for name, array in back.items()}
        return results

    return Contender("numpy", cpu_name(), f"NumPy {np.__version__}, {blas()}", lambda: {HOST_CALL: timed(work)}, work)


def blas() -> str:
    """Return the name and the version of the library that NumPy's products come from."""
    config: Any = getattr(np.__config__, "CONFIG", {})  # NumPy 1.25 and later
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'BLAS')} {blas.get('version', '')}".strip()
