"""A record's outcome of each test, and the differences between a run without Partita and one as a tenant."""

import collections
import dataclasses
import fnmatch
import json
import pathlib
import re
import tomllib

# Outcomes, from best to worst: of a test's phases the worst counts.
ORDER = ("passed", "skipped", "failed", "unfinished", "died")
# How many of a suite's differences are repeated, at most.
REPEATS_MAX = 60
# A line of output that is a verdict, and what in it changes from run to run.
VERDICT = re.compile(r"\b(pass(ed|es)?|fail(ed|s|ure)?|errors?|mismatch|incorrect|wrong|success(ful(ly)?)?)\b|\bresult\s*[=:]", re.I)
# An error code identifies the failure, so it stays.
NUMBER = re.compile(r"(\b(?:error|code|status)\W{1,3}\d{1,3}(?![\d.e]))|0x[0-9a-f]+|[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.I)


@dataclasses.dataclass
class Outcome:
    """How one test ended."""

    state: str
    detail: str = ""
    # Lines that Partita wrote to standard error.
    said: tuple[str, ...] = ()
    # A program's verdict lines, without their numbers.
    verdict: tuple[str, ...] = ()

    def agrees(self, other: "Outcome") -> bool:
        """Whether both report the same of a program. A timeout agrees with no outcome."""
        return (self.state, self.verdict) == (other.state, other.verdict)


def verdict(text: str) -> list[str]:
    """The verdict lines of a program's output, each once, sorted, numbers replaced."""
    lines = (" ".join(line.split()) for line in text.splitlines() if not line.startswith("partita: "))
    return sorted({NUMBER.sub(lambda found: found[1] or "#", line)[:200] for line in lines if VERDICT.search(line)})


def read(path: pathlib.Path, was_stopped: bool = False) -> dict[str, Outcome]:
    """The outcome of every test of a record. One that started and did not end died, or was stopped when the time was over."""
    phases: dict[str, list[dict]] = collections.defaultdict(list)
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                # The last line of a process that was ended while it wrote.
                continue
            if entry["phase"] == "start":
                # A test that is started again (its worker died) is judged by its last run.
                phases[entry["test"]] = []
            else:
                phases[entry["test"]].append(entry)
    return {test: outcome_of(entries, was_stopped) for test, entries in phases.items()}


def outcome_of(entries: list[dict], was_stopped: bool) -> Outcome:
    """The outcome of a test's phases."""
    is_whole = any(entry["phase"] in ("teardown", "end", "collect", "???") for entry in entries)
    if not is_whole:
        if was_stopped:
            return Outcome("unfinished", "the time was over")
        return Outcome("died", "its process ended in the middle of it")
    worst = max(entries, key=lambda entry: ORDER.index(entry["outcome"]))
    said = dict.fromkeys(line for entry in entries for line in entry.get("said", ()))
    is_death = worst["phase"] == "???" or "crashed while running" in worst.get("detail", "")
    return Outcome("died" if is_death else worst["outcome"], worst.get("detail", ""), tuple(said),
                   tuple(worst.get("verdict", ())))


def differing(bare: dict[str, Outcome], tenant: dict[str, Outcome], was_bare_whole: bool, was_whole: bool) -> list[str]:
    """The tests that did not end alike. Of two runs of which one was whole, a test that is in the other alone is missing there."""
    tests = []
    for test, outcome in bare.items():
        other = tenant.get(test)
        if outcome.state == "unfinished" or (other and other.state == "unfinished"):
            continue
        if other is None:
            if was_whole:
                tests.append(test)
        elif not outcome.agrees(other):
            tests.append(test)
    if was_bare_whole:
        tests += [test for test in tenant if test not in bare and tenant[test].state in ("failed", "died")]
    return tests


MISSING = Outcome("died", "the run ended without it")


# The reason of a test that never passes without Partita.
FAILS_BARE = "it fails without Partita, too"


@dataclasses.dataclass
class Difference:
    """A test that ended in another way as a tenant, with every run of it."""

    suite: str
    mode: str
    test: str
    bare: list[Outcome]
    tenant: list[Outcome]
    # The same test as a plain client of MPS, without Partita, where that was tried.
    mps: Outcome | None = None
    kind: str = ""
    reason: str = ""
    line: str = ""

    def settle(self, reasons: "list[Reason]") -> None:
        """Says what it is: different, flaky, or not seen a second time; and why, if that is known."""
        first, last = self.tenant[0], self.tenant[-1]
        if any(not one.agrees(self.bare[0]) for one in self.bare[1:]):
            self.kind = "flaky"
        elif len(self.tenant) == 1:
            self.kind = "not repeated"
        elif any(one.agrees(self.bare[0]) for one in self.tenant[1:]):
            self.kind = "once"
        else:
            self.kind = "differs"
        known = next((one for one in reasons if one.explains(self)), None)
        if known:
            self.reason, self.line = known.reason, known.line
        elif self.mps and not self.mps.agrees(self.bare[0]) and self.mps.state == last.state:
            self.reason = "a plain MPS client, without Partita, ends in the same way"
        elif all(one.state in ("failed", "died") for one in self.bare):
            self.reason = FAILS_BARE
        said = [line for one in (last, first) for line in one.said]
        if said:
            self.line = said[0]

    @property
    def counts(self) -> bool:
        """Whether it is a difference between the two, as far as is known."""
        return self.kind in ("differs", "not repeated")

    def facts(self) -> dict:
        """For the result's JSON."""
        told = {"suite": self.suite, "mode": self.mode, "test": self.test, "kind": self.kind, "reason": self.reason, "line": self.line,
                "bare": [one.state for one in self.bare], "tenant": [one.state for one in self.tenant],
                "bare_detail": self.bare[0].detail, "tenant_detail": self.tenant[-1].detail}
        if self.mps:
            told["mps"] = self.mps.state
            told["mps_detail"] = self.mps.detail
        if self.bare[0].verdict != self.tenant[-1].verdict:
            told["only_bare"] = sorted(set(self.bare[0].verdict) - set(self.tenant[-1].verdict))
            told["only_tenant"] = sorted(set(self.tenant[-1].verdict) - set(self.bare[0].verdict))
        return told


@dataclasses.dataclass(frozen=True)
class Reason:
    """A known difference: which tests of which suites in which modes, how they fail, why, and what the user sees."""

    suite: str
    test: str
    failure: str
    reason: str
    line: str = ""
    modes: tuple[str, ...] = ()

    def explains(self, difference: Difference) -> bool:
        outcome = difference.tenant[-1]
        text = " ".join((outcome.detail, *outcome.verdict, *outcome.said))
        return (fnmatch.fnmatchcase(difference.suite, self.suite) and fnmatch.fnmatchcase(difference.test, self.test)
                and (not self.modes or difference.mode in self.modes) and re.search(self.failure, text) is not None)


def reasons(path: pathlib.Path) -> list[Reason]:
    """The table of known differences."""
    table = tomllib.loads(path.read_text())
    return [Reason(**{**entry, "modes": tuple(entry.get("modes", ()))}) for entry in table.get("reason", [])]


def row(suite: str, mode: str, bare: dict[str, Outcome], tenant: dict[str, Outcome], differences: list[Difference]) -> dict:
    """The page's text about a suite in a mode."""
    tests = [test for test in bare if bare[test].state != "unfinished"]
    both = [test for test in tests if test in tenant and tenant[test].state != "unfinished"]
    mine = [one for one in differences if (one.suite, one.mode) == (suite, mode)]
    missing = {one.test for one in mine if one.tenant[0] is MISSING}
    counted = [one for one in mine if one.counts]
    return {"suite": suite, "mode": mode, "run": len(both) + len(missing),
            "pass_bare": sum(bare[test].state == "passed" for test in [*both, *missing]),
            "pass_tenant": sum(tenant[test].state == "passed" for test in both),
            "skip_both": sum(bare[test].state == tenant[test].state == "skipped" for test in both),
            "fail_both": sum(bare[test].state in ("failed", "died") and bare[test].agrees(tenant[test]) for test in both),
            "differ": len(counted), "unexplained": sum(not one.reason for one in counted),
            "flaky": len(mine) - len(counted), "not_run": len(tests) - len(both) - len(missing)}
