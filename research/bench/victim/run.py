"""A well-behaved victim beside an aggressor, under every way of sharing one GPU: the victim's loss, and the aggressor's remaining throughput.

    python3 research/bench/victim/run.py --partita target/dist/partita --out research/bench/results

The victim is ResNet-50 serving (`research/bench/main_job/serve.py`), the aggressors are ResNet-50 training and floods of kernels that only
compute or only move memory (`research/bench/cnn/faulty.py`). Every program is started once and stays while its settings are measured; each
round measures every setting once, in a new random order, and victim and aggressor alone among them, so that what is compared is
seconds apart. Reported are medians over rounds with their least and most.

Without Partita: turns (time slicing), one MPS service, and the provisioning policies of `partita mps limits` in that service, as the
percentages that it computes: uniform, half, weighted by the loads measured here, exact SM counts. With Partita: masks, masks and the
priority gate, the gate alone. The column `products` says what is known of the vendor's matrix products under the setting's percentages
or masks: right, wrong or unproved, by `partita doctor` and by the proof that `partita mps limits` makes of each percentage.

Needs the built `partita` with `libpartita.so` beside it, PyTorch, CuPy for the floods, matplotlib for the picture, and root where MPS
does. What fails is a row with its error; when the time is over (--deadline), what was measured is reported.
"""

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import random
import signal
import sys
import time

import plot
import table
from programs import Clock, Deadline, Failed, Mps, Program, end_all, said
from table import ALONE, busy_share, percentile, rate

HERE = pathlib.Path(__file__).resolve().parent
SERVE = [sys.executable, str(HERE.parent / "main_job" / "serve.py")]
AGGRESSOR = [sys.executable, str(HERE / "aggressor.py")]
AGGRESSORS = ("train", "compute", "memory")
# An aggressor is at full speed after so many seconds.
LEAD_S = 0.25
READY_LIMIT_S = 90.0
ANSWER_LIMIT_S = 20.0
COMMAND_LIMIT_S = 60.0
DOCTOR_LIMIT_S = 100.0


@dataclasses.dataclass
class Setting:
    """A way to share. `seat` is how its programs are started, `phase` when: tenants of different phases cannot be there at once."""

    key: str
    name: str
    phase: int = 0
    seat: str = "bare"
    # Thread percentages of victim and aggressor, where it has any.
    percentages: tuple[float, float] | None = None
    # The setting that gives the victim the same share, where it is not the whole GPU.
    share_of: str | None = None
    # Why it cannot be tried.
    error: str | None = None

    def seat_of(self, side: int) -> str:
        """How victim (0) or aggressor (1) is started."""
        return f"mps {self.percentages[side]:.6g}" if self.percentages else self.seat

    @property
    def has_own_share(self) -> bool:
        return self.share_of == self.key


POLICIES = ("uniform", "half", "weighted", "exact")
KEYS = ("time-slicing", "mps", *POLICIES, "masks", "masks-gate", "gate")
TENANTS = {"masks": (["--sm", "50%"],) * 2,
           "masks-gate": (["--sm", "50%", "--priority", "high"], ["--sm", "50%", "--priority", "low"]),
           "gate": (["--via", "time", "--priority", "high"], ["--via", "time", "--priority", "low"])}


def settings(plans: dict[str, list[float] | Failed], exact: list[int]) -> list[Setting]:
    """Every setting, with the percentages that the policies gave, or why they gave none."""
    told = [Setting("time-slicing", "time slicing"), Setting("mps", "MPS", percentages=(100.0, 100.0))]
    for key in POLICIES:
        plan = plans.get(key)
        if isinstance(plan, list):
            name = f"MPS, {key} {plan[0]:.3g} % / {plan[1]:.3g} %"
            if key == "exact":
                name = f"MPS, exact {exact[0]} / {exact[1]} SMs"
            told.append(Setting(key, name, percentages=(plan[0], plan[1]), share_of=key if plan[0] < 100 else None))
        else:
            told.append(Setting(key, f"MPS, {key}", error=str(plan or "not planned")))
    told.append(Setting("masks", "Partita, masks 50 % / 50 %", seat="masks", share_of="masks"))
    told.append(Setting("masks-gate", "Partita, masks and gate", phase=1, seat="masks-gate", share_of="masks"))
    told.append(Setting("gate", "Partita, gate alone", phase=2, seat="gate"))
    return told


class Partita:
    """The command line of the `partita` under test."""

    def __init__(self, executable: str, clock: Clock) -> None:
        self.executable, self.clock = executable, clock

    def __call__(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S, codes: tuple[int, ...] = (0,)) -> str:
        return said([self.executable, *arguments], dict(os.environ), self.clock.allow(limit_s), codes=codes)

    def doctor(self) -> dict:
        """The results of `doctor`, by the check's name. A check that fails is a result."""
        report = json.loads(self("doctor", "--json", limit_s=DOCTOR_LIMIT_S, codes=(0, 1)))
        return {check["name"]: check for check in report["checks"]}

    def plan(self, *arguments: str) -> list[float]:
        """The clients' percentages by a policy. That products may be wrong under them is measured here, and no reason to leave them out."""
        outcome = json.loads(self("mps", "limits", *arguments, "--unproved", "--dry-run", "--json"))
        return [one["percent"] for one in outcome["allotments"]]

    def proof(self, percentage: float) -> dict:
        """Whether the vendor's products come out right under a percentage."""
        try:
            outcome = json.loads(self("mps", "limits", "--percent", f"{percentage:.6g}", "--dry-run", "--json"))
        except (Failed, ValueError) as refusal:
            words = str(refusal)
            return {"state": "wrong" if "wrong products" in words else "unproved", "detail": words}
        return of_limits(outcome)


def of_doctor(check: dict | None) -> dict:
    """A doctor's check of products, as a proof."""
    if not check:
        return {"state": "unproved", "detail": "doctor did not say"}
    state = {"ok": "right", "failed": "wrong", "weak": "wrong"}.get(check["state"], "unproved")
    return {"state": state, "detail": check["detail"]}


def of_limits(outcome: dict) -> dict:
    """`partita mps limits`'s report about products under a percentage that it accepted, as a proof."""
    told = outcome.get("products", [])
    if told and all(one["state"] == "right" for one in told):
        return {"state": "right", "detail": "; ".join(one["found"] for one in told)}
    return {"state": "unproved", "detail": "; ".join(one["reason"] for one in told) or "nobody multiplied"}


class Pool:
    """The programs that run, by seat and side: `victim`, or the aggressor's kind. One that is missing is started."""

    def __init__(self, options: argparse.Namespace, clock: Clock, mps: Mps) -> None:
        self.options, self.clock, self.mps = options, clock, mps
        self.programs: dict[tuple[str, str], Program] = {}

    def spawn(self, seat: str, kind: str) -> None:
        """Starts a program unless it is there. It is not ready yet."""
        if (seat, kind) in self.programs:
            return
        program = SERVE if kind == "victim" else [*AGGRESSOR, kind]
        environment, before_kill = dict(os.environ), None
        if seat == "bare":
            # No daemon's directory: no client of MPS.
            environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
        elif seat.startswith("mps "):
            if self.mps.error:
                raise Failed(self.mps.error)
            environment = dict(self.mps.environment)
            if (percentage := seat.split()[1]) != "100":
                environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = percentage
        else:
            tenant = f"{kind}-{seat}-{os.getpid()}"
            limits = TENANTS[seat][kind != "victim"]
            program = [self.options.partita, "run", "--name", tenant, *limits, "--", *program]
            before_kill = [self.options.partita, "kill", tenant]
        self.programs[seat, kind] = Program(program, environment, before_kill)

    def wait_ready(self, wanted: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Starts these at once and waits for each; why some did not come."""
        failures = {}
        for key in wanted:
            try:
                self.spawn(*key)
            except (Failed, OSError) as error:
                failures[key] = str(error)
        for key in wanted:
            program = self.programs.get(key)
            if program and not program.is_ready:
                try:
                    program.hear_ready(self.clock.allow(READY_LIMIT_S))
                except Failed as failure:
                    failures[key] = str(failure)
                    self.end(key)
        return failures

    def end(self, *keys: tuple[str, str]) -> None:
        end_all([program for key in keys if (program := self.programs.pop(key, None))])


class Bench:
    """Measures settings and stores their results."""

    def __init__(self, options: argparse.Namespace, clock: Clock, pool: Pool) -> None:
        self.options, self.clock, self.pool = options, clock, pool
        self.runs: list[dict] = []
        self.given_up: set[tuple] = set()

    def pair(self, victim: str | None, aggressor: tuple[str, str] | None) -> dict:
        """A window with a victim, an aggressor, or both, by their seats."""
        seats = [(victim, "victim")] if victim else []
        seats += [aggressor] if aggressor else []
        failures = self.pool.wait_ready(seats)
        if failures:
            raise Failed("; ".join(failures.values()))
        seconds, told = self.options.seconds, {}
        try:
            other = self.pool.programs[aggressor] if aggressor else None
            if other:
                self.clock.allow(seconds)
                other.tell("begin")
                time.sleep(LEAD_S)
            if victim:
                program = self.pool.programs[victim, "victim"]
                program.tell(f"{seconds}")
                served = program.hear_json(seconds + ANSWER_LIMIT_S)
                window = served["start"], served["stop"]
                latencies = served["latencies_ms"]
                told |= {"requests": len(latencies), "p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99),
                         "load": busy_share(latencies, window[1] - window[0]), "answers_unchanged": served["answers_unchanged"]}
            else:
                time.sleep(seconds)
                window = time.monotonic() - seconds, time.monotonic()
            if other:
                other.tell("end")
                done = other.hear_json(ANSWER_LIMIT_S)
                told["aggressor_per_s"] = rate(done["ends"], done["per_step"], *window)
        except (Failed, ValueError, KeyError, IndexError) as error:
            # Whichever is at fault: neither is in a known state.
            self.pool.end(*seats)
            raise Failed(str(error)) from None
        return told

    def measure(self, what: dict, victim: str | None, aggressor: tuple[str, str] | None) -> None:
        """A run, stored with its result or the reason of its failure. A failed one is not repeated."""
        identity = (what["setting"], what["aggressor"], what["who"], what["phase"])
        if identity in self.given_up:
            return
        try:
            self.runs.append({**what, **self.pair(victim, aggressor)})
        except Failed as failure:
            self.given_up.add(identity)
            self.runs.append({**what, "error": str(failure)})
        run = self.runs[-1]
        told = run.get("error") or " ".join(f"{key} {run[key]:.3f}" for key in ("p50_ms", "p99_ms", "aggressor_per_s") if run.get(key))
        print(f"  {what['aggressor']:8} {what['who']:9} {what['setting']:13} {told}", file=sys.stderr, flush=True)

    def phase(self, phase: int, aggressor: str, wanted: list[Setting], with_shares: bool) -> None:
        """Every round of the settings of one phase beside one aggressor."""
        keys = [("bare", "victim"), ("bare", aggressor)]
        keys += [key for one in wanted for key in ((one.seat_of(0), "victim"), (one.seat_of(1), aggressor))]
        started = time.monotonic()
        failures = self.pool.wait_ready(list(dict.fromkeys(keys)))
        print(f"{aggressor}, phase {phase + 1}: programs ready after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        able = []
        for one in wanted:
            failed = {failures.get((one.seat_of(0), "victim")), failures.get((one.seat_of(1), aggressor))} - {None}
            if failed:
                self.runs.append({"round": 0, "phase": phase, "aggressor": aggressor, "setting": one.key, "who": "pair",
                                  "error": "; ".join(sorted(failed))})
            else:
                able.append(one)
        for number in range(self.options.rounds if able else 0):
            about = {"round": number, "phase": phase, "aggressor": aggressor}
            jobs = [({**about, "setting": ALONE, "who": "victim"}, "bare", None),
                    ({**about, "setting": ALONE, "who": "aggressor"}, None, ("bare", aggressor))]
            for one in able:
                jobs.append(({**about, "setting": one.key, "who": "pair"}, one.seat_of(0), (one.seat_of(1), aggressor)))
                if with_shares and one.has_own_share:
                    jobs.append(({**about, "setting": one.key, "who": "share"}, one.seat_of(0), None))
            random.shuffle(jobs)
            for job in jobs:
                self.clock.allow(self.options.seconds)
                self.measure(*job)

    def aggressor(self, aggressor: str, wanted: list[Setting], with_shares: bool) -> None:
        """Every phase beside one aggressor; its programs, and all tenants, are gone afterwards."""
        try:
            for phase in sorted({one.phase for one in wanted}):
                try:
                    self.phase(phase, aggressor, [one for one in wanted if one.phase == phase], with_shares)
                finally:
                    self.pool.end(*[key for key in self.pool.programs if key[0] in TENANTS])
        finally:
            self.pool.end(*[key for key in self.pool.programs if key[1] == aggressor])


def prepare(options: argparse.Namespace, partita: Partita, bench: Bench) -> tuple[list[Setting], dict[str, dict], dict[float, dict]]:
    """The proofs of products, the victim's load, and the settings that follow from it."""
    proofs = {"masks": {"state": "unproved", "detail": "doctor did not say"}}
    try:
        proofs["masks"] = of_doctor(partita.doctor().get("products (mask)"))
    except (Failed, ValueError, KeyError) as failure:
        proofs["masks"]["detail"] = str(failure)
    plans: dict[str, list[float] | Failed] = {}
    try:
        # The calibration is not to happen beside others' work.
        partita("run", "--sm", "50%", "--dry-run", "--json")
        partita("mps", "start")
    except Failed as failure:
        print(f"partita: {failure}", file=sys.stderr)
    try:
        load = bench.pair("bare", None)["load"]
    except Failed as failure:
        sys.exit(f"the victim does not run alone: {failure}")
    arguments = {"uniform": ["--clients", "2"], "half": ["--clients", "2"], "weighted": ["--loads", f"{load:.4f},1"],
                 "exact": ["--sms", options.exact]}
    for policy, more in arguments.items():
        try:
            plans[policy] = partita.plan("--policy", policy, *more)
        except (Failed, ValueError, KeyError) as failure:
            plans[policy] = Failed(str(failure))
    every = settings(plans, [int(sms) for sms in options.exact.split(",")])
    only = options.only.split(",") if options.only else list(KEYS)
    wanted = [one for one in every if one.key in only]
    percentages = sorted({value for one in wanted for value in one.percentages or () if value < 100})
    with concurrent.futures.ThreadPoolExecutor() as workers:
        products = dict(zip(percentages, workers.map(partita.proof, percentages)))
    return wanted, proofs, products


def numerics(one: Setting, proofs: dict[str, dict], products: dict[float, dict]) -> str:
    """The known state of products under a setting."""
    if one.percentages:
        return table.verdict(list(one.percentages), products)
    return proofs["masks"]["state"] if one.share_of else "whole GPU"


def report(options: argparse.Namespace, facts: dict, runs: list[dict], wanted: list[Setting], proofs: dict, products: dict,
           aggressors: list[str]) -> None:
    """Writes JSON, Markdown and the picture."""
    rows = []
    for aggressor in aggressors:
        for one in wanted:
            row = table.row(runs, one.phase, one.key, aggressor, numerics(one, proofs, products), one.share_of)
            if one.error:
                row["errors"].append(one.error)
            rows.append(row)
    solo = {"victim": table.alone(runs, "victim"),
            **{aggressor: table.alone(runs, "aggressor", aggressor) for aggressor in aggressors}}
    names = {one.key: one.name for one in wanted}
    proved = {"masks": proofs["masks"], **{f"{percentage:.6g} %": proof for percentage, proof in products.items()}}
    facts |= {"alone": solo, "names": names, "products": proved, "rows": rows, "runs": runs}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "victim.json").write_text(json.dumps(facts, indent=1) + "\n")
    text = markdown(facts)
    (options.out / "victim.md").write_text(text)
    print(text)
    try:
        plot.draw(facts, options.out / "victim")
    except ImportError as error:
        print(f"no picture: {error}; `python3 research/bench/victim/plot.py {options.out / 'victim.json'}` draws it where matplotlib is",
              file=sys.stderr)


def markdown(facts: dict) -> str:
    """The page of a result."""
    device = facts["device"]
    lines = ["# Victims and aggressors", "",
             f"{device['name']}, driver {device['driver']}, PyTorch {facts['torch']}, {facts['date']}; {facts['rounds']} rounds of "
             f"{facts['seconds']:g} s a setting, interleaved. `python3 research/bench/victim/run.py`.", "",
             "The victim serves ResNet-50. Every figure is a median over rounds (least–most); ratios are of a round's pair, with and "
             "without the neighbour, on the whole GPU; «on its own share»: of the victim alone with the same percentage or mask. "
             "«products»: what is known of cuBLAS's matrix products under these percentages or masks.", ""]
    if not facts["complete"]:
        lines += [f"The time was over after {facts['took_s']:.0f} s: later rounds are missing.", ""]
    victim = facts["alone"]["victim"]
    if victim:
        lines += [f"Alone on the whole GPU the victim has p50 {victim['p50_ms']['median']:.3f} ms, p99 {victim['p99_ms']['median']:.3f} ms, "
                  f"and is at work {100 * victim['load']['median']:.0f} % of the time ({victim['requests']} requests). Neighbours alone: "
                  + ", ".join(f"{name} {told['aggressor_per_s']['median']:.0f}/s" for name, told in facts["alone"].items()
                              if name != "victim" and told and told["aggressor_per_s"]) + ".", ""]
    lines += [table.markdown(facts["rows"], facts["names"]), "", "Products:", ""]
    lines += [f"* {name}: {proof['state']}: {proof['detail']}" for name, proof in facts["products"].items()]
    return "\n".join(lines) + "\n"


def device(clock: Clock) -> dict:
    """Name, driver and board, from nvidia-smi."""
    try:
        line = said(["nvidia-smi", "--query-gpu=name,driver_version,uuid,memory.total", "--format=csv,noheader"], dict(os.environ),
                    clock.allow(COMMAND_LIMIT_S)).strip().splitlines()[0]
        name, driver, uuid, memory = (part.strip() for part in line.split(","))
    except (Failed, ValueError, IndexError) as error:
        sys.exit(f"no GPU that nvidia-smi names: {error}")
    return {"name": name, "driver": driver, "uuid": uuid, "memory": memory}


def chosen(parser: argparse.ArgumentParser, option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    names = text.split(",") if text else list(known)
    for name in names:
        if name not in known:
            parser.error(f"{option} {name}: there are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita", help="the partita executable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="measured window of each setting")
    parser.add_argument("--only", help=f"these settings: {','.join(KEYS)}")
    parser.add_argument("--aggressors", help=f"these aggressors: {','.join(AGGRESSORS)}")
    parser.add_argument("--exact", default="88,44", metavar="SMS,SMS", help="SMs of victim and aggressor under the policy exact")
    parser.add_argument("--deadline", type=float, default=440.0, metavar="SECONDS", help="no measurement begins later")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    chosen(parser, "--only", options.only, KEYS)
    aggressors = chosen(parser, "--aggressors", options.aggressors, AGGRESSORS)
    options.partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita
    # A request to end is an end in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))

    begin = time.monotonic()
    clock = Clock(options.deadline)
    facts = {"device": device(clock), "date": datetime.date.today().isoformat(), "torch": importlib.metadata.version("torch"),
             "seconds": options.seconds, "rounds": options.rounds, "complete": True}
    mps, partita = Mps(), Partita(options.partita, clock)
    pool = Pool(options, clock, mps)
    bench = Bench(options, clock, pool)
    wanted, proofs, products = [], {}, {}
    try:
        mps.start()
        wanted, proofs, products = prepare(options, partita, bench)
        able = [one for one in wanted if not one.error]
        print(f"prepared after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        for aggressor in aggressors:
            bench.aggressor(aggressor, able, with_shares=aggressor == aggressors[0])
    except Deadline:
        facts["complete"] = False
    finally:
        pool.end(*pool.programs)
        mps.end()
        # Only an unused one: it refuses otherwise.
        try:
            said([options.partita, "mps", "stop"], dict(os.environ), 20.0)
        except Failed as failure:
            print(f"partita mps stop: {failure}", file=sys.stderr)
    facts["took_s"] = time.monotonic() - begin
    if not wanted:
        sys.exit("the time was over before anything was measured")
    report(options, facts, bench.runs, wanted, proofs, products, aggressors)


if __name__ == "__main__":
    main()
