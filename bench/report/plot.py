"""plot.py SVG < {title: {case: [low, middle, high]}}: bars of seconds a step, and the quartiles. The peers' Python runs it: theirs is
the environment that has matplotlib."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text
matplotlib.rcParams["svg.hashsalt"] = "bench"  # the same figures, the same file

import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {"no communication": "0.55", "Tessera": "tab:blue", "torch DDP": "tab:green", "FSDP2": "tab:olive", "DeepSpeed": "tab:red"}


def main(path):
    panels = json.load(sys.stdin)
    heights = [len(cases) for cases in panels.values()]
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, 0.24 * sum(heights) + 0.9 * len(panels)), squeeze=False,
                                layout="constrained", height_ratios=heights)
    for axis, (title, cases) in zip(axes[:, 0], panels.items()):
        names = list(cases)
        lows, middles, highs = zip(*cases.values())
        errors = [[middle - low for low, middle in zip(lows, middles)], [high - middle for middle, high in zip(middles, highs)]]
        axis.barh(names, middles, xerr=errors, height=0.75, color=[colour_of(name) for name in names], ecolor="0.2", capsize=2)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds a step: median and quartiles", fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def colour_of(name):
    return next(colour for begin, colour in COLOURS.items() if name.startswith(begin))


main(sys.argv[1])
