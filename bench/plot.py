"""Draws the plot of README.md: the speed-up of vkrnn over cuDNN and over PyTorch on the CPU, by batch and depth.

It needs matplotlib and uses the records that the documentation quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .publish import CPU_RECORDS, ROOT, cpu_ratios, graph_ratios, with_column

PLOT = ROOT / "docs" / "speed.svg"
COLOURS = ("#0072b2", "#e69f00", "#009e73")
DOT: Mapping[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5}
SPREAD = 1.12  # between the groups of one batch size

Points = list[tuple[int, float, bool]]  # batch rows, speed-up, with gradients


def one_layer() -> Points:
    """Return one layer in TF32 on CUDA, against cuDNN."""
    column = "ratio of vkrnn, cuda tf32"
    return [
        (int(row["T,N,I=H"].split(",")[1]), float(row[column]), "gradients" in row["operation"])
        for row in with_column("gpu-h200-tf32", column)
        if row[column] and not row["operation"].startswith("single_gate_rnn")
    ]


def stacked(layers: int) -> Points:
    """Return several layers in TF32, replayed from CUDA graphs."""
    both = [graph_ratios(layers, cell, "tf32") for cell in ("lstm", "gru")]
    return [
        (int(sizes.split(",")[1]), ratio, gradients) for found in both for (sizes, gradients), ratio in found.items()
    ]


def on_cpu(record: str) -> Points:
    """Return all cells on a CPU, against PyTorch."""
    return [
        (int(re.findall(r"\d+", row)[1]), ratio, "gradients" in row)
        for row, ratio in cpu_ratios(record, "torch").items()
    ]


def draw(axes: Axes, title: str, groups: Mapping[str, Points]) -> None:
    """Draw the groups of points of one panel."""
    for index, (colour, points) in enumerate(zip(COLOURS, groups.values(), strict=True)):
        for N, ratio, gradients in points:
            at = N * SPREAD ** (index - 1)
            axes.plot(at, ratio, color=colour, markerfacecolor="none" if gradients else colour, **DOT)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [0.5, 1, 2, 5, 10, 20, 50]
    axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    batches = [1, 4, 16, 64, 256]
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set(title=title, xlabel="batch rows")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], color=colour, label=name, **DOT) for colour, name in zip(COLOURS, groups, strict=True)]
    axes.legend(handles=handles, frameon=False, fontsize=8)


def main() -> None:
    """Write the plot."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "vkrnn", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained", sharey=True)
    draw(
        left,
        "H200, TF32, against cuDNN",
        {"1 layer": one_layer(), "4 layers": stacked(4), "8 layers": stacked(8)},
    )
    draw(
        right,
        "CPUs, against PyTorch",
        {machine: on_cpu(record) for machine, record in CPU_RECORDS.items() if not record.endswith("alone")},
    )
    left.set_ylabel("times as fast, a dot for each cell and size\n(hollow: with gradients)")
    figure.savefig(PLOT, metadata={"Date": None})


if __name__ == "__main__":
    main()
