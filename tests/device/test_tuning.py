"""Tuned strategies: ``python -m vkrnn tune`` writes them to a file, and devices read it when they are opened."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from resident import position
from vkrnn import __main__ as command_line
from vkrnn._cli import pytorch
from vkrnn._cli import tune as program
from vkrnn._cli.measured import CELLS, PASSES, draw_calls
from vkrnn._device import tuning

SOURCE, WEIGHT = np.zeros((3, 2, 4), np.float32), np.zeros((4, 4), np.float32)
CALL: dict[str, Any] = {"source": SOURCE, "recurrent_weight": WEIGHT, "input_weight": WEIGHT}
TUNED = {"rows": 1}  # not the default for two batch rows
ENTRY: dict[str, Any] = {
    "operation": "single_gate_rnn",
    "training": False,
    "dtype": "float32",
    "float32": "ieee",
    "T": 4,
    "N": 2,
    "I": 4,
    "H": 4,
    "D": 1,
    "phases": 1,
    "strategy": {"schedule": "steps", "gemm": "register", **TUNED},
    "milliseconds": [1.0, 0.5],
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the index of a device that can be tuned, with a cache folder for this test."""
    monkeypatch.setenv("VKRNN_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("VKRNN_TUNING", raising=False)
    return position(native=False)


def strategy(device: vkrnn.Device, **call: Any) -> dict[str, str | int]:
    """Return the strategies that the device uses for the call, and close it."""
    found = vkrnn.plan(vkrnn.single_gate_rnn, **{**CALL, **call}, device=device).strategy
    device.close()
    return found


def times(_: Callable[[], object], device: vkrnn.Device, __: float) -> list[float]:
    """Replace the measurement: the parameters in TUNED are fastest."""
    return [0.5 if TUNED.items() <= device._options.items() else 1.0]


def tune(index: int, *arguments: str) -> int:
    """Run the command for a device."""
    return command_line.main(["tune", "--device", str(index), *arguments])


def tune_one(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune one call as if the parameters in TUNED were fastest."""
    monkeypatch.setattr(program, "_times", times)
    sizes = ("--cells", "single_gate_rnn", "--passes", "forward", "--sizes", "3,2,4,4")
    assert tune(index, *sizes, "--schedules", "steps", "--gemms", "register") == 0


def test_a_device_reads_what_was_tuned(
    index: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls use it whose T rounds up to the same power of two. Others, and devices with options, do not."""
    default = strategy(vkrnn.Device(index))
    assert default.get("rows") != 1
    tune_one(index, monkeypatch)
    shown = capsys.readouterr().out
    assert "single_gate_rnn forward float32 3,2,4,4" in shown
    assert "1000.000" in shown
    assert "500.000" in shown
    assert "  2.00  " in shown

    tuned = strategy(vkrnn.Device(index))
    assert tuned == {**tuned, "schedule": "steps", "gemm": "register", **TUNED}
    assert strategy(vkrnn.Device(index), source=np.zeros((4, 2, 4), np.float32)) == tuned
    assert strategy(vkrnn.Device(index), source=np.zeros((5, 2, 4), np.float32)) == default
    assert strategy(vkrnn.Device(index), source=np.zeros((3, 3, 4), np.float32)) == default
    assert strategy(vkrnn.Device(index, schedule="steps", rows=2))["rows"] == 2
    assert strategy(vkrnn.Device(index, gemm="register")).get("rows") == default.get("rows")
    training = vkrnn.SingleGateRNNDescriptor(training=True)
    assert strategy(vkrnn.Device(index), descriptor=training) == default
    monkeypatch.setenv("VKRNN_TUNING", "0")
    assert strategy(vkrnn.Device(index)) == default


def test_print_and_forget(index: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``--print`` shows the table, ``--forget`` removes it; a call without a faster strategy loses its entry."""
    path = tuning.path_of(vkrnn.devices()[index].profile)
    assert path is not None
    tune_one(index, monkeypatch)
    table = json.loads(path.read_text())
    (entry,) = table["calls"]
    assert (entry["operation"], entry["T"], entry["milliseconds"]) == ("single_gate_rnn", 4, [1000.0, 500.0])
    path.write_text(json.dumps({**table, "calls": [entry, {**entry, "N": 7}]}))
    capsys.readouterr()
    assert tune(index, "--print") == 0
    assert f"2 calls in {path}\n" in (shown := capsys.readouterr().out)
    assert "single_gate_rnn float32 N=7,I=4,H=4,D=1, T <= 4  steps, register, " in shown

    monkeypatch.setattr(program, "_times", lambda *_: [1.0])
    sizes = ("--cells", "single_gate_rnn", "--passes", "forward", "--sizes", "3,2,4,4")
    assert tune(index, *sizes, "--schedules", "steps", "--gemms", "register") == 0
    assert json.loads(path.read_text())["calls"] == [{**entry, "N": 7}]
    capsys.readouterr()
    assert tune(index, "--forget") == 0
    assert "The table is removed.\n" in capsys.readouterr().out
    assert not path.exists()
    assert tune(index, "--forget") == 0
    assert "There is no table.\n" in capsys.readouterr().out


def test_only_named_strategies_are_tried(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default strategies are measured, too, even if they are not named."""
    default = strategy(vkrnn.Device(index))
    schedule = "tiles" if default["schedule"] == "steps" else "steps"
    gemm = "register" if default["gemm"] == "tiled" else "tiled"
    tried = []

    def recorded(_: object, device: vkrnn.Device, __: float) -> list[float]:
        tried.append({**device._options})
        return [1.0]

    monkeypatch.setattr(program, "_times", recorded)
    sizes = ("--cells", "single_gate_rnn", "--passes", "forward", "--sizes", "3,2,4,4")
    assert tune(index, *sizes, "--schedules", schedule, "--gemms", gemm) == 0
    first, *others = tried
    assert first == {}
    assert others
    assert all({"schedule": schedule, "gemm": gemm}.items() <= options.items() for options in others)


def test_entries_of_other_processes_are_kept(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read again before it is written."""
    profile = vkrnn.devices()[index].profile
    other = {**ENTRY, "N": 7}

    def entered_meanwhile(call: Callable[[], object], device: vkrnn.Device, seconds: float) -> list[float]:
        tuning.save(profile, [other])
        return times(call, device, seconds)

    monkeypatch.setattr(program, "_times", entered_meanwhile)
    sizes = ("--cells", "single_gate_rnn", "--passes", "forward", "--sizes", "3,2,4,4")
    assert tune(index, *sizes, "--schedules", "steps", "--gemms", "register") == 0
    assert [entry["N"] for entry in tuning.read(profile)] == [7, 2]


def test_writers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writer finds the entries of the others."""
    monkeypatch.setenv("VKRNN_CACHE_DIR", str(tmp_path / "made by the first"))
    profile = vkrnn.Device("cpu (").profile
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda batch: tuning.merge(profile, [{**ENTRY, "N": batch}], []), range(1, 41)))
    assert sorted(entry["N"] for entry in tuning.read(profile)) == list(range(1, 41))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old table stays, and no temporary file is left."""
    monkeypatch.setenv("VKRNN_CACHE_DIR", str(tmp_path))
    profile = vkrnn.Device("cpu (").profile
    path = tuning.save(profile, [ENTRY])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        tuning.save(profile, [])
    assert list(tmp_path.iterdir()) == [path]
    assert tuning.read(profile) == [ENTRY]


@pytest.mark.parametrize("variable", ["VKRNN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
@pytest.mark.skipif(sys.platform != "linux", reason="other systems require UTF-8 folder names")
def test_a_folder_whose_name_is_not_utf8(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the folder that Python's file functions find by the same str."""
    for name in ("VKRNN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    monkeypatch.setenv(variable, str(folder))
    profile = vkrnn.Device("cpu (").profile
    path = tuning.save(profile, [ENTRY])
    assert path is not None
    below = {"VKRNN_CACHE_DIR": "", "XDG_CACHE_HOME": "vkrnn", "HOME": ".cache/vkrnn"}[variable]
    assert path.parent == folder / below
    assert tuning.read(profile) == [ENTRY]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems require UTF-8 folder names")
def test_shader_cache_in_a_folder_that_is_not_utf8(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Shaders are cached there, and the log escapes the folder's name."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    monkeypatch.setenv("VKRNN_CACHE_DIR", str(folder))
    for _ in range(2):
        with caplog.at_level(logging.INFO, "vkrnn"):
            device = vkrnn.Device(index)
            vkrnn.single_gate_rnn(**CALL, device=device)
            device.close()
        (file,) = folder.glob("*.pipelines")
        file.write_bytes(b"damaged" * 100)
    message = f"{tmp_path}/caf\\xe9/{file.name} is damaged or of another driver: shaders are compiled anew"
    assert message in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("wrong", ["{", "[]", "null", "foreign", "version", "entry", "size", "binary"])
def test_an_unusable_table_is_ignored(index: int, wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged as one warning, and the default strategies are used."""
    path = tuning.save(vkrnn.devices()[index].profile, [ENTRY])
    assert path is not None
    assert strategy(vkrnn.Device(index))["rows"] == 1
    table = json.loads(path.read_text())
    changed: dict[str, dict[str, Any]] = {
        "foreign": {"device": "abacus"},
        "version": {"vkrnn_tuning": 0},
        "entry": {"calls": [{"operation": "lstm"}]},
        "size": {"calls": [{**table["calls"][0], "N": "two"}]},
    }
    text = json.dumps({**table, **changed[wrong]}) if wrong in changed else wrong
    path.write_bytes(b"\xff\xfe" if wrong == "binary" else text.encode())
    with caplog.at_level(logging.WARNING, "vkrnn"):
        assert strategy(vkrnn.Device(index)).get("rows") != 1
        assert strategy(vkrnn.Device(index)).get("rows") != 1
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert record.getMessage().startswith(f"{path} is ignored: ")


def test_precisions_do_not_share_entries(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has a precision, ieee if a table has none or the strategy does not round its products."""
    default = strategy(vkrnn.Device(index))
    device = vkrnn.devices()[index]
    tuning.save(device.profile, [{name: value for name, value in ENTRY.items() if name != "float32"}])
    assert [entry["float32"] for entry in tuning.read(device.profile)] == ["ieee"]
    assert strategy(vkrnn.Device(index))["rows"] == 1
    rounded = strategy(vkrnn.Device(index, float32="tf32"))
    assert (rounded.get("rows") == 1) is not device.rounds_products
    tuning.save(device.profile, [{**ENTRY, "float32": "tf32"}])
    assert strategy(vkrnn.Device(index)) == default
    monkeypatch.setenv("VKRNN_FLOAT32", "tf32")
    tune_one(index, monkeypatch)
    kept = {entry["float32"] for entry in tuning.read(device.profile)}
    assert kept == ({"tf32"} if device.rounds_products else {"ieee", "tf32"})


def test_outdated_entries_are_ignored(index: int) -> None:
    """Entries with unknown strategies or parameters are ignored, and the default strategies used."""
    default = strategy(vkrnn.Device(index))
    profile = vkrnn.devices()[index].profile
    for changed in ({"schedule": "wishes"}, {"teeth": 3}, {"rows": 4000}):
        tuning.save(profile, [{**ENTRY, "strategy": {**ENTRY["strategy"], **changed}}])
        assert strategy(vkrnn.Device(index)) == default


def test_wrong_answers_are_not_entered(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy whose results disagree is not entered, however fast it is."""
    agrees = program._Search._agrees

    def wrong(search: Any, results: Any) -> bool:
        return bool(agrees(search, results)) and len(search.tried) == 1  # the default strategies come first

    monkeypatch.setattr(program._Search, "_agrees", wrong)
    tune_one(index, monkeypatch)
    assert tuning.read(vkrnn.devices()[index].profile) == []


@pytest.mark.full
def test_every_pass_is_measured(index: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A real but very short measurement gives each call a row."""
    options = ["--sizes", "2,1,3,2", "--seconds", "0", "--schedules", "steps", "--gemms", "register"]
    assert tune(index, *options, "--cells", "gru", "--dtypes", "float16") == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines() if line.startswith("  gru ")]
    assert rows == [["gru", which, "float16"] for which in ("forward", "training", "gradients")]


def test_the_cpu_has_nothing_to_tune(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says so and returns 0."""
    assert command_line.main(["tune", "--device", "cpu ("]) == 0
    assert capsys.readouterr().out.endswith("The CPU has one strategy: there is nothing to tune.\n")


def test_pytorch_makes_the_same_calls(torch: Any) -> None:
    """The layer that stands beside a measured call has results of the same shapes, and none the GRU that it lacks."""
    calls = draw_calls(2**30, list(CELLS), [(3, 2, 5, 4)], ["float32"], PASSES)
    for label, call in calls:
        assert call is not None
        theirs = pytorch.resident_call(torch, call.cell, call.which, call.arguments, call.dtype, "cpu")
        assert (theirs is None) == (call.cell in {"gru", "slstm"}), label
        if theirs:
            own, other = call.function(**call.arguments, device="cpu ("), theirs()
            assert tuple(other[0].shape) == own[0].shape, label
