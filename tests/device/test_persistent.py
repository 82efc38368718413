"""The persistent loop: steps whose workgroups wait too long for each other are run again, without waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkrnn
from tolerances import TF32
from vkrnn import reference

INDICES = [one.index for one in vkrnn.devices() if "persistent" in vkrnn.Device(one.index).strategies["schedule"]]
T, N, H = 5, 20, 40
TOLERANCE = 2e-6  # relative to absmax

if not INDICES:
    pytest.skip("no device has matrix units", allow_module_level=True)


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"tagged": 1},
    {"kept_blocks": 1, "depth_groups": 2},
    {"float32": "tf32"},
    {"float32": "tf32", "tagged": 1},
)


@pytest.fixture(name="device", params=itertools.product(INDICES, OPTIONS))
def _device(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    # A workgroup gives up before its first spin iteration. Rows and units are in several tiles each.
    index, options = request.param
    device = vkrnn.Device(index, schedule="persistent", matrix_rows=1, matrix_columns=1, max_spins=0, **options)
    yield device
    device.close()


def error(got: Any, ideal: Any) -> float:
    """Return max |a - b| / max |b|."""
    return float(np.abs(np.asarray(got) - ideal).max() / np.abs(ideal).max())


@pytest.mark.parametrize("lengths", [None, [5] * 7 + [1, 4] + [3] * 11], ids=["whole", "lengths"])
def test_a_wait_that_gives_up_repeats_the_call(device: vkrnn.Device, lengths: list[int] | None) -> None:
    """Forward and gradients agree with the reference, with the same bits every time, with and without lengths."""
    draw = np.random.default_rng(7).standard_normal
    arrays = {
        "source": draw((T, N, H)).astype(np.float32),
        "recurrent_weight": (draw((4 * H, H)) / H**0.5).astype(np.float32),
        "input_weight": (draw((4 * H, H)) / H**0.5).astype(np.float32),
        "init_state": draw((N, H)).astype(np.float32),
    }
    more: dict[str, Any] = {} if lengths is None else {"lengths": np.array(lengths, np.int32)}
    descriptor = vkrnn.LSTMDescriptor(training=True)
    tolerance = TF32 if device.float32 == "tf32" else TOLERANCE
    ideal = reference.lstm(**arrays, **more, descriptor=descriptor)
    got = vkrnn.lstm(**arrays, **more, descriptor=descriptor, device=device)
    assert vkrnn.plan(vkrnn.lstm, **arrays, **more, descriptor=descriptor, device=device).strategy["max_spins"] == 0
    failed = device.statistics()["failed_waits"]
    assert failed > 0
    again = vkrnn.lstm(**arrays, **more, descriptor=descriptor, device=device)
    assert device.statistics()["failed_waits"] == failed + 1
    for name in ("output", "cell_output", "z_state"):
        assert error(getattr(got, name), getattr(ideal, name)) < tolerance, name
        assert np.array_equal(np.asarray(getattr(got, name)), np.asarray(getattr(again, name))), name

    upstream = draw((T, N, H)).astype(np.float32)
    saved = {"source_gradient": upstream, "z_state": got.z_state, "cell_output_fwd": got.cell_output}
    ideal_saved = {"source_gradient": upstream, "z_state": ideal.z_state, "cell_output_fwd": ideal.cell_output}
    gradients = vkrnn.lstm_gradients(**arrays, **saved, **more, descriptor=descriptor, device=device)._asdict()
    expected = reference.lstm_gradients(**arrays, **ideal_saved, **more, descriptor=descriptor)._asdict()
    assert gradients.keys() == expected.keys()
    for name, ideal_gradient in expected.items():
        assert error(gradients[name], ideal_gradient) < tolerance, name


@pytest.mark.parametrize("float32", ["ieee", "tf32"])
@pytest.mark.parametrize("index", INDICES)
def test_an_infinity_stays_in_its_row_when_a_wait_gives_up(index: int, float32: str) -> None:
    """The steps that run again read other words as padding units.

    In blocks of 16 rows, as NVIDIA's GPUs have them, these may have been another row's.
    """
    T, N, H = 3, 20, 37
    draw = np.random.default_rng(11).standard_normal
    given: dict[str, Any] = {
        "source": draw((T, N, 4 * H)).astype(np.float32),
        "recurrent_weight": (draw((4 * H, H)) / H**0.5).astype(np.float32),
        "init_state": draw((N, H)).astype(np.float32),
    }
    given["init_state"][3] = np.inf
    wanted = reference.lstm(**given).output
    others = np.arange(N) != 3
    options: dict[str, Any] = {"schedule": "persistent", "tagged": 1, "max_spins": 0, "float32": float32}
    with vkrnn.Device(index, matrix_rows=1, matrix_columns=1, **options) as device:
        got = vkrnn.lstm(**given).output
    device.close()
    assert error(got[:, others], wanted[:, others]) < (TF32 if float32 == "tf32" else TOLERANCE)


# A workgroup has all units, so it waits only for itself, even where few workgroups run at a time.
ALONE = {"matrix_rows": 1, "matrix_columns": 1, "max_spins": 1 << 20}
# H in quarters of a block's side, and groups: one block with padding units, and whole ones.
PADDED, WHOLE = (2, {"column_groups": 2, "depth_groups": 2}), (4, {"column_groups": 4, "depth_groups": 1})


@pytest.mark.parametrize("cell", ["single_gate_rnn", "lstm", "gru"])
@pytest.mark.parametrize("float32", ["ieee", "tf32"])
@pytest.mark.parametrize(("quarters", "groups"), [PADDED, WHOLE], ids=["padded", "whole"])
@pytest.mark.parametrize("index", INDICES)
def test_tagged_words(index: int, quarters: int, groups: dict[str, int], float32: Any, cell: str) -> None:
    """Results agree with the reference, their bits differ from those of counted waits, and NaN stays in its row."""
    T, N, H = 9, 11, quarters * vkrnn.Device(index).profile.matrix_side // 4
    draw = np.random.default_rng(8).standard_normal
    gates = {"single_gate_rnn": 1, "lstm": 4, "gru": 3}[cell]
    given: dict[str, Any] = {
        "source": draw((T, N, H)).astype(np.float32),
        "recurrent_weight": draw((gates * H, H)).astype(np.float32) / 2,
        "input_weight": draw((gates * H, H)).astype(np.float32) / 2,
        "init_state": draw((N, H)).astype(np.float32),
    }
    # With one part, small numbers have fewer digits if they are tagged, and all others the same.
    given["source"][:, 5] *= 1e-5
    given["init_state"][5] *= 1e-5
    for name in ("recurrent_weight", "input_weight"):
        given[name] *= 2 / H**0.5
    descriptor = {
        "single_gate_rnn": vkrnn.SingleGateRNNDescriptor(training=True, activation="tanh"),
        "lstm": vkrnn.LSTMDescriptor(training=True),
        "gru": vkrnn.GRUDescriptor(training=True, reset_after=True),
    }[cell]

    def computed(module: Any, given: dict[str, Any], **where: Any) -> dict[str, Any]:
        forward = getattr(module, cell)(**given, descriptor=descriptor, **where)
        saved = {"z_state": forward.z_state}
        if cell == "lstm":
            saved["cell_output_fwd"] = forward.cell_output
        if cell == "gru":
            saved["output_fwd"] = forward.output
        back = getattr(module, f"{cell}_gradients")(
            **given, **saved, source_gradient=given["source"], descriptor=descriptor, **where
        )
        return {"output": forward.output, **{name: got for name, got in back._asdict().items() if got is not None}}

    devices = [
        vkrnn.Device(index, schedule="persistent", float32=float32, tagged=tagged, **ALONE, **groups)
        for tagged in (1, 0)
    ]
    tolerance = TF32 if float32 == "tf32" else TOLERANCE
    tagged, counted = (computed(vkrnn, given, device=device) for device in devices)
    ideal = computed(reference, given)
    assert tagged.keys() == ideal.keys()
    for name, expected in ideal.items():
        assert error(tagged[name], expected) < tolerance, name
    assert not np.array_equal(np.asarray(tagged["output"])[:, 5], np.asarray(counted["output"])[:, 5]), (
        "the wait gave up and the call was repeated"
    )

    given["source"][2, 3] = np.nan
    tagged, counted = (np.asarray(computed(vkrnn, given, device=device)["output"]) for device in devices)
    assert np.isnan(tagged[2:, 3]).all()
    assert np.array_equal(np.isnan(tagged), np.isnan(counted))
    for device in devices:
        device.close()


@pytest.mark.parametrize("float32", ["ieee", "tf32"])
@pytest.mark.parametrize("tagged", [0, 1])
@pytest.mark.parametrize("index", INDICES)
def test_numbers_of_any_size(index: int, tagged: int, float32: str) -> None:
    """Masked states just below a power of two, and tiny and huge gradients, are as accurate as any."""
    T, N, H = 5, 11, 4
    draw = np.random.default_rng(9).standard_normal
    source = draw((T, N, H)).astype(np.float32)
    weights = {name: draw((4 * H, H)).astype(np.float32) / 2 for name in ("recurrent_weight", "input_weight")}
    given: dict[str, Any] = {"source": source, **weights, "descriptor": vkrnn.LSTMDescriptor(training=True)}
    given["init_state"] = np.full((N, H), 1.9999, np.float32)
    given["mask"] = np.full((T, N, H), 1.9999, np.float32)
    tolerance = TF32 if float32 == "tf32" else TOLERANCE
    with vkrnn.Device(index, schedule="persistent", tagged=tagged, float32=float32, **ALONE) as device:
        ideal = reference.lstm(**given)
        assert error(vkrnn.lstm(**given).output, ideal.output) < tolerance
        saved = {"z_state": ideal.z_state.astype(np.float32), "cell_output_fwd": ideal.cell_output.astype(np.float32)}
        for size in (1e-28, 1e36):
            upstream = (draw((T, N, H)) * size).astype(np.float32)
            expected = reference.lstm_gradients(**given, **saved, source_gradient=upstream)
            got = vkrnn.lstm_gradients(**given, **saved, source_gradient=upstream)
            assert error(got.source, expected.source) < tolerance, size
    device.close()
