"""A fault in one MPS client: what it costs its neighbours, and when they are back at work.

    python3 research/bench/mps/recovery.py --partita target/dist/partita --out research/bench/results

For each repetition a tenant that writes where it has no memory, a neighbour, and a tenant with `--restart on-neighbour-fault` are
started, all of them `client.py`, which writes down when each kernel was done. Beside them run, from the first fault to the last, tenants
that no fault may reach: one with `--isolation own` on the same GPU, and with a second GPU one there, in a separate service.
On two GPUs the same is measured again in one service of both, where the spared client has contexts on the other GPU alone. Then the
same tenant is hit again and again, which makes Partita wait for longer each time; and where PyTorch is, it is a PyTorch program that is
restarted.

Writes `recovery.json` and `recovery.md`. It does not need root. It has a separate run directory and services, and ends all that it
started. When its time is over (--deadline), what was measured is reported.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "victim"))

import findings  # noqa: E402
from programs import Clock, Deadline, Failed, Program, end_all, said  # noqa: E402

CLIENT = [sys.executable, "-B", str(HERE / "client.py")]
# A driver, or PyTorch, comes up in this time, and a restarted tenant is at work again.
READY_LIMIT_S = {"driver": 30.0, "torch": 60.0}
COMMAND_LIMIT_S = 30.0
# Each tenant has a share of the TPCs that leaves room for all of them.
SHARE = ["--sm", "10%"]
# How often a client's file is looked at.
LOOK_S = 0.005
# Time for remaining programs to exit by themselves at the end.
LEAVE_LIMIT_S = 5.0


@dataclasses.dataclass
class Phase:
    """A way to have the tenants, and how often."""

    key: str
    title: str
    # `--gpu` of the tenants that share a service.
    gpus: str
    count: int
    way: str = "driver"
    # The same tenant is hit each time.
    is_series: bool = False
    # Whom no fault is to reach: what to call it, and its options for `partita run` and for the client.
    spared: list[tuple[str, list[str], list[str]]] = dataclasses.field(default_factory=list)
    # The services that are its own.
    services: list[str] = dataclasses.field(default_factory=list)


def split(gpus: str) -> list[str]:
    """The selectors of a list, each by itself: `sim:h200:0,1` are `sim:h200:0` and `sim:h200:1`."""
    head, *rest = gpus.split(",")
    board = head.rpartition(":")[0] + ":" if head.startswith("sim:") and rest else ""
    return [head, *(board + one if one.isdigit() else one for one in rest)]


def plan(gpus: str, options: argparse.Namespace) -> list[Phase]:
    """The measurements on these GPUs."""
    one, *others = split(gpus)
    apart = ("a tenant with `--isolation own` on the same GPU", ["--gpu", one, "--isolation", "own"], [])
    told = [Phase("one", "One GPU", one, options.repetitions, spared=[apart], services=[one])]
    if others:
        told[0].spared.append(("a tenant on the other GPU, in its own service", ["--gpu", others[0]], []))
        told[0].services.append(others[0])
        told[0].title = "Two GPUs, a service each (what `partita run --gpu N` gives)"
        both = ",".join([one, others[0]])
        spared = ("a client on the other GPU, of the same server", ["--gpu", both], ["--device", "1"])
        told.append(Phase("both", "Two GPUs, one service of both (`--gpu N,M`)", both, options.repetitions, spared=[spared], services=[both]))
    told.append(Phase("series", "The same tenant hit again and again (pauses of 0, 1, 2, 4, … s)", one, options.series, is_series=True, services=[one]))
    told.append(Phase("torch", "A PyTorch program restarted", one, options.torch, way="torch", services=[one]))
    return [phase for phase in told if phase.count > 0]


class Tenant:
    """`partita run` of a client."""

    def __init__(self, bench: "Bench", name: str, run: list[str], client: list[str] | None = None) -> None:
        self.name, self.file = name, bench.directory / name
        command = [bench.partita, "run", "--name", name, *SHARE, *run, "--", *CLIENT, str(self.file), *(client or [])]
        self.program = Program(command, dict(os.environ), [bench.partita, "kill", name])

    def notes(self) -> list[findings.Note]:
        return findings.notes(self.file.read_text() if self.file.exists() else "")

    def code(self, limit_s: float) -> int:
        """How it ended. Raises `Failed` if it does not."""
        try:
            return self.program.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} does not end") from None


class Samples:
    """The reports of `partita mps status` while a service recovers, queried repeatedly."""

    def __init__(self, bench: "Bench", gpus: str) -> None:
        self.bench, self.gpus = bench, gpus
        self.told: list[tuple[int, dict]] = []
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        is_last = False
        while not is_last:
            # One more when all is over: what came fast is seen, too.
            is_last = self.ending.is_set()
            # Ignore a refused status; the next one may succeed.
            with contextlib.suppress(Failed, ValueError, Deadline):
                status = self.bench.status(self.gpus)
                self.told.append((time.monotonic_ns(), status))

    def __enter__(self) -> "Samples":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self.thread.join()


def active_at(told: list[tuple[int, dict]], faults_before: int) -> int | None:
    """When a service was first seen with every server ACTIVE after a fault more than before."""
    for at, status in told:
        states = [server["status"] for server in status["servers"]]
        if status["counts"]["faults"] > faults_before and states and all(state == "active" for state in states):
            return at
    return None


def log_fault_ms(status: dict) -> float | None:
    """How long the last fault took by the server's own log."""
    faults = [server["fault"] for server in status["servers"] if server.get("fault")]
    stamps = [(fault["began"], fault["ended"]) for fault in faults if fault["began"] and fault["ended"]]
    if not stamps:
        return None
    began, ended = (datetime.datetime.fromisoformat(stamp) for stamp in max(stamps))
    return (ended - began).total_seconds() * 1000


class Bench:
    """Runs phases and stores their results."""

    def __init__(self, partita: str, clock: Clock, directory: pathlib.Path, settle_s: float) -> None:
        self.partita, self.clock, self.directory, self.settle_s = partita, clock, directory, settle_s
        self.told: list[dict] = []
        self.services: set[str] = set()

    def __call__(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        return said([self.partita, *arguments], dict(os.environ), self.clock.allow(limit_s))

    def status(self, gpus: str) -> dict:
        return json.loads(self("mps", "status", "--gpu", gpus, "--json"))

    def restarts(self, gpus: str, tenant: str) -> list[dict]:
        lines = [json.loads(line) for line in self("mps", "logs", "--gpu", gpus, "--json").splitlines()]
        return [line for line in lines if line.get("incident") == "restarted" and line["tenant"] == tenant]

    def ready(self, *tenants: Tenant, way: str = "driver") -> None:
        for tenant in tenants:
            if not tenant.program.is_ready:
                tenant.program.hear_ready(self.clock.allow(READY_LIMIT_S[way]))

    def serve(self, phase: Phase, name: str) -> Tenant:
        return Tenant(self, name, ["--gpu", phase.gpus, "--restart", "on-neighbour-fault"], ["--with", phase.way])

    def repetition(self, phase: Phase, name: str, serve: Tenant) -> dict:
        """One fault, and with it as `error` why the restarted tenant did not work again. Raises `Failed` if there was no fault."""
        neighbour = Tenant(self, f"neighbour-{name}", ["--gpu", phase.gpus])
        culprit = Tenant(self, f"culprit-{name}", ["--gpu", phase.gpus])
        try:
            self.ready(neighbour, culprit)
            self.ready(serve, way=phase.way)
            settled = time.monotonic_ns()
            time.sleep(self.clock.allow(self.settle_s))
            faults_before = self.status(phase.gpus)["counts"]["faults"]
            wall_offset_ms = time.time() * 1000 - time.monotonic_ns() / 1e6
            failure, back = None, None
            with Samples(self, phase.gpus) as samples:
                culprit.program.tell("fault")
                fault = self.wait_for(lambda: findings.first(culprit.notes(), "fault", settled), "fault", READY_LIMIT_S["driver"]).at
                try:
                    back = self.wait_for(lambda: findings.back(serve.notes(), fault), f"work of {serve.name}", READY_LIMIT_S[phase.way], serve).at
                except Failed as late:
                    failure = str(late)
            codes = [tenant.code(self.clock.allow(COMMAND_LIMIT_S)) for tenant in (culprit, neighbour)]
            errors = [findings.first(tenant.notes(), "error", fault) for tenant in (culprit, neighbour, serve)]
            start = findings.first(serve.notes(), "start", fault)
            restarts = self.restarts(phase.gpus, serve.name)
            moments = {
                "culprit_error_ms": errors[0] and errors[0].at,
                "neighbour_error_ms": errors[1] and errors[1].at,
                "serve_error_ms": errors[2] and errors[2].at,
                "active_ms": active_at(samples.told, faults_before),
                "start_ms": start and start.at,
                "back_ms": back,
            }
            told: dict = {key: at and (at - fault) / 1e6 for key, at in moments.items()}
            told["log_fault_ms"] = log_fault_ms(self.status(phase.gpus))
            if restarts:
                told["restarted_ms"] = restarts[-1]["time_unix_ms"] - wall_offset_ms - fault / 1e6
            words = [f"client: {error.words}" for error in errors if error] + [tenant.program.complaint() for tenant in (neighbour, serve)]
            names = [culprit.name, neighbour.name, serve.name]
            told |= {"exit_codes": codes, "states_seen": states(samples.told), "window_ns": [settled, fault, back or time.monotonic_ns()],
                     "told": [impersonal(word, names) for word in words if word]}
            return told | {"error": failure} if failure else told
        finally:
            end_all([culprit.program, neighbour.program])

    def wait_for(self, look, what: str, limit_s: float, tenant: Tenant | None = None):  # noqa: ANN001, ANN201
        """The result of `look`. Raises `Failed` if it finds nothing in time, or the tenant has ended."""
        end = time.monotonic() + self.clock.allow(limit_s)
        while not (found := look()):
            ended = tenant is not None and tenant.program.process.poll() is not None
            if ended or time.monotonic() > end:
                words = tenant.program.complaint() if tenant else ""
                raise Failed(f"no {what}{' within ' + format(limit_s, '.0f') + ' s' if not ended else ', it ended'}{': ' + words if words else ''}")
            time.sleep(LOOK_S)
        return found

    def phase(self, phase: Phase) -> None:
        """Every repetition of a phase."""
        told: dict = {"key": phase.key, "title": phase.title, "is_series": phase.is_series, "repetitions": [], "spared": {}}
        self.told.append(told)
        self.services.update(phase.services)
        spared = [(words, Tenant(self, f"spared-{phase.key}-{number}", run, client)) for number, (words, run, client) in enumerate(phase.spared)]
        serves: list[Tenant] = []
        try:
            self.ready(*(tenant for _, tenant in spared))
            for number in range(phase.count):
                name = f"{phase.key}-{number}"
                if not phase.is_series or not serves:
                    serves.append(self.serve(phase, f"serve-{name}"))
                try:
                    told["repetitions"].append(self.repetition(phase, name, serves[-1]))
                except Failed as failure:
                    told["repetitions"].append({"error": str(failure)})
                finally:
                    if not phase.is_series:
                        serves[-1].program.end()
                one = told["repetitions"][-1]
                print(f"{phase.key} {number + 1}: " + (one.get("error") or " ".join(f"{key} {one[key]:.1f}" for key in findings.TIMES if one.get(key))),
                      file=sys.stderr, flush=True)
        except Failed as failure:
            told["repetitions"].append({"error": str(failure)})
        finally:
            end_all([tenant.program for _, tenant in spared] + [tenant.program for tenant in serves if tenant.program.process.poll() is None])
            windows = [tuple(one["window_ns"]) for one in told["repetitions"] if "window_ns" in one]
            for words, tenant in spared:
                told["spared"][words] = findings.untouched(tenant.notes(), windows)
            # Two services of a GPU take turns on it: the next phase has its own.
            for service in phase.services:
                self.stop(service)

    def stop(self, service: str) -> None:
        try:
            said([self.partita, "mps", "stop", "--gpu", service, "--force"], dict(os.environ), COMMAND_LIMIT_S)
        except Failed as failure:
            print(f"partita mps stop --gpu {service}: {failure}", file=sys.stderr)


def states(told: list[tuple[int, dict]]) -> list[str]:
    """The states that the servers were seen in, each once, in order."""
    seen = [server["status"] or "untold" for _, status in told for server in status["servers"]]
    return [state for number, state in enumerate(seen) if number == 0 or seen[number - 1] != state]


def impersonal(words: str, names: list[str]) -> str:
    """A message without what is another at every time: names of tenants and numbers of processes."""
    for name in names:
        words = words.replace(name, name.split("-")[0])
    parts = words.split(" processes ")
    return words if len(parts) == 1 else parts[0] + " processes …"


def sweep(run_directory: str) -> None:
    """Ends all programs of this run that do not exit by themselves."""
    end = time.monotonic() + LEAVE_LIMIT_S
    while (left := strays(run_directory)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        print(f"process {pid} was left and is ended", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def strays(run_directory: str) -> list[int]:
    """Processes that were started in this run and are left."""
    mark, found = f"PARTITA_RUN_DIR={run_directory}\0".encode(), []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def device(partita: str, gpu: str) -> dict:
    """Name and driver of a GPU."""
    try:
        row = json.loads(said([partita, "devices", "--gpu", gpu, "--json"], dict(os.environ), COMMAND_LIMIT_S))[0]
    except (Failed, ValueError, IndexError) as failure:
        sys.exit(f"no GPU: {failure}")
    return {"name": row["name"], "driver": row["driver_version"], "uuid": row["uuid"]}


def gpus_here(partita: str) -> str:
    """The first GPU, and the second if there is one."""
    rows = json.loads(said([partita, "devices", "--json"], dict(os.environ), COMMAND_LIMIT_S))
    return ",".join(row["selector"] for row in rows[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita", help="the partita executable")
    parser.add_argument("--gpus", help="one GPU, or two with a comma, as `partita run --gpu` takes them (default: the first two)")
    parser.add_argument("--repetitions", type=int, default=7, help="faults in each kind of service")
    parser.add_argument("--series", type=int, default=3, help="faults that hit the same tenant")
    parser.add_argument("--torch", type=int, default=2 if importlib.util.find_spec("torch") else 0, help="faults that hit a PyTorch program")
    parser.add_argument("--settle", type=float, default=0.5, metavar="SECONDS", help="work before each fault")
    parser.add_argument("--deadline", type=float, default=100.0, metavar="SECONDS", help="nothing is measured later")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita
    # A request to end is an end in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))

    begin = time.monotonic()
    # Sockets have short paths.
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="rec", dir="/tmp"))
    os.environ["PARTITA_RUN_DIR"] = str(scratch / "r")
    bench = Bench(partita, Clock(options.deadline), scratch, options.settle)
    facts: dict = {"date": datetime.date.today().isoformat(), "complete": True, "settle_s": options.settle}
    try:
        facts["gpus"] = options.gpus or gpus_here(partita)
        facts["device"] = device(partita, split(facts["gpus"])[0])
        # The calibration is not to happen beside the programs.
        for gpu in split(facts["gpus"]):
            bench("run", "--gpu", gpu, *SHARE, "--dry-run", "--json", "--", "true", limit_s=60.0)
        for phase in plan(facts["gpus"], options):
            bench.phase(phase)
    except Deadline:
        facts["complete"] = False
    except Failed as failure:
        sys.exit(str(failure))
    finally:
        for service in bench.services:
            bench.stop(service)
        sweep(os.environ["PARTITA_RUN_DIR"])
        shutil.rmtree(scratch, ignore_errors=True)
    facts |= {"took_s": time.monotonic() - begin, "phases": bench.told}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "recovery.json").write_text(json.dumps(facts, indent=1) + "\n")
    text = findings.markdown(facts)
    (options.out / "recovery.md").write_text(text)
    print(text)
    if not any("back_ms" in one for phase in bench.told for one in phase["repetitions"]):
        sys.exit("no repetition came to its end")


if __name__ == "__main__":
    main()
