"""The table as a picture: the delay of the victim's slowest requests, and the neighbour's remaining throughput.

    python3 research/bench/victim/plot.py research/bench/results/victim.json

Writes an SVG and a PNG beside it; needs matplotlib.
"""

import json
import pathlib
import sys

COLOURS = {"right": "#2a7f62", "whole GPU": "#4a6fa5", "wrong": "#c0392b", "unproved": "#8a8a8a"}


def draw(facts: dict, out: pathlib.Path) -> list[pathlib.Path]:
    """Draws the rows of a result; the files that were written."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same result gives the same bytes.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "victim", "font.size": 9})
    from matplotlib import pyplot
    from matplotlib.patches import Patch
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    rows = [row for row in facts["rows"] if row["rounds"] and row["p99_against_alone"]]
    aggressors = list(dict.fromkeys(row["aggressor"] for row in rows))
    if not aggressors:
        return []
    most = max(sum(row["aggressor"] == name for row in rows) for name in aggressors)
    figure, axes = pyplot.subplots(len(aggressors), 2, figsize=(10, 1 + len(aggressors) * (0.9 + 0.27 * most)), squeeze=False)
    for name, (late, kept) in zip(aggressors, axes):
        mine = [row for row in rows if row["aggressor"] == name]
        labels = [facts["names"].get(row["setting"], row["setting"]) for row in mine]
        places = range(len(mine))
        colours = [COLOURS.get(row["numerics"] or "", COLOURS["unproved"]) for row in mine]
        for axis, key in ((late, "p99_against_alone"), (kept, "aggressor_against_alone")):
            values = [row[key] or {"median": float("nan"), "least": float("nan"), "most": float("nan")} for row in mine]
            middle = [value["median"] for value in values]
            reach = [[value["median"] - value["least"] for value in values], [value["most"] - value["median"] for value in values]]
            axis.barh(places, middle, xerr=reach, color=colours, height=0.7, ecolor="#333333", capsize=2)
            for place, value in zip(places, middle):
                if value == value:
                    axis.annotate(f"{value:.2f}", (value, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=8)
            axis.axvline(1, color="#333333", linewidth=0.8, linestyle="--")
            axis.set_yticks(places, labels)
            axis.invert_yaxis()
            axis.spines[["top", "right"]].set_visible(False)
        late.set_xscale("log")
        late.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        late.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        late.xaxis.set_minor_formatter(NullFormatter())
        late.set_xlim(0.8, 2.5 * max(row["p99_against_alone"]["most"] for row in mine))
        late.set_title(f"beside {name}: the victim's p99 against alone", loc="left", fontsize=10)
        kept.set_xlim(0, 1.25)
        kept.set_yticks(places, [])
        kept.set_title("the neighbour's throughput against alone", loc="left", fontsize=10)
    seen = list(dict.fromkeys(row["numerics"] for row in rows if row["numerics"]))
    figure.legend(handles=[Patch(color=COLOURS.get(state, COLOURS["unproved"]), label=f"products: {state}") for state in seen],
                  loc="lower center", ncols=max(1, len(seen)), frameon=False)
    device = facts["device"]
    figure.suptitle(f"ResNet-50 serving beside a neighbour: {device['name']}, driver {device['driver']}, {facts['date']}", fontsize=11)
    figure.tight_layout(rect=(0, 0.04, 1, 0.98))
    files = [out.with_suffix(".svg"), out.with_suffix(".png")]
    figure.savefig(files[0], metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    figure.savefig(files[1], dpi=130)
    pyplot.close(figure)
    return files


def main() -> None:
    result = pathlib.Path(sys.argv[1])
    for file in draw(json.loads(result.read_text()), result.with_suffix("")):
        print(file)


if __name__ == "__main__":
    main()
