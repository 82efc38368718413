"""``python -m vkrnn``: info, check, tune, bench and demo."""

from __future__ import annotations

import argparse
import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from hidden import NO_GPU
from vkrnn import __main__ as command_line
from vkrnn import _core
from vkrnn._cli import bench, info, output, pytorch, tune
from vkrnn._cli.sample import SAMPLES
from vkrnn.checks import Comparison, Report

OPERATIONS = [name + suffix for name in ("single_gate_rnn", "lstm", "gru", "slstm") for suffix in ("", "_gradients")]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return subprocess.run(
        [sys.executable, "-m", "vkrnn", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_info() -> None:
    """It prints one screen: each device, and each package that works with vkrnn, with its version if it is there."""
    done = run("info")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"vkrnn {vkrnn.__version__}, Python {sys.version.split()[0]}, NumPy {np.__version__}"
    assert len(lines) <= 24 + len(vkrnn.devices())
    assert max(map(len, lines)) <= 120
    for device in vkrnn.devices():
        assert any(line.startswith(f"  {device.index}  {device.name}  ") for line in lines)
    found = {
        line.split()[0]: line.split()[1]
        for line in lines[lines.index("Other packages, each by `pip install`:") + 1 : -2]
    }
    assert found == {name: info._package(name, "")[0] for name in info._PACKAGES}


def test_info_about_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says why a GPU is missing, and what to install."""
    monkeypatch.setattr(_core, "vulkan_problem", lambda: "")
    monkeypatch.setattr(_core, "cuda_problem", lambda: "no CUDA driver (libcuda.so.1) was found")
    monkeypatch.setattr(_core, "skipped_devices", lambda: [("Old GPU", "discrete_gpu", "no shaderInt64")])
    monkeypatch.setattr(_core, "xla_handler", lambda: None)
    monkeypatch.setattr(info, "_PACKAGES", {"no-such-package": "dreams"})
    cpu = vkrnn.Device("cpu (")
    monkeypatch.setattr(info, "devices", lambda: [cpu])
    assert command_line.main(["info"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "  Vulkan: no GPU was found. If the machine has one, install its vendor's driver (Debian: apt install\n",
        "  CUDA: no CUDA driver (libcuda.so.1) was found; for an NVIDIA GPU, install NVIDIA's driver\n",
        "  Old GPU, discrete_gpu: no shaderInt64. A newer driver may help\n",
        "  Direct calls from JAX's programs: build with XLA's headers (docs/jax.md)\n",
        "  no-such-package  missing  dreams\n",
    ):
        assert expected in text


def test_the_details_of_info() -> None:
    """They are versions, the cache folder, and for each device what a bug report needs."""
    done = run("info", "--details", VKRNN_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    text, lines = done.stdout, done.stdout.splitlines()
    assert lines[0].startswith(f"vkrnn {vkrnn.__version__}, Python {sys.version.split()[0]}, NumPy {np.__version__}")
    assert f"cache folder: {_core.cache_directory()}" in lines
    assert "VKRNN_NUM_THREADS=2" in text
    absent = _core.xla_handler() is None
    assert ("programs of JAX: call back into Python: vkrnn was built without XLA's headers" in lines) == absent
    assert ("programs of JAX: call CPU and CUDA devices" in lines) != absent
    for device in vkrnn.devices():
        own = text.split(f"\n{device.index}: {device.name}\n")[1].split("\n\n")[0]
        expected = [
            f"  type: {device.type}",
            f"  driver: {device.driver}, {device.driver_version}",
            f"  host_visible: {vkrnn.empty(1, device=device).host_visible}",
            f"  float32 products: {'ieee' if device.rounds_products else 'ieee, always: there are no matrix units'}",
            *(f"  {part}: {', '.join(names)}" for part, names in device.strategies.items()),
        ]
        for line in expected:
            assert line in own.splitlines()
        assert ("float64" in own.split("dtypes: ")[1].splitlines()[0]) == device.profile.float64
        assert f"subgroup_size {device.profile.subgroup_size}" in own
        assert "an LSTM with T = 64, N = 8, I = H = 128: schedule " in own
        assert ("heap 0: " in own) == (device.backend == "vulkan")


@pytest.mark.usefixtures("vulkan_build")
def test_info_without_a_driver() -> None:
    """It says what is missing and lists the CPU."""
    for details, device, problem in (
        ([], "  0  cpu (", "  Vulkan: no Vulkan "),
        (["--details"], "0: cpu (", "Vulkan: "),
    ):
        done = run("info", *details, **NO_GPU)
        assert done.returncode == 0, done.stderr
        assert f"\n{device}" in done.stdout
        assert f"\n{problem}" in done.stdout


def test_check() -> None:
    """It checks all operations on every device, or on the named one, and returns 0."""
    done = run("check")
    assert done.returncode == 0, done.stdout + done.stderr
    chosen = [vkrnn.default_device()] if os.environ.get("VKRNN_DEVICE") else vkrnn.devices()
    assert [line for line in done.stdout.splitlines() if line.startswith("<")] == [repr(device) for device in chosen]
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" ok")] == OPERATIONS * len(chosen)
    assert done.stdout.endswith("All results agree with the reference.\n")
    one = run("check", "--device", "cpu (")
    assert one.returncode == 0
    assert [line.split()[0] for line in one.stdout.splitlines() if line.endswith(" ok")] == OPERATIONS


def test_check_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong result is shown as WRONG and returns 1, and so does a device that cannot be opened."""

    def wrong(*_: Any) -> list[Report]:
        return [Report("lstm", "", 5e-6, (Comparison("output", (1,), 0.5, (0,)),))]

    with monkeypatch.context() as patch:
        patch.setattr(command_line, "check_samples", wrong)
        assert command_line.main(["check", "--device", "cpu ("]) == 1
    shown = capsys.readouterr().out
    assert "  lstm       5.0e-01      output  ieee     WRONG\n" in shown
    assert shown.endswith("Some results are WRONG or missing.\n")

    def lost(*_: Any) -> list[Report]:
        raise vkrnn.DeviceError("it was lost")

    monkeypatch.setattr(command_line, "check_samples", lost)
    assert command_line.main(["check", "--device", "cpu ("]) == 1
    assert "  it was lost\n" in capsys.readouterr().out


def test_wrong_arguments() -> None:
    """An unknown device and a missing command are errors."""
    done = run("check", "--device", "abacus")
    assert done.returncode == 2
    assert "expected a part of a device's name, got 'abacus'" in done.stderr
    assert "Traceback" not in done.stderr
    assert run().returncode == 2


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--schedules", "nix", "expected 'native', got 'nix'"),
        ("--gemms", "nix", "expected 'native', got 'nix'"),
        ("--seconds", "nan", "expected 0 to 3600, got 'nan'"),
        ("--seconds", "inf", "expected 0 to 3600, got 'inf'"),
        ("--seconds", "soon", "expected 0 to 3600, got 'soon'"),
        ("--sizes", "1,2,3", "expected T,N,I,H, each from 1 to 2147483647, got '1,2,3'"),
        ("--sizes", "1,2,3,0", "expected T,N,I,H, each from 1 to 2147483647, got '1,2,3,0'"),
        ("--sizes", "1,2,3,2147483648", "expected T,N,I,H, each from 1 to 2147483647, got '1,2,3,2147483648'"),
        ("--sizes", "1,2,3,x", "expected T,N,I,H, each from 1 to 2147483647, got '1,2,3,x'"),
    ],
)
def test_wrong_options_of_tune(option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option, and the status is 2."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(["tune", "--device", "cpu (", option, value])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: argument {option}: {message}\n")


def test_tune_skips_sizes_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such sizes are skipped before any arrays are drawn."""
    monkeypatch.setenv("VKRNN_CACHE_DIR", str(tmp_path))
    options = argparse.Namespace(
        cells=["lstm"], sizes=[(2**31 - 1,) * 4], dtypes=["float32"], passes=["forward"], schedules=None, gemms=None
    )
    said: list[str] = []
    tune.tune(vkrnn.Device("cpu ("), options, said.append)
    assert said[0] == "  lstm forward float32 2147483647,2147483647,2147483647,2147483647: does not fit this device"


def show_info(stdout: int, shell: str = "", **environment: str) -> tuple[int, str]:
    """Run ``info`` without drivers, with this standard output. Return its status and standard error."""
    arguments = [sys.executable, "-m", "vkrnn", "info"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", *arguments] if shell else arguments,
        env={**os.environ, **NO_GPU, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")
def test_output_that_cannot_be_written() -> None:
    """A closed pipe, a full disk and a missing standard output give no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    assert show_info(writer) == (1, "")
    os.close(writer)
    assert show_info(subprocess.DEVNULL, ">&-") == (0, "")
    if Path("/dev/full").exists():
        message = f"standard output cannot be written to: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}\n"
        assert show_info(subprocess.DEVNULL, ">/dev/full") == (1, message)


def test_a_terminal_with_a_small_character_set(tmp_path: Path) -> None:
    """Characters that it cannot show are escaped, also in folder names that are not UTF-8."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    done = run(
        "info", "--details", **NO_GPU, PYTHONIOENCODING="ascii", VKRNN_CACHE_DIR=folder, VKRNN_GREETING="caf\u00e9"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"cache folder: {tmp_path}/caf\\udce9\n" in done.stdout
    assert "VKRNN_GREETING=caf\\xe9" in done.stdout


def test_version() -> None:
    """It prints the version alone."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vkrnn {vkrnn.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("info", "info.summarize"),
        ("check", "check_samples"),
        ("bench", "bench.run"),
        ("tune", "tune.tune"),
        ("demo", "demo.run"),
    ],
)
def test_an_interrupt(command: str, work: str) -> None:
    """Ctrl-C ends each command with one line."""
    program = (
        "import signal, sys; from vkrnn import __main__ as command_line\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs in the background ignore it
        "def interrupt(*_): signal.raise_signal(signal.SIGINT)\n"
        f"command_line.{work} = interrupt\n"
        f"command_line.Device.backend = 'vulkan'\n"  # the native CPU has nothing to tune
        f"sys.argv[1:] = [{command!r}]; sys.exit(command_line.output.run(command_line.main))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.parametrize("disturbed", [False, True])
def test_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, disturbed: bool) -> None:
    """It prints one row per operation, forward and training, says which were disturbed, and compares with PyTorch."""

    def timed(call: Any, _: float) -> bench.Timing:
        call()
        return bench.Timing(1.0, 0.25, disturbed)

    monkeypatch.setattr(bench, "time_call", timed)
    assert command_line.main(["bench", "--device", "cpu ("]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = lines[3 : 3 + 2 * len(SAMPLES)]
    names = [sample.forward.__name__ for sample in SAMPLES]
    assert [line[2:].split("  ")[0] for line in rows] == [
        name + suffix for name in names for suffix in ("", " + gradients")
    ]
    for line in rows:
        times = line[29:].removesuffix("disturbed").split("  ")
        assert [each.strip() for each in times if each.strip()] in (["1.00 +25%"] * 3, ["1.00 +25%"] * 2 + ["-"])
        assert line.endswith("  disturbed") == disturbed
        assert len(line.rstrip()) == len(line) <= 120
    summary = lines[3 + len(rows)]
    if pytorch.find() is None:
        assert summary.startswith("PyTorch is not installed (pip install torch)")
    else:
        assert " takes 1.00 times as long as vkrnn (geometric mean of 6 rows), at least 1.00" in summary
    assert lines[4 + len(rows) :] == (
        ["Times of the disturbed rows varied, or other programs used the processors: end these, and run bench again."]
        * disturbed
    )


@pytest.mark.parametrize(
    ("times", "share", "disturbed"),
    [
        ([1.0, 1.1, 1.2], 0, False),
        ([1.0, 2.0, 2.0], 0, True),  # most calls took far longer than the fastest one
        ([1.0, 2.0, 1.0], 0, False),  # a single one did
        ([1.0, 1.1, 1.2], 0.09, False),
        ([1.0, 1.1, 1.2], 0.11, True),  # equally slow calls, because other programs took turns with this one
    ],
)
def test_disturbed_times(times: list[float], share: float, *, disturbed: bool) -> None:
    """A row is called disturbed by its spread, or by what other programs had of the processors."""
    timing = bench.Timing.of(times, share)
    assert (timing.minimum, timing.disturbed) == (1e3 * min(times), disturbed)
    assert timing.spread == sorted(times)[1] / min(times) - 1


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown on a terminal alone, in one line that is removed."""
    shown: list[str] = []
    for is_terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda answer=is_terminal: answer)
        monkeypatch.setattr(sys, "stderr", stream)
        progress = output.Progress("bench")
        progress.show(0.5, "lstm")
        progress.clear()
        shown.append(stream.getvalue())
    assert shown == ["\r\x1b[K[##########          ] bench: lstm\r\x1b[K", ""]


def test_bench_computes_what_pytorch_does(torch: Any) -> None:
    """The programs that are timed give as many results of the same shapes."""
    rng = np.random.default_rng(0)
    source, upstream = (rng.standard_normal((bench.T, bench.N, bench.H), np.float32) for _ in range(2))
    for sample in SAMPLES:
        given = sample.arguments(rng, bench.H, bench.H)
        name = sample.forward.__name__
        known = "gru_reset_after" if name == "gru" else name
        calls = pytorch.copied_calls(torch, known, source, upstream, "cpu")
        if calls is None:  # PyTorch does not have the cell
            assert name == "slstm"
            continue
        one, two = calls
        forward, train = bench._calls(sample, sample.forward, sample.backward, source, upstream, given)
        output: Any = forward()
        theirs: Any = one()
        assert output.output.shape == tuple(theirs.shape)
        gradients: Any = train()
        others: Any = two()
        assert gradients.source.shape == tuple(others[0].shape)
        assert gradients.recurrent_weight.shape == tuple(others[2].shape)


@pytest.mark.full
def test_demo(tmp_path: Path) -> None:
    """It runs the demonstration with its options."""
    for package in ("matplotlib", "statsmodels", "tqdm"):
        pytest.importorskip(package)
    done = run("demo", "--steps", "2", "--device", "cpu (", "--output", str(tmp_path / "plot.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
