"""The contents of `client.py`'s files, and the results of repetitions. Values in, values out; times in nanoseconds of the monotonic clock."""

import bisect
import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "victim"))
from table import spread  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Note:
    """A line of a client's file."""

    what: str
    at: int
    words: str = ""


def notes(text: str) -> list[Note]:
    """The lines of a client's file; the last one may be half written."""
    told = []
    for line in text.splitlines(keepends=True):
        parts = line.split(maxsplit=2)
        if line.endswith("\n") and len(parts) >= 2 and parts[1].isdigit():
            told.append(Note(parts[0], int(parts[1]), parts[2].strip() if len(parts) > 2 else ""))
    return told


def first(told: list[Note], what: str, after: int) -> Note | None:
    """The first note of a kind from a moment on."""
    return next((note for note in told if note.what == what and note.at >= after), None)


def back(told: list[Note], fault: int) -> Note | None:
    """The first work after a fault by the restarted program."""
    start = first(told, "start", fault)
    return first(told, "done", start.at) if start else None


def gap_max_ms(told: list[Note], begin: int, end: int) -> float | None:
    """The longest time in which no work was done, of those that reach into a window; none for a client that did none before it."""
    done = [note.at for note in told if note.what == "done"]
    inside = bisect.bisect_right(done, begin)
    if inside == 0:
        return None
    reaching = [done[inside - 1], *(at for at in done[inside:] if at < end)]
    # A program that has stopped has a gap up to the window's end, and a working one has a gap that ends after it.
    last = next((at for at in done[inside:] if at >= end), end)
    moments = [*reaching, last]
    return max(later - earlier for earlier, later in zip(moments, moments[1:])) / 1e6


def untouched(told: list[Note], windows: list[tuple[int, int, int]]) -> dict:
    """The work of a client that no fault should reach, in windows: settled from, fault at, recovered at."""
    before = [gap for settled, fault, _ in windows if (gap := gap_max_ms(told, settled, fault)) is not None]
    during = [gap for _, fault, recovered in windows if (gap := gap_max_ms(told, fault, recovered)) is not None]
    return {
        "faults": len(during),
        "errors": [note.words for note in told if note.what == "error"],
        "starts": sum(note.what == "start" for note in told),
        "done": sum(note.what == "done" for note in told),
        "gap_max_ms_before": spread(before),
        "gap_max_ms_during": spread(during),
    }


# The figures of a repetition, and their names in a row.
TIMES = {
    "culprit_error_ms": "the error of the client that did it",
    "neighbour_error_ms": "the neighbour's error",
    "serve_error_ms": "the error of the tenant that asked to be restarted",
    "active_ms": "the server ACTIVE again, as `partita mps status` sees it",
    "log_fault_ms": "the server's own log: from the fault to its contexts made anew",
    "restarted_ms": "the server taking clients, as `partita run` saw it, its pause over",
    "start_ms": "the restarted program begins",
    "back_ms": "the restarted program has completed its first work",
}


def rows(repetitions: list[dict]) -> dict[str, dict | None]:
    """Median, least, most and count of every time, from the moment of the fault."""
    told = {}
    for key in TIMES:
        values = [one[key] for one in repetitions if one.get(key) is not None]
        told[key] = spread(values) | {"count": len(values)} if values else None
    return told


def _cell(value: dict | None) -> str:
    return f"{value['median']:.1f} | {value['least']:.1f}–{value['most']:.1f}" if value else "| "


def markdown(facts: dict) -> str:
    """The page of a result."""
    lines = ["# Recovery from a fault of an MPS client", "",
             f"{facts['device']['name']}, driver {facts['device']['driver']}, {facts['date']}; `python3 research/bench/mps/recovery.py --gpus {facts['gpus']}`.", "",
             "One client writes where it has no memory. Beside it are a neighbour, and a tenant with `--restart on-neighbour-fault`. All are programs "
             "that launch kernels of about a millisecond without a pause. Times are milliseconds from just before the launch of the fatal kernel, on "
             "one clock; every repetition has tenants of new names, so that no pause of an earlier restart counts, but where the table says so.", ""]
    if not facts["complete"]:
        lines += [f"The time was over after {facts['took_s']:.0f} s: what comes later is missing.", ""]
    for phase in facts["phases"]:
        good = [one for one in phase["repetitions"] if "error" not in one]
        lines += [f"## {phase['title']}", "", f"{len(good)} of {len(phase['repetitions'])} repetitions came to work again.", ""]
        if phase["is_series"]:
            lines += ["| fault | to the error | to ACTIVE | to work again |", "|---|---|---|---|"]
            for number, one in enumerate(good, 1):
                cells = [f"{one[key]:.1f}" if one.get(key) is not None else "" for key in ("serve_error_ms", "active_ms", "back_ms")]
                lines.append(f"| {number} | " + " | ".join(cells) + " |")
        else:
            lines += ["| from the fault to | median ms | least–most | n |", "|---|---|---|---|"]
            for key, told in rows(phase["repetitions"]).items():
                lines.append(f"| {TIMES[key]} | {_cell(told)} | {told['count'] if told else 0} |")
        lines.append("")
        if phase["spared"]:
            lines += ["| whom it was not to reach | faults | errors | starts | work done | longest gap before, ms | least–most | longest gap until recovery, ms | least–most |",
                      "|---|---|---|---|---|---|---|---|---|"]
            for name, told in phase["spared"].items():
                lines.append(f"| {name} | {told['faults']} | {'; '.join(told['errors']) or 'none'} | {told['starts']} | {told['done']} "
                             f"| {_cell(told['gap_max_ms_before'])} | {_cell(told['gap_max_ms_during'])} |")
            lines.append("")
        words = sorted({word for one in phase["repetitions"] for word in one.get("told", [])})
        failed = [one["error"] for one in phase["repetitions"] if "error" in one]
        lines += [f"* {word}" for word in [*words[:4], *(f"failed: {error}" for error in failed)]] + [""] * bool(words or failed)
    return "\n".join(lines)
