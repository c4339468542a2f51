"""A pytest plugin: chooses the tests that the plan names, and writes down each test's start and outcome as it happens.

A line is written when a test starts and when each of its phases ends. So a process that dies or is stopped leaves what it
had done, and names the test that it died in; a report at the end of the session would be lost with it.
"""

import fnmatch
import hashlib
import json
import os

PLAN = "COMPAT_PLAN"
# The compiler's cache, and pytest-xdist's name of a process of tests.
CACHE, WORKER = "TORCHINDUCTOR_CACHE_DIR", "PYTEST_XDIST_WORKER"
DETAIL_LIMIT = 400


def place(seed: str, test: str) -> bytes:
    """A test's place in the sample: the same in every process and every run with this seed."""
    return hashlib.sha256(f"{seed}\0{test}".encode()).digest()


def entry_of(test: str, entries: list[dict]) -> int | None:
    """The first entry of the list that holds a test: its file, a directory above it, or a class of it."""
    for number, entry in enumerate(entries):
        path = entry["path"]
        if test == path or test.startswith((path + "/", path + "::")):
            return number
    return None


def select(tests: list[str], plan: dict) -> set[str]:
    """The tests that a plan wants, of those that were collected."""
    if plan.get("only") is not None:
        return set(plan["only"]) & set(tests)
    chosen: dict[int, list[str]] = {}
    for test in tests:
        number = entry_of(test, plan["entries"])
        if number is None or any(fnmatch.fnmatchcase(test, pattern) for pattern in plan["leave_out"]):
            continue
        chosen.setdefault(number, []).append(test)
    wanted: set[str] = set()
    for number, candidates in chosen.items():
        limit = plan["entries"][number].get("limit")
        candidates.sort(key=lambda test: place(plan["seed"], test))
        wanted.update(candidates[:limit])
    return wanted


def detail_of(report) -> str:
    """Why a test failed or was skipped, in one line."""
    cause = report.longrepr
    if isinstance(cause, tuple):
        text = str(cause[-1])
    else:
        text = getattr(getattr(cause, "reprcrash", None), "message", None) or str(cause or "")
    return " ".join(text.split())[:DETAIL_LIMIT]


class Recorder:
    """Writes the record of a session. Under pytest-xdist only the controller has one."""

    def __init__(self, path: str) -> None:
        # Unbuffered and appended to: each line is whole in the file once it is written.
        self.file = open(path, "ab", buffering=0)

    def write(self, **line: object) -> None:
        self.file.write(json.dumps(line).encode() + b"\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(test=nodeid, phase="start")

    def pytest_runtest_logreport(self, report) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            # An expected failure says nothing about the GPU; an unexpected success does.
            outcome = "passed" if outcome == "passed" else "skipped"
        line = {"test": report.nodeid, "phase": report.when, "outcome": outcome}
        if outcome != "passed":
            line["detail"] = detail_of(report)
        said = [text for _, section in report.sections for text in section.splitlines() if text.startswith("partita: ")]
        if said:
            line["said"] = list(dict.fromkeys(said))[:5]
        self.write(**line)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self.write(test=report.nodeid, phase="collect", outcome="failed", detail="not collected: " + detail_of(report))


class Chooser:
    """Deselects what the plan does not want, in every process that collects."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan

    def pytest_collection_modifyitems(self, config, items: list) -> None:
        wanted = select([item.nodeid for item in items], self.plan)
        dropped = [item for item in items if item.nodeid not in wanted]
        items[:] = [item for item in items if item.nodeid in wanted]
        if dropped:
            config.hook.pytest_deselected(items=dropped)


def pytest_configure(config) -> None:
    if CACHE in os.environ and WORKER in os.environ:
        # Each compiles what every other one does, with a lock of the cache: they would do so one after the other.
        os.environ[CACHE] = os.path.join(os.environ[CACHE], os.environ[WORKER])
    with open(os.environ[PLAN], encoding="utf-8") as file:
        plan = json.load(file)
    config.pluginmanager.register(Chooser(plan), "compat-chooser")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(plan["record"]), "compat-recorder")
