"""``python -m vkrnn demo``: three cells on real data, checked on every device, and a forecaster trained on the first.

The data are the monthly temperatures of the sea's surface off Peru from 1950 to 2010, in which El Niño shows. They come
with statsmodels; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn
from vkrnn._base.packages import missing
from vkrnn._cli import output
from vkrnn._cli.output import say
from vkrnn._cli.sample import Floats, check_samples, draw_weights, table_of
from vkrnn.results import LSTMOutputs

__all__ = ["add_options", "main", "run"]

FIRST_YEAR, YEARS_TRAINED = 1950, 50  # 1950 to 1999; the rest is held out
WINDOW = 36  # months that a forecast of the next one is made from
WARM_UP = 12  # months of a window whose forecasts do not count in training
BATCH, FEATURES, HIDDEN, STEPS, RATE = 32, 3, 24, 300, 0.01
LOSSES_SHOWN = 20  # training steps whose mean loss is shown


def main() -> int:
    """Run the demonstration with the process's arguments, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vkrnn.demo", description="Show what vkrnn does, on real data.")
    add_options(parser)
    run(parser.parse_args())
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser the options of `run`."""
    parser.add_argument("--output", type=Path, default=Path("demo.png"), help="path of the plot (%(default)s)")
    parser.add_argument(
        "--device",
        default=os.environ.get("VKRNN_DEVICE") or None,
        help="index in vkrnn.devices() or a part of the name (default: all are checked, and the first one trains)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Check all cells on the devices, train a forecaster, write the plot. Exit with an error if a result is wrong."""
    extras = Extras.load()
    start = time.perf_counter()

    devices = _devices(options.device)
    series = Series.load(extras)
    say(f"Data: {len(series.degrees)} monthly sea surface temperatures, El Niño region, from {FIRST_YEAR}", "")
    say("All results against the float64 reference:", "")
    agrees = True
    for device in devices:
        source = windows(series.features(), np.arange(0, 12 * BATCH, 12))
        with device:
            reports = list(check_samples(source, HIDDEN, np.random.default_rng(1)))
        say(repr(device), *table_of(reports), "")
        agrees = agrees and all(report.ok for report in reports)

    first = devices[0]
    say(f"Training a forecaster on {first.name}:")
    forecaster = Forecaster(np.random.default_rng(0))
    with first:
        losses = train(forecaster, series, options.steps, extras.tqdm)
        held_out = forecast(forecaster, series)
    last = losses[-LOSSES_SHOWN:]
    say(f"Loss: {losses[0]:.3f} at first, {sum(last) / len(last):.3f} at last", "", *held_out.summary(), "")
    plot(losses, held_out, first.name, options.output, extras)
    say(f"Wrote {options.output} after {time.perf_counter() - start:.0f} s.")
    if not agrees:
        raise SystemExit("Some results above disagree with the reference.")


@dataclass(frozen=True)
class Extras:
    """The packages that only the demonstration needs."""

    tqdm: Any
    figures: Any
    data: Any

    @staticmethod
    def load() -> Extras:
        """Import them; where one is missing, end with a message that names what to install."""
        try:
            importlib.import_module("matplotlib").use("Agg")
            return Extras(
                tqdm=importlib.import_module("tqdm").tqdm,
                figures=importlib.import_module("matplotlib.pyplot"),
                data=importlib.import_module("statsmodels.datasets.elnino"),
            )
        except ImportError as error:
            raise SystemExit(str(missing("The demo", error, "matplotlib", "statsmodels", "tqdm"))) from None


def _devices(selector: str | None) -> list[vkrnn.Device]:
    if selector is None:
        return vkrnn.devices()
    try:
        return [vkrnn.Device(int(selector) if selector.isdecimal() else selector)]
    except (vkrnn.DeviceError, ValueError) as error:
        raise SystemExit(str(error)) from None


@dataclass(frozen=True)
class Series:
    """The temperatures in degrees Celsius, month by month, the first being a January."""

    degrees: npt.NDArray[np.float64]

    @staticmethod
    def load(extras: Extras) -> Series:
        """Take the years' twelve columns out of statsmodels' table."""
        return Series(extras.data.load().data.to_numpy()[:, 1:].ravel().astype(np.float64))

    @property
    def months(self) -> npt.NDArray[np.int64]:
        """Month of the year, 0 to 11."""
        months: npt.NDArray[np.int64] = np.arange(len(self.degrees)) % 12
        return months

    @property
    def trained(self) -> int:
        """How many months belong to the years trained on."""
        return 12 * YEARS_TRAINED

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the years trained on."""
        return float(self.degrees[: self.trained].mean()), float(self.degrees[: self.trained].std())

    def features(self) -> Floats:
        """Return [months, 3]: the scaled temperature, and the sine and cosine of the month's position in the year."""
        mean, deviation = self.scale
        angle = 2 * np.pi * self.months / 12
        return np.stack([(self.degrees - mean) / deviation, np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)

    def season(self) -> npt.NDArray[np.float64]:
        """Return for every month the mean temperature of that month of the year, in the years trained on."""
        usual: npt.NDArray[np.float64] = self.degrees[: self.trained].reshape(-1, 12).mean(axis=0)
        return usual[self.months]


def windows(rows: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """Return [WINDOW, starts, ...]: the rows that follow each start."""
    cut: Floats = rows[starts + np.arange(WINDOW)[:, None]]
    return cut


class Forecaster:
    """An LSTM and a linear readout that forecasts how much the next month differs from this one.

    Forward and gradients of the LSTM run on the device; the readout, the loss and the optimizer are NumPy.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.descriptor = vkrnn.LSTMDescriptor(training=True)
        self.parameters: dict[str, Floats] = {
            **draw_weights(rng, 4, FEATURES, HIDDEN),
            "readout": rng.uniform(-1, 1, HIDDEN).astype(np.float32) * np.float32(HIDDEN**-0.5),
            "offset": np.zeros(1, np.float32),
        }

    @property
    def lstm(self) -> dict[str, Any]:
        """The LSTM's parameters, by argument name."""
        return {name: self.parameters[name] for name in ("recurrent_weight", "input_weight", "bias")}

    def forward(self, source: Floats) -> tuple[Floats, LSTMOutputs[Any]]:
        """Return the forecasts [T, N] of what follows each row of `source`, and what the gradients need."""
        kept = vkrnn.lstm(source, **self.lstm, descriptor=self.descriptor)
        return source[..., 0] + kept.output @ self.parameters["readout"] + self.parameters["offset"], kept

    def loss_and_gradients(self, source: Floats, wanted: Floats) -> tuple[float, dict[str, Floats]]:
        """Return the mean square error after the warm-up and its gradients by parameter."""
        forecasts, kept = self.forward(source)
        error = forecasts - wanted
        error[:WARM_UP] = 0
        count = error[WARM_UP:].size
        upstream = 2 * error / np.float32(count)
        back = vkrnn.lstm_gradients(
            source,
            source_gradient=upstream[..., None] * self.parameters["readout"],
            z_state=kept.z_state,
            cell_output_fwd=kept.cell_output,
            descriptor=self.descriptor,
            **self.lstm,
        )
        return float((error**2).sum() / count), {
            **{name: getattr(back, name) for name in self.lstm},
            "readout": np.tensordot(upstream, kept.output, axes=2),
            "offset": upstream.sum(keepdims=True)[0],
        }


class Adam:
    """The optimizer of Kingma and Ba with the usual constants."""

    def __init__(self, parameters: dict[str, Floats]) -> None:
        self._parameters = parameters
        self._first = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._second = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._steps = 0

    def step(self, gradients: dict[str, Floats], rate: float) -> None:
        """Move the parameters against their gradients."""
        self._steps += 1
        for name, gradient in gradients.items():
            self._first[name] += 0.1 * (gradient - self._first[name])
            self._second[name] += 0.001 * (gradient**2 - self._second[name])
            first = self._first[name] / np.float32(1 - 0.9**self._steps)
            second = self._second[name] / np.float32(1 - 0.999**self._steps)
            self._parameters[name] -= rate * first / (np.sqrt(second) + np.float32(1e-8))


def train(forecaster: Forecaster, series: Series, steps: int, tqdm: Any) -> list[float]:
    """Train on windows drawn at random from the years trained on; return the losses."""
    rng = np.random.default_rng(2)
    features, optimizer = series.features(), Adam(forecaster.parameters)
    losses: list[float] = []
    with tqdm(range(steps), desc="training", unit="step") as progress:
        for step in progress:
            starts = rng.integers(0, series.trained - WINDOW, BATCH)
            source, wanted = windows(features, starts), windows(features[:, 0], starts + 1)
            loss, gradients = forecaster.loss_and_gradients(source, wanted)
            optimizer.step(gradients, RATE * 0.5 * (1 + np.cos(np.pi * step / steps)))
            losses.append(loss)
            progress.set_postfix(loss=f"{loss:.4f}", refresh=False)
    return losses


@dataclass(frozen=True)
class HeldOut:
    """Forecasts of the months that were not trained on, and the truth, in degrees Celsius."""

    years: npt.NDArray[np.float64]
    truth: npt.NDArray[np.float64]
    forecasts: dict[str, npt.NDArray[np.float64]]

    def errors(self) -> dict[str, float]:
        """Return the root mean square error of each way to forecast."""
        return {name: float(np.sqrt(np.mean((made - self.truth) ** 2))) for name, made in self.forecasts.items()}

    def summary(self) -> list[str]:
        """Return a small table."""
        head = f"Forecasts of the next month, {len(self.truth)} held-out months, root mean square error:"
        return [head, *(f"  {name:<40}{error:5.2f} deg C" for name, error in self.errors().items())]


def forecast(forecaster: Forecaster, series: Series) -> HeldOut:
    """Forecast every held-out month from the months before it, and by two rules that need no training."""
    targets = np.arange(series.trained, len(series.degrees))
    made, _ = forecaster.forward(windows(series.features(), targets - WINDOW))
    mean, deviation = series.scale
    before, season = series.degrees[targets - 1], series.season()
    return HeldOut(
        years=FIRST_YEAR + targets / 12,
        truth=series.degrees[targets],
        forecasts={
            "LSTM": made[-1].astype(np.float64) * deviation + mean,
            "the last value": before,
            "the season plus the last deviation": season[targets] + before - season[targets - 1],
        },
    )


def plot(losses: Sequence[float], held_out: HeldOut, device: str, output: Path, extras: Extras) -> None:
    """Draw the loss, and the forecasts beside the truth."""
    figure, (left, right) = extras.figures.subplots(1, 2, figsize=(12, 4), width_ratios=(1, 2), layout="constrained")
    left.semilogy(losses, linewidth=0.6, alpha=0.5, color="C0")
    span = min(LOSSES_SHOWN, len(losses))
    smooth = np.convolve(losses, np.ones(span) / span, mode="valid")
    left.semilogy(np.arange(len(smooth)) + span - 1, smooth, color="C0", label=f"mean of {span} steps")
    left.set(title="Training", xlabel="step", ylabel="mean square error (scaled)")
    left.legend()
    errors = held_out.errors()
    right.plot(held_out.years, held_out.truth, color="black", linewidth=1.2, label="truth")
    for (name, made), style in zip(held_out.forecasts.items(), ("C3-", "C7:", "C0--"), strict=True):
        right.plot(held_out.years, made, style, linewidth=1, label=f"{name}: error {errors[name]:.2f}")
    right.set(title="Next month's sea surface temperature, held out", xlabel="year", ylabel="deg C")
    right.set_ylim(held_out.truth.min() - 2.5)  # room for the legend
    right.legend(fontsize="small", ncols=2, loc="lower left")
    figure.suptitle(f"vkrnn on {device}", fontsize="small")
    figure.savefig(output, dpi=120)
    extras.figures.close(figure)


if __name__ == "__main__":
    sys.exit(output.run(main))
