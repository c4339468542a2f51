"""The page of compatibility, from the results of all devices in a directory.

    python3 research/bench/compat/page.py research/bench/results
"""

import json
import pathlib
import sys

INTRODUCTION = """# What runs in a tenant as it runs without Partita

Other people's programs and tests, run without Partita and as tenants on the same machine (`python3 research/bench/compat/run.py`; how: its first
lines). A test *differs* if it ends in another way as a tenant (passed, skipped, failed, died; for programs the verdict lines, too), both
times that it was run, while both runs without Partita were alike. *Flaky* tests are those that were not alike without Partita, or that
differed as a tenant once and not again. *Not run* are those for which no time was left. The tests are a sample with a fixed seed,
chosen by `research/bench/compat/lists`. A suite may be older than what it tests, as PyTorch's tests of version 2.6 were on 2026-11-28: such
tests fail without Partita, too, and are listed."""


def key_of(order: dict[str, int], row: dict) -> tuple[int, str]:
    return order.get(row["mode"], 99), row["mode"]


def device_name(result: dict) -> str:
    return result["name"] + (f" × {result['count']}" if result["count"] > 1 else "")


def cell(text: str) -> str:
    """A text that cannot end its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str, limit: int = 200) -> str:
    """A text as code, shortened."""
    text = cell(text).replace("`", "'")
    return f"`{text[:limit]}{'…' if len(text) > limit else ''}`" if text else ""


def table(result: dict) -> list[str]:
    """The rows of a device."""
    names = ("suite", "mode", "run", "pass without", "pass as tenant", "skipped, both", "failed, both", "differ", "unexplained", "flaky",
             "not run")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    order = {key: number for number, key in enumerate(result["modes"])}
    for suite in result["suites"]:
        rows = [row for row in result["rows"] if row["suite"] == suite["suite"]]
        for row in sorted(rows, key=lambda row: key_of(order, row)):
            if row.get("error"):
                lines.append(f"| {suite['suite']} | {row['mode']} | 0 | | | | | not run: {cell(row['error'])} | | | {row['not_run']} |")
                continue
            figures = (row[name] for name in ("run", "pass_bare", "pass_tenant", "skip_both", "fail_both", "differ", "unexplained",
                                              "flaky", "not_run"))
            lines.append(f"| {suite['suite']} | {row['mode']} | " + " | ".join(map(str, figures)) + " |")
    return lines


def states(one: dict) -> str:
    """How a test ended, each way and each time."""
    told = f"{', '.join(one['bare'])} / {', '.join(one['tenant'])}"
    return told + (f"; plain MPS: {one['mps']}" if one.get("mps") else "")


def differences(result: dict) -> list[str]:
    """Every difference of a device, with its reason, one line for a test that differs alike in several modes."""
    groups: dict[tuple, dict] = {}
    for one in result["differences"]:
        if one["kind"] not in ("differs", "not repeated"):
            continue
        key = (one["suite"], one["test"], one["reason"], one["tenant"][-1], one["kind"])
        groups.setdefault(key, {**one, "modes": []})["modes"].append(one["mode"])
    if not groups:
        return ["None."]
    lines = ["| suite, test | modes | without / tenant | how it fails there | reason | the user sees |", "|---|---|---|---|---|---|"]
    for one in sorted(groups.values(), key=lambda one: (one["suite"], bool(one["reason"]), one["test"])):
        reason = one["reason"] or "**unexplained**"
        if one["kind"] == "not repeated":
            reason += " (seen once; no time to repeat it)"
        how = one["tenant_detail"]
        if one["bare"][0] == one["tenant"][-1]:
            # Only what it prints differs.
            how = "; ".join([*(f"+ {line}" for line in one.get("only_tenant", ())), *(f"- {line}" for line in one.get("only_bare", ()))])
        lines.append(f"| {one['suite']}: {code(one['test'])} | {', '.join(one['modes'])} | {states(one)} | {code(how)} | {cell(reason)} | "
                     f"{code(one['line'], 400)} |")
    return lines


def flaky(result: dict) -> list[str]:
    """The tests that were named flaky, and in which modes that was seen."""
    tests: dict[tuple, list[str]] = {}
    for one in result["differences"]:
        if one["kind"] in ("flaky", "once"):
            why = "without Partita" if one["kind"] == "flaky" else "as a tenant, once"
            tests.setdefault((one["suite"], one["test"], why), []).append(one["mode"])
    return [f"* {suite}: {code(test)}: {why} ({', '.join(modes)})" for (suite, test, why), modes in sorted(tests.items())]


def section(result: dict) -> list[str]:
    """The page's text about a device."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [f"## {device_name(result)}", "",
             f"Driver {result['driver']}, {result['partita']}, {result['date']}; {versions}.", "", *table(result), ""]
    older = sorted({(row["date"], row["partita"], row["driver"]) for row in result["rows"]}
                   - {(result["date"], result["partita"], result["driver"])})
    for date, partita, driver in older:
        rows = [f"{row['suite']} {row['mode']}" for row in result["rows"]
                if (row["date"], row["partita"], row["driver"]) == (date, partita, driver)]
        lines += [f"Of {date}, {partita}, driver {driver}: {', '.join(rows)}.", ""]
    lines += [f"* {one['suite']}: not run here: {one['why']}." for one in result["refused"]]
    lines += ["", "### Differences", "", *differences(result), ""]
    if named := flaky(result):
        lines += ["### Flaky", "", *named, ""]
    failing = [f"* {suite['suite']}: {code(text)}" for suite in result["suites"] for text in suite["fails_bare"]]
    if failing:
        lines += ["<details><summary>Tests that fail without Partita, too</summary>", "", *failing, "", "</details>", ""]
    return lines


def markdown(results: list[dict]) -> str:
    """The whole page."""
    titles: dict[str, str] = {}
    left_out: dict[tuple[str, str], str] = {}
    for result in results:
        for suite in result["suites"]:
            titles[suite["suite"]] = suite["title"]
            left_out |= {(suite["suite"], pattern): why for pattern, why in suite["left_out"]}
    modes = {key: title for result in results for key, title in result["modes"].items()}
    lines = [INTRODUCTION, "", "Modes:", "", *(f"* {key}: {title}" for key, title in modes.items()), "",
             "Suites:", "", *(f"* {key}: {title}" for key, title in titles.items()), ""]
    for result in results:
        lines += section(result)
    if left_out:
        lines += ["## Left out", "", *(f"* {suite}: {code(pattern)}: {why}" for (suite, pattern), why in sorted(left_out.items())), ""]
    return "\n".join(lines)


def write(directory: pathlib.Path) -> None:
    """Writes `compat.md` from every `compat_*.json`."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("compat_*.json"))]
    (directory / "compat.md").write_text(markdown(results))


def brief(result: dict) -> str:
    """A short table for a terminal."""
    lines = [f"{'suite':13} {'mode':9} {'run':>5} {'bare':>5} {'tenant':>6} {'differ':>6} {'unexpl':>6} {'flaky':>5} {'not run':>7} "
             f"{'s':>6}"]
    for row in result["rows"]:
        lines.append(f"{row['suite']:13} {row['mode']:9} {row['run']:5} {row['pass_bare']:5} {row['pass_tenant']:6} {row['differ']:6} "
                     f"{row['unexplained']:6} {row['flaky']:5} {row['not_run']:7} {row.get('seconds', 0):6.1f}"
                     + (f"  {row['error'][:80]}" if row.get("error") else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
