"""Results of runs: medians over rounds with their spread, as rows and as Markdown. Values in, values out."""

import statistics

ALONE = "alone"


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the samples lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rate(ends: list[float], per_step: float, start: float, stop: float) -> float | None:
    """Steps a second in a window, from the first end in it to the last, so that its edges cut no step in two; none below three ends."""
    inside = [end for end in ends if start <= end < stop]
    if len(inside) < 3 or inside[-1] <= inside[0]:
        return None
    return (len(inside) - 1) * per_step / (inside[-1] - inside[0])


def busy_share(latencies_ms: list[float], window_s: float) -> float:
    """The share of a window in which a request was being served: the victim's load."""
    return min(1.0, sum(latencies_ms) / 1000 / window_s)


def spread(values: list[float]) -> dict | None:
    """Median, least and most."""
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _of(runs: list[dict], **wanted: object) -> dict[int, dict]:
    """The good runs with these properties, by round."""
    found = [run for run in runs if "error" not in run and all(run.get(key) == value for key, value in wanted.items())]
    return {run["round"]: run for run in found}


def _ratios(runs: dict[int, dict], base: dict[int, dict], key: str) -> list[float]:
    """A figure against that of the same round's run alone."""
    both = [(run[key], base[number][key]) for number, run in runs.items() if number in base]
    return [value / alone for value, alone in both if value and alone]


def row(runs: list[dict], phase: int, setting: str, aggressor: str, numerics: str | None = None, share_of: str | None = None) -> dict:
    """The result of one setting beside one aggressor. Ratios are of pairs of one round, seconds apart; `share_of` is the setting whose
    share the victim has."""
    mine = _of(runs, phase=phase, setting=setting, aggressor=aggressor, who="pair")
    whole = _of(runs, phase=phase, setting=ALONE, aggressor=aggressor, who="victim")
    free = _of(runs, phase=phase, setting=ALONE, aggressor=aggressor, who="aggressor")
    # Its own share, alone, does not depend on who is beside it in other runs.
    share = [run["p99_ms"] for run in runs if run["setting"] == share_of and run.get("who") == "share" and "error" not in run]
    good = list(mine.values())
    told: dict = {
        "setting": setting,
        "aggressor": aggressor,
        "rounds": len(good),
        "requests": sum(run["requests"] for run in good),
        "p50_ms": spread([run["p50_ms"] for run in good]),
        "p99_ms": spread([run["p99_ms"] for run in good]),
        "p99_against_alone": spread(_ratios(mine, whole, "p99_ms")),
        "aggressor_per_s": spread([run["aggressor_per_s"] for run in good if run["aggressor_per_s"]]),
        "aggressor_against_alone": spread(_ratios(mine, free, "aggressor_per_s")),
        "numerics": numerics,
        "errors": sorted({run["error"] for run in runs
                          if "error" in run and (run["setting"], run["aggressor"], run["who"]) == (setting, aggressor, "pair")}),
    }
    if share and told["p99_ms"]:
        told["p99_against_alone_on_share"] = told["p99_ms"]["median"] / statistics.median(share)
    if any(run.get("answers_unchanged") is False for run in good):
        told["errors"].append("the victim's answers changed while it served")
    return told


def alone(runs: list[dict], who: str, aggressor: str | None = None) -> dict | None:
    """Victim or aggressor alone on the whole GPU."""
    good = [run for run in runs if run["setting"] == ALONE and run.get("who") == who and "error" not in run
            and (aggressor is None or run["aggressor"] == aggressor)]
    if not good:
        return None
    keys = ("p50_ms", "p99_ms", "load") if who == "victim" else ("aggressor_per_s",)
    told = {key: spread([run[key] for run in good if run.get(key)]) for key in keys}
    return {"rounds": len(good), "requests": sum(run.get("requests", 0) for run in good), **told}


def verdict(percentages: list[float], proofs: dict[float, dict]) -> str:
    """The known state of products under these percentages: the worst of them."""
    states = [proofs.get(percentage, {"state": "unproved"})["state"] for percentage in percentages if percentage < 100]
    for state in ("wrong", "unproved", "right"):
        if state in states:
            return state
    return "whole GPU"


def _cell(value: dict | None, digits: int = 2, with_spread: bool = True) -> str:
    if not value:
        return ""
    text = f"{value['median']:.{digits}f}"
    return f"{text} ({value['least']:.{digits}f}–{value['most']:.{digits}f})" if with_spread else text


def markdown(rows: list[dict], names: dict[str, str]) -> str:
    """One table, the rows of each aggressor together. A setting that failed is a row with its error."""
    lines = ["| beside | setting | p50 ms | p99 ms | p99 against alone | of it on its own share | neighbour/s | against alone | products | requests | rounds |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        name = names.get(row["setting"], row["setting"])
        share = row.get("p99_against_alone_on_share")
        error = "; ".join(row["errors"]).replace("|", "\\|").replace("\n", " ")
        if row["rounds"] == 0:
            lines.append(f"| {row['aggressor']} | {name} | not measured: {error or 'no time was left'} | | | | | | {row['numerics'] or ''} | 0 | 0 |")
            continue
        cells = [row["aggressor"], name, _cell(row["p50_ms"], 3, False), _cell(row["p99_ms"], 3),
                 _cell(row["p99_against_alone"]), f"{share:.2f}" if share else "",
                 _cell(row["aggressor_per_s"], 0, False), _cell(row["aggressor_against_alone"], 3),
                 row["numerics"] or "", str(row["requests"]), str(row["rounds"]) + (f" ({error})" if error else "")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
