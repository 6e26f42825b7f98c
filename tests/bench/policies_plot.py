"""Plots the hit tokens of each eviction policy and scenario, with the bound."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One scenario: for each setup the bound, and each policy's share of all prompt tokens."""

    title: str
    setups: Sequence[str]
    bounds: Sequence[float]
    shares: Mapping[str, Sequence[float]]


def draw(panels: Sequence[Panel]) -> bytes:
    """Return a PNG with one row of bars for each panel."""
    figure = Figure(figsize=(10, 2.1 * len(panels) + 0.9), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axis, panel in zip(axes, panels, strict=True):
        width = 0.8 / len(panel.shares)
        for number, (policy, values) in enumerate(panel.shares.items()):
            offset = (number - (len(panel.shares) - 1) / 2) * width
            places = [setup + offset for setup in range(len(panel.setups))]
            axis.bar(places, values, width, label=policy, color=colours[number])
        for setup, bound in enumerate(panel.bounds):
            label = "bound" if setup == 0 else None
            axis.hlines(bound, setup - 0.42, setup + 0.42, colors="black", label=label)
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.set_ylabel("of prompt tokens")
        axis.set_ylim(0, 1)
        axis.set_xticks(range(len(panel.setups)), panel.setups)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)
    buffer = io.BytesIO()
    # Without the library's version in its metadata, equal numbers give an equal file.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
