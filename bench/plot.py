"""Draws the plot of docs/: the speed-up of vkrnn over each baseline, for each row of `bench.cells`.

It needs matplotlib and uses the records that the documentation quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

from .common import groups_of
from .floors import host_ratios

ROOT = Path(__file__).parents[1]
RECORDS = {
    "2 cores, AVX2": ROOT / "bench" / "results" / "cells-cpu-2.jsonl",
    "2 cores, AVX-512": ROOT / "bench" / "results" / "cells-cpu-2-avx512.jsonl",
    "16 cores, AVX-512": ROOT / "bench" / "results" / "cells-cpu-16.jsonl",
}
OTHERS = {"torch": "PyTorch", "onnxruntime": "onnxruntime", "numpy": "NumPy"}
COLOURS = {"lstm": "#0072b2", "gru": "#e69f00", "single_gate_rnn": "#009e73"}
CELLS = {"lstm": "LSTM", "gru": "GRU", "single_gate_rnn": "RNN"}
DOT: Mapping[str, Any] = {"marker": "o", "linestyle": "", "markersize": 4}
PLOT = ROOT / "docs" / "speed.svg"


def main() -> None:
    """Write the plot."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vkrnn", "font.size": 9})
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    labels = []
    for machine, path in RECORDS.items():
        groups = groups_of(path)
        for other, name in OTHERS.items():
            ratios = host_ratios(groups, other)
            row = -len(labels)
            labels.append(f"{name}, {machine}")
            for index, (cell, colour) in enumerate(COLOURS.items()):
                for op, fill in ((cell, colour), (f"{cell} + gradients", "none")):
                    own = [ratio for (each, _), ratio in ratios.items() if each == op]
                    heights = [row + 0.22 * (1 - index)] * len(own)
                    axes.plot(own, heights, color=colour, markerfacecolor=fill, **DOT)
            mean = geometric_mean(ratios.values())
            axes.plot([mean, mean], [row - 0.36, row + 0.36], color="black", linewidth=2)
            axes.annotate(f"{mean:.2f}", (mean, row + 0.36), ha="center", va="bottom", fontsize=7)
    axes.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20, 50]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks([-row for row in range(len(labels))], labels)
    axes.set_xlabel("speed-up: baseline time / vkrnn time (right of 1, vkrnn is faster)")
    handles = [Line2D([], [], color=COLOURS[cell], label=name, **DOT) for cell, name in CELLS.items()]
    handles.append(Line2D([], [], color="grey", markerfacecolor="none", label="with gradients", **DOT))
    handles.append(Line2D([], [], color="black", linewidth=2, label="geometric mean"))
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, metadata={"Date": None})


if __name__ == "__main__":
    main()
