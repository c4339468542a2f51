"""Other people's programs and tests, without Partita and as tenants of every kind: which end in another way, and why.

    python3 research/bench/compat/run.py --partita target/dist/partita --out research/bench/results \\
        --suite cuda-samples=DIR --suite pytorch=DIR --suite cupy=DIR --suite compile --budget-s 480

A suite is a directory in which other people's tests lie ready to run; this program neither fetches nor builds them. `compile`, `models`
and `nccl` are this project's own and need no directory. What is run of a suite stands in `lists/SUITE.txt`. Every suite runs once without
Partita, then in each mode, the most important first. What differs is run again, alone, in both ways: a test that is not even alike
without Partita is flaky. What differs as a client of MPS is run as a plain client of MPS, too, so that MPS's limits are not
taken for Partita's. Known differences and their reasons stand in `reasons.toml`; every other one is reported as unexplained.

Writes `compat_DEVICE.json`, in which a suite and mode that were run again replace the older ones, and `compat.md` from the results of all
devices in that directory. When its time is over (--budget-s), what was run is reported.

Needs the built `partita` with `libpartita.so` beside it, pytest with pytest-xdist and pytest-timeout for suites of tests, and what
each suite itself needs. The device should be idle.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
# In front: modules here may have the names of others.
sys.path.insert(0, str(HERE.parent / "victim"))
sys.path.insert(0, str(HERE))

import jobs  # noqa: E402
import judge  # noqa: E402
import modes  # noqa: E402
import page  # noqa: E402
import suites  # noqa: E402
from programs import Clock, Failed, Mps, said  # noqa: E402

COMMAND_LIMIT_S = 60.0
# No mode starts with less time left: it could only report tests that did not run.
MODE_MIN_S = 20.0


class Bench:
    """Runs suites in modes and stores the results."""

    def __init__(self, options: argparse.Namespace, prepared: list[suites.Prepared], place: modes.Place, clock: Clock) -> None:
        self.options, self.prepared, self.place, self.clock = options, prepared, place, clock
        self.living = jobs.Living()
        self.reasons = judge.reasons(HERE / "reasons.toml")
        # Without Partita, by suite: the first run, and what was repeated.
        self.bare: dict[str, dict[str, judge.Outcome]] = {}
        self.bare_whole: dict[str, bool] = {}
        self.again: dict[tuple[str, str], judge.Outcome] = {}
        self.mps: dict[tuple[str, str], judge.Outcome] = {}
        self.rows: list[dict] = []
        self.differences: list[dict] = []

    def go(self, mode: modes.Mode, round_name: str, sample: int | None, only: dict[str, list[str]] | None = None,
           keys: set[str] | None = None, times: int = 1) -> dict[str, tuple]:
        """Runs a sample of the suites, or of those with these keys, in a mode, or only some tests again: outcomes and how the job
        ended, by suite."""
        wanted = [one for one in self.prepared if (only is None or only.get(one.suite.key)) and (keys is None or one.suite.key in keys)]
        seats = min(len(mode.seats), len(wanted)) or 1
        workers = max(1, self.options.parallel // seats)
        todo = [one.job(mode.key, round_name, workers, sample, only[one.suite.key] if only is not None else None) for one in wanted]
        for job in todo:
            job.limit_s *= times
        ended = jobs.run_all(todo, mode, self.place, self.clock, self.living)
        return {job.suite: (judge.read(job.record, ended[job.suite].was_stopped), ended[job.suite])
                for job in todo if job.suite in ended}

    def stop(self) -> None:
        """Ends what runs; nothing more is started."""
        self.clock.end = time.monotonic()
        self.living.end_all()

    def without(self) -> None:
        """Every suite without Partita, in twice the time: it reads everything from the disk, and compiles it."""
        for key, (outcomes, ended) in self.go(modes.bare(self.options.bare_seats), "first", self.options.sample, times=2).items():
            self.bare[key], self.bare_whole[key] = outcomes, ended.is_whole
            if all(one.state == "unfinished" for one in outcomes.values()):
                print(f"{key}: no test ended without Partita: there is nothing to compare with", file=sys.stderr, flush=True)
                self.prepared = [one for one in self.prepared if one.suite.key != key]

    def mode(self, mode: modes.Mode, sample: int | None, keys: set[str] | None = None) -> None:
        """Every suite, or those with these keys, in a mode, and again what differed."""
        print(f"{mode.key}: {self.clock.left_s():.0f} s left", file=sys.stderr, flush=True)
        results = self.go(mode, "first", sample, keys=keys)
        found: list[judge.Difference] = []
        planned = {}
        for key, (outcomes, ended) in results.items():
            prepared = next(one for one in self.prepared if one.suite.key == key)
            wanted = prepared.planned(list(self.bare.get(key, {})), sample)
            bare = planned[key] = {test: one for test, one in self.bare.get(key, {}).items() if test in wanted}
            if not outcomes:
                # The tenant never came to its tests: that is one finding, not one a test.
                continue
            for test in judge.differing(bare, outcomes, self.bare_whole.get(key, False), ended.is_whole):
                first = bare.get(test, judge.MISSING)
                found.append(judge.Difference(key, mode.key, test, [first], [outcomes.get(test, judge.MISSING)]))
        self.repeat(mode, found)
        for one in found:
            one.settle(self.reasons)
        for key, (outcomes, ended) in results.items():
            row = judge.row(key, mode.key, planned[key], outcomes, found)
            if not outcomes and planned[key]:
                row["error"] = (ended.said or [f"nothing was run; exit status {ended.code}"])[-1]
            row |= {"seconds": round(ended.seconds, 1), "was_stopped": ended.was_stopped, "said": ended.said[:5]}
            self.rows.append(row)
        self.differences += [one.facts() for one in found]

    def repeat(self, mode: modes.Mode, found: list[judge.Difference]) -> None:
        """Runs what differed again: without Partita, in the mode, and where it is a client of MPS as a plain one, too."""
        if not found:
            return
        some = {}
        for one in found:
            some.setdefault(one.suite, []).append(one.test)
        some = {key: tests[:judge.REPEATS_MAX] for key, tests in some.items()}
        unknown = {key: [test for test in tests if (key, test) not in self.again] for key, tests in some.items()}
        for key, (outcomes, _) in self.go(modes.bare(self.options.bare_seats), f"{mode.key}-again", None, unknown).items():
            self.again |= {(key, test): one for test, one in outcomes.items() if one.state != "unfinished"}
        seconds = self.go(mode, "again", None, some)
        for one in found:
            if again := self.again.get((one.suite, one.test)):
                one.bare.append(again)
            outcomes, ended = seconds.get(one.suite, ({}, None))
            second = outcomes.get(one.test)
            if second is None and ended and ended.is_whole and one.test in some.get(one.suite, ()):
                second = judge.MISSING
            if second and second.state != "unfinished":
                one.tenant.append(second)
        if not mode.is_shared:
            return
        same = {}
        for one in found:
            is_real = len(one.tenant) > 1 and all(not each.agrees(one.bare[0]) for each in one.tenant)
            if is_real and all(each.agrees(one.bare[0]) for each in one.bare) and (one.suite, one.test) not in self.mps:
                same.setdefault(one.suite, []).append(one.test)
        if same and self.place.mps:
            for key, (outcomes, _) in self.go(modes.plain_mps(), mode.key, None, same).items():
                self.mps |= {(key, test): one for test, one in outcomes.items() if one.state != "unfinished"}
        for one in found:
            one.mps = self.mps.get((one.suite, one.test))


def device(gpu: int | None) -> tuple[dict, str]:
    """The GPUs, or one of them, from nvidia-smi; and the first one's UUID."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,uuid", "--format=csv,noheader,nounits"]
    try:
        text = said([*command, *([f"--id={gpu}"] if gpu is not None else [])], dict(os.environ), COMMAND_LIMIT_S)
        lines = [[part.strip() for part in line.split(",")] for line in text.strip().splitlines()]
        return {"name": lines[0][0], "driver": lines[0][1], "memory_mib": int(lines[0][2]), "count": len(lines)}, lines[0][3]
    except (Failed, ValueError, IndexError) as error:
        sys.exit(f"no GPU that nvidia-smi names: {error}")


def slug(facts: dict) -> str:
    """A file's name for a device: `h100`, `h200_x2`."""
    words = re.findall(r"[a-z0-9]+", facts["name"].lower())
    kind = next((word for word in words if re.fullmatch(r"[a-z]+\d+[a-z0-9]*", word)), "_".join(words))
    return kind if facts["count"] == 1 else f"{kind}_x{facts['count']}"


def versions(wanted: list[suites.Suite]) -> dict[str, str]:
    """Of the packages that the suites test, as this Python has them."""
    found = {}
    for name in sorted({name for suite in wanted for name in suite.packages}):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def prepare(options: argparse.Namespace, parser: argparse.ArgumentParser, count: int) -> tuple[list[suites.Prepared], list[dict]]:
    """The requested suites that can run, and why others cannot."""
    prepared, refused = [], []
    for text in options.suite:
        key, _, directory = text.partition("=")
        suite = suites.BY_KEY.get(key)
        if not suite:
            parser.error(f"--suite {text}: there are {', '.join(suites.BY_KEY)}")
        home = pathlib.Path(directory).resolve() if directory else suite.home
        if home is None or not home.is_dir():
            parser.error(f"--suite {text}: it needs the directory in which the suite lies, --suite {key}=DIR")
        try:
            chosen = suites.read_list(options.lists / f"{key}.txt", suite.programs)
        except (OSError, suites.BadList) as error:
            parser.error(str(error))
        one = suites.Prepared(suite, home, chosen, options.work, options.seed, options.job_limit_s)
        missing = one.missing()
        if missing:
            print(f"{key}: not in {home}: {', '.join(missing)}", file=sys.stderr)
        if len(missing) == len(chosen.entries):
            refused.append({"suite": key, "why": f"none of its {len(missing)} files or programs was there"})
        elif suite.gpus > count:
            refused.append({"suite": key, "why": f"it needs {suite.gpus} GPUs, and there was {count}"})
        else:
            prepared.append(one)
    return prepared, refused


def merge(path: pathlib.Path, facts: dict) -> dict:
    """A result with what an earlier one of the same device has of other suites and modes."""
    try:
        earlier = json.loads(path.read_text())
    except FileNotFoundError:
        return facts
    fresh = {(row["suite"], row["mode"]) for row in facts["rows"]}
    for kind in ("rows", "differences"):
        facts[kind] = [one for one in earlier[kind] if (one["suite"], one["mode"]) not in fresh] + facts[kind]
    known = {one["suite"] for one in facts["suites"]}
    facts["suites"] = [one for one in earlier["suites"] if one["suite"] not in known] + facts["suites"]
    ran = {row["suite"] for row in facts["rows"]}
    older = [one for one in earlier["refused"] if one["suite"] not in {other["suite"] for other in facts["refused"]}]
    facts["refused"] = [one for one in [*older, *facts["refused"]] if one["suite"] not in ran]
    facts["versions"] = earlier["versions"] | facts["versions"]
    return facts


def chosen_modes(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[tuple[modes.Mode, int | None, set[str] | None]]:
    """The requested modes, the size of the sample in each (never larger than that of the runs without Partita), and its suites."""
    by_key = {mode.key: mode for mode in modes.TENANTS}
    requested = {text.partition("=")[0] for text in options.suite}
    wanted = []
    for text in options.modes.split(","):
        front, equals, names = text.partition("=")
        key, colon, number = front.partition(":")
        if key not in by_key:
            parser.error(f"--modes {text}: there are {', '.join(modes.KEYS)}")
        if colon and not number.isdigit():
            parser.error(f"--modes {text}: MODE:N, and N is a number of tests")
        keys = set(names.split("+")) if equals else None
        if unknown := (keys or set()) - requested:
            parser.error(f"--modes {text}: {', '.join(sorted(unknown))} is not among the suites to run")
        sizes = [size for size in (int(number) if number else None, options.sample) if size]
        wanted.append((by_key[key], min(sizes, default=None), keys))
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita", help="the partita executable, with libpartita.so beside it")
    parser.add_argument("--suite", action="append", required=True, metavar="SUITE[=DIR]", help=f"one of {', '.join(suites.BY_KEY)}")
    parser.add_argument("--modes", default=",".join(modes.KEYS), metavar="MODE[:N][=SUITE+SUITE],…",
                        help=f"in this order, with at most N tests of each line of a list, of these suites; known: {','.join(modes.KEYS)}")
    parser.add_argument("--budget-s", type=float, default=480.0, help="all of it ends within this time")
    parser.add_argument("--job-limit-s", type=float, default=200.0, help="one suite in one mode ends within this time")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N tests of each line of a list, in all modes")
    parser.add_argument("--seed", default="1", help="of the choice of tests")
    parser.add_argument("--parallel", type=int, default=os.cpu_count(), help="processes of tests at a time")
    parser.add_argument("--bare-seats", type=int, default=4, help="suites at a time without Partita")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="use this GPU alone: another run may use another one at the same time")
    parser.add_argument("--lists", type=pathlib.Path, default=suites.LISTS)
    parser.add_argument("--work", type=pathlib.Path, help="keep records and logs here (default: a directory that is removed)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    options.partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else shutil.which(options.partita)
    if not options.partita:
        parser.error("--partita: no partita in PATH")
    wanted = chosen_modes(parser, options)
    begin = time.monotonic()
    clock = Clock(options.budget_s)

    temporary = None
    if options.work is None:
        temporary = tempfile.TemporaryDirectory(prefix="compat")
        options.work = pathlib.Path(temporary.name)
    options.work = options.work.resolve()
    (options.work / "hami").mkdir(parents=True, exist_ok=True)
    facts, uuid = device(options.gpu)
    if options.gpu is not None:
        # For what runs without Partita, and as `partita`'s default.
        os.environ |= {"CUDA_VISIBLE_DEVICES": uuid, "PARTITA_GPU": str(options.gpu)}
    prepared, refused = prepare(options, parser, facts["count"])
    place = modes.Place(options.partita, pathlib.Path(options.partita).with_name("libpartita.so"), options.work, facts["memory_mib"])
    bench = Bench(options, prepared, place, clock)
    # A request to end is an end in order: what was run is reported. In a thread: the handler may have interrupted a holder of a lock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=bench.stop).start())
    mps = Mps()
    try:
        version = said([options.partita, "--version"], dict(os.environ), COMMAND_LIMIT_S).strip()
        # The board is proved before anything runs beside it.
        said([options.partita, "run", "--sm", "50%", "--dry-run"], dict(os.environ), COMMAND_LIMIT_S)
        mps.start()
        if mps.error:
            print(f"no plain MPS to compare with: {mps.error}", file=sys.stderr)
        else:
            place.mps = {key: mps.environment[key] for key in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
        bench.without()
        for mode, sample, keys in wanted:
            if clock.left_s() < MODE_MIN_S:
                break
            bench.mode(mode, sample, keys)
    except Failed as failure:
        sys.exit(f"partita: {failure}")
    finally:
        bench.living.end_all()
        mps.end()
        # Only an unused one: it refuses otherwise.
        with contextlib.suppress(Failed):
            said([options.partita, "mps", "stop"], dict(os.environ), COMMAND_LIMIT_S)
        if temporary:
            temporary.cleanup()
    today = datetime.date.today().isoformat()
    for row in bench.rows:
        row |= {"date": today, "driver": facts["driver"], "partita": version}
    told = [{"suite": one.suite.key, "title": one.suite.title, "left_out": one.chosen.left_out, "missing": one.missing(),
             "fails_bare": sorted(f"{test}: {out.detail}" for test, out in bench.bare.get(one.suite.key, {}).items()
                                  if out.state in ("failed", "died"))} for one in prepared]
    facts |= {"date": today, "partita": version, "versions": versions([one.suite for one in prepared]), "seed": options.seed,
              "modes": {mode.key: mode.title for mode in modes.TENANTS}, "took_s": round(time.monotonic() - begin),
              "suites": told, "refused": refused, "rows": bench.rows, "differences": bench.differences}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"compat_{slug(facts)}.json"
    path.write_text(json.dumps(merge(path, facts), indent=1) + "\n")
    page.write(options.out)
    print(page.brief(facts))


if __name__ == "__main__":
    main()
