"""``python -m vkrnn``: lists and checks devices, measures them, tunes them, and runs a demonstration."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np

from vkrnn import _core, demo
from vkrnn._base.text import table
from vkrnn._cli import bench, info, output, pytorch, tune
from vkrnn._cli.output import Progress, say
from vkrnn._cli.sample import check_samples, table_of
from vkrnn._device import tuning
from vkrnn.devices import Device, devices

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (default: the process's) and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m vkrnn", description="Recurrent networks on the CPU and on GPUs.")
    parser.add_argument("--version", action="version", version=f"vkrnn {_core.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="info | check | bench | tune | demo")
    about = commands.add_parser("info", help="list devices, why others are missing, and what to install")
    about.add_argument("--details", action="store_true", help="print what a bug report needs")
    for name, text in (
        ("check", "compare all operations with the float64 reference; the status is 1 if any is wrong"),
        ("bench", "time the cells, beside NumPy and PyTorch (if installed)"),
        ("tune", "time a device's strategies, and store the fastest for later calls"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        if name == "tune":
            tune.add_options(command)
        command.add_argument("--device", default=os.environ.get("VKRNN_DEVICE") or None, help=_DEVICE)
    demo.add_options(commands.add_parser("demo", help="train a forecaster on real data, and plot its forecasts"))
    options = parser.parse_args(arguments)
    if options.command == "demo":
        demo.run(options)
        return 0
    if options.command == "info":
        say(*(info.describe() if options.details else info.summarize()))
        return 0
    try:
        chosen = _devices(options.device)
    except (ValueError, _core.DeviceError) as error:
        parser.error(str(error))
    if options.command == "tune":
        try:
            tune.check_options(chosen[0], options)
        except ValueError as error:
            parser.error(str(error))
        return _tune_device(chosen[0], options)
    return _check(chosen) if options.command == "check" else _time(chosen)


_DEVICE = "index in vkrnn.devices() or a part of the name (default: all devices; for bench and tune the first)"


def _devices(selector: str | None) -> list[Device]:
    if selector is None:
        return devices()
    return [Device(selector)]


def _check(chosen: Sequence[Device]) -> int:
    failed = False
    for device in chosen:
        say(repr(device))
        rng = np.random.default_rng(1)
        source = rng.standard_normal((12, 5, 7), np.float32)
        try:
            with device:
                reports = list(check_samples(source, 24, rng))
        except (_core.DeviceError, MemoryError) as error:
            say(f"  {error}", "")
            failed = True
            continue
        say(*table_of(reports), "")
        failed = failed or not all(report.ok for report in reports)
    say("Some results are WRONG or missing." if failed else "All results agree with the reference.")
    return int(failed)


def _time(chosen: Sequence[Device]) -> int:
    device = chosen[0]
    sizes = f"T = {bench.T}, N = {bench.N}, I = H = {bench.H}, float32"
    say(repr(device), f"{sizes}; milliseconds of the fastest call, and how much longer the median call took:")
    torch = pytorch.find()
    place = pytorch.prepare(torch, device)
    disturbed = False
    ratios: dict[str, float] = {}
    other = f"PyTorch ({place.upper()})".ljust(14)
    rows: list[tuple[str, ...]] = [("operation".ljust(27), "vkrnn".ljust(14), "NumPy (reference, float64)", other, "")]
    say(*table(rows))
    for row in bench.run(device, Progress("bench"), torch, place):
        times = ["-" if each is None else f"{each.minimum:.2f} +{each.spread:.0%}" for each in row.timings]
        rows[1:] = [(row.operation, *times, "disturbed" if row.disturbed else "")]
        say(table(rows)[1])
        disturbed = disturbed or row.disturbed
        if row.ratio is not None:
            ratios[row.operation] = row.ratio
    say(pytorch.compared(torch, place, ratios))
    if disturbed:
        say(
            "Times of the disturbed rows varied, or other programs used the processors: end these, and run bench again."
        )
    return 0


def _tune_device(device: Device, options: argparse.Namespace) -> int:
    say(repr(device))
    if device.backend == "native":
        say("The CPU has one strategy: there is nothing to tune.")
        return 0
    try:
        if options.print:
            say(*tune.shown(device))
        elif options.forget:
            say("The table is removed." if tuning.forget(device.profile) else "There is no table.")
        else:
            tune.tune(device, options, say)
    except (OSError, ImportError, _core.DeviceError) as error:  # from a folder, a missing ml_dtypes or a driver
        say(f"  {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
