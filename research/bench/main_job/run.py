"""The main job, measured: a serving tenant beside a neighbour, under every way of sharing one GPU.

    python3 research/bench/main_job/run.py --partita target/dist/partita --out research/bench/results

Each round runs every setting once, in a new random order; settings of one round are therefore seconds apart, and rounds show the
spread. Reported for each setting: p50 and p99 of the serving tenant over the pooled requests, its p99 against its solo run on the whole
GPU and *on the same TPCs* (the ratio of the round's pairs: median, least, most), and the neighbour's rate against its own solo run
on its TPCs: of all of it, and of what the time leaves it in which the serving tenant, alone, is idle.

A second table has the settings that hold the target (p99 at most 1.1 times that of the solo run on the whole GPU): what the
neighbour gets with a target on the command line, against the best of all settings that were fixed by hand.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SERVE, TRAIN, BURN = HERE / "serve.py", HERE / "train.py", HERE / "burn.py"
# The neighbours' programs.
NEIGHBOURS = {"train": [TRAIN], "burn": [BURN], "prefill": [TRAIN, "--model", "prefill"], "diffusion": [TRAIN, "--model", "diffusion"]}
# Milliseconds between a program's requests.
PAUSES = {"resnet": 3.0, "decode": 0.3, "recommender": 3.0}
TARGET = 1.1


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the samples lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Program:
    """One Python program, started, warm, and fed through its standard input."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=HERE)

    def wait_ready(self) -> None:
        """Waits for the line `ready`."""
        line = self.process.stdout.readline()
        if line.strip() != "ready":
            self.process.kill()
            raise RuntimeError(f"{self.process.args} ended before it was ready: {line!r}")

    def go(self) -> None:
        """Starts the measured part of the serving program."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def settle(self, seconds: float) -> None:
        """Serves for so long before the measured part, and drops the result."""
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise RuntimeError(f"{self.process.args} ended before its measured part")

    def result(self) -> dict:
        """Closes the input and reads the result."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        lines = self.process.stdout.read().strip().splitlines()
        code = self.process.wait(timeout=60)
        if code != 0 or not lines:
            raise RuntimeError(f"{self.process.args} ended with {code}")
        return json.loads(lines[-1])


class Mps:
    """A control daemon of this benchmark's own, for the settings that are not Partita's."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="mps")
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=self.directory.name,
                                CUDA_MPS_LOG_DIRECTORY=self.directory.name)

    def __enter__(self) -> dict[str, str]:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, check=True)
        return self.environment

    def __exit__(self, *_: object) -> None:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit -t 5\n", env=self.environment, text=True,
                       stdout=subprocess.DEVNULL, check=False, timeout=60)
        self.directory.cleanup()


class Clocks:
    """SM clock and power while a setting runs. Reading them can disturb latencies, so it is for separate runs."""

    def __enter__(self) -> "Clocks":
        self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits",
                                         "-lms", "250"], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        samples = [line.split(",") for line in self.process.communicate()[0].splitlines() if line.count(",") == 1]
        self.mhz = statistics.median(float(clock) for clock, _ in samples) if samples else None
        self.watts = statistics.median(float(power) for _, power in samples) if samples else None


class Bench:
    """Runs settings and stores their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.runs: list[dict] = []
        # Neither daemon's directory: a process with this environment is no MPS client.
        self.bare = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nonexistent")
        self.sets = {}
        self.begun = time.monotonic()

    def partita(self, name: str, share: str | None, memory: str, program: list, priority: str = "normal",
                isolation: str | None = None, target: list[str] | None = None) -> list[str]:
        """The command line that puts a program into its partition, or gives it the whole GPU by its priority."""
        compute = target or [*(["--sm", share] if share else ["--via", "time"]), "--priority", priority]
        if isolation:
            compute += ["--isolation", isolation]
        return [self.options.partita, "run", "--name", name, *compute, "--mem", memory, "--", *python(program)]

    def share(self, tenant: str) -> str:
        """The TPCs of the tenant beside the other, so that its solo run uses the same ones."""
        return f"tpc:{self.sets[tenant]}" if tenant in self.sets else "50%"

    def measure(self, setting: str, pair: tuple[str, str], serve: tuple[list[str], dict] | None,
                other: tuple[list[str], dict] | None, settle: float = 0.0, explain: tuple[str, ...] = ()) -> None:
        """Runs one setting: the neighbour first, until it is warm, then the serving program's window.

        The serving program works for `settle` seconds before its window. `explain` names the tenants whose
        explanations are stored with the result.
        """
        if self.options.only and setting not in self.options.only or time.monotonic() - self.begun > self.options.limit:
            return
        run: dict = {"setting": setting, "serving": pair[0], "neighbour": pair[1]}
        programs = [Program(*each) if each else None for each in (other, serve)]
        try:
            for program in programs:
                if program:
                    program.wait_ready()
            if setting.startswith("partita"):
                listing = subprocess.run([self.options.partita, "ps", "--json"], capture_output=True, text=True, check=True)
                for tenant in json.loads(listing.stdout):
                    self.sets.setdefault(tenant["name"], tenant["tpcs"])
            if settle:
                programs[1].settle(settle)
            for tenant in explain:
                shown = subprocess.run([self.options.partita, "explain", tenant], capture_output=True, text=True, check=False)
                run.setdefault("explained", []).append(shown.stdout + shown.stderr)
            with Clocks() if self.options.clocks else contextlib.nullcontext() as clocks:
                if programs[1]:
                    programs[1].go()
                    run["serve"] = programs[1].result()
                else:
                    time.sleep(self.options.seconds)
                    now = time.monotonic()
                    run["serve"] = {"start": now - self.options.seconds, "stop": now, "latencies_ms": []}
            if clocks:
                run["sm_mhz"], run["watts"] = clocks.mhz, clocks.watts
            if programs[0]:
                given = programs[0].result()
                inside = [end for end in given["ends"] if run["serve"]["start"] <= end < run["serve"]["stop"]]
                # From the first end to the last, so that the window's edges cut no step in two.
                run["neighbour_rate"] = (len(inside) - 1) * given["per_step"] / (inside[-1] - inside[0])
        finally:
            for program in programs:
                if program and program.process.poll() is None:
                    program.process.kill()
                    program.process.wait()
        self.runs.append(run)
        latencies = run["serve"]["latencies_ms"]
        told = f"p50 {percentile(latencies, .5):.3f} p99 {percentile(latencies, .99):.3f} ms" if latencies else ""
        print(f"  {setting:28} {':'.join(pair):18} {told} {run.get('neighbour_rate', 0):.0f}/s"
              + (f" {run['sm_mhz']:.0f} MHz {run['watts']:.0f} W" if "sm_mhz" in run else ""), file=sys.stderr, flush=True)

    def round(self, pairs: list[tuple[str, str]]) -> None:
        """Every setting once."""
        jobs = [job for pair in pairs for job in self.jobs(*pair)]
        alone = {job[1:]: job for pair in pairs for job in self.jobs_alone(*pair)}
        jobs += alone.values()
        random.shuffle(jobs)
        # The pair tells which TPCs the neighbour has; its solo run needs that.
        if not self.sets:
            jobs.sort(key=lambda job: job[1] != "partita 50% / 50%")
        for job, *_ in jobs:
            job()

    def jobs_alone(self, serving: str, neighbour: str) -> list[tuple]:
        """The solo runs of a pair, each with its setting and its pair."""
        serve, other = self.serve(serving), NEIGHBOURS[neighbour]
        # Which TPCs the tenants have is known when a job runs, and not yet here.
        settings = {
            ("solo, whole GPU", (serving, "-")): lambda: ((python(serve), self.bare), None),
            ("partita 50%, solo", (serving, "-")): lambda: (
                (self.partita("serve", self.share("serve"), "40GiB", serve), os.environ), None),
            ("neighbour solo, whole GPU", ("-", neighbour)): lambda: (None, (python(other), self.bare)),
            ("partita 50%, neighbour solo", ("-", neighbour)): lambda: (
                None, (self.partita(neighbour, self.share(neighbour), "36GiB", other), os.environ)),
        }
        return [(lambda key=key, programs=programs: self.measure(*key, *programs()), *key) for key, programs in settings.items()]

    def serve(self, serving: str) -> list:
        """The program that serves."""
        return [SERVE, "--seconds", str(self.options.seconds), "--model", serving, "--pause-ms", str(PAUSES[serving])]

    def jobs(self, serving: str, neighbour: str) -> list[tuple]:
        """The settings of a pair, each with its name."""
        pair, serve, other = (serving, neighbour), self.serve(serving), NEIGHBOURS[neighbour]

        def with_mps(name: str, percentage: str | None) -> None:
            with Mps() as environment:
                if percentage:
                    environment = dict(environment, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
                self.measure(name, pair, (python(serve), environment), (python(other), environment))

        def tenants(name: str, shares: tuple[str | None, str | None], names: tuple[str, str] = ("serve", neighbour), *,
                    gate: bool = False, isolation: str | None = None) -> None:
            priorities = ("high", "low") if gate else ("normal", "normal")
            both = [(self.partita(tenant, share, memory, program, priority, isolation), os.environ)
                    for tenant, share, memory, program, priority
                    in zip(names, shares, ("40GiB", "36GiB"), (serve, other), priorities)]
            self.measure(name, pair, *both)

        def target(name: str, way: list[str]) -> None:
            names = tuple(f"{program}-target{'-turns' if way else ''}" for program in (serving, neighbour))
            self.measure(name, pair,
                         (self.partita(names[0], None, "40GiB", serve, target=[*way, "--slo", f"p99={TARGET}x"]), os.environ),
                         (self.partita(names[1], None, "36GiB", other, target=[*way, "--goal", "throughput"]), os.environ),
                         settle=self.options.settle, explain=names)

        settings = {
            "time slicing": lambda name: self.measure(name, pair, (python(serve), self.bare), (python(other), self.bare)),
            "MPS": lambda name: with_mps(name, None),
            "MPS 50 % / 50 %": lambda name: with_mps(name, "50"),
            "partita 50% / 50%": lambda name: tenants(name, ("50%", "50%")),
            **{f"partita {share}% / {100 - share}%": lambda name, share=share: tenants(
                name, (f"{share}%", f"{100 - share}%"), (f"serve-{share}", f"{neighbour}-{100 - share}")) for share in (25, 75, 90)},
            "partita 50% / 50%, gate": lambda name: tenants(name, ("50%", "50%"), gate=True),
            "partita 50% / 50%..100%": lambda name: tenants(name, ("50%", "50%..100%"), ("serve-50", f"{neighbour}-50")),
            "partita 80% / 20%..100%": lambda name: tenants(name, ("80%", "20%..100%"), ("serve-80", f"{neighbour}-20")),
            "partita gate, whole GPU": lambda name: tenants(
                name, (None, None), ("serve-whole", f"{neighbour}-whole"), gate=True),
            "partita gate, whole GPU, MPS": lambda name: tenants(
                name, (None, None), ("serve-whole", f"{neighbour}-whole"), gate=True, isolation="shared"),
            "partita --slo p99=1.1x": lambda name: target(name, []),
            "partita --slo p99=1.1x, turns": lambda name: target(name, ["--via", "time"]),
        }
        return [(lambda name=name, run=run: run(name), name) for name, run in settings.items()]


def python(program: list) -> list[str]:
    """The command line of a program."""
    return ["python3", *map(str, program)]


def idle_share(solo: list[dict]) -> float | None:
    """The share of time in which the serving program, alone, has no request to serve."""
    shares = [1 - sum(run["serve"]["latencies_ms"]) / 1000 / (run["serve"]["stop"] - run["serve"]["start"]) for run in solo]
    return statistics.median(shares) if shares else None


ORDER = ["solo, whole GPU", "partita 50%, solo", "neighbour solo, whole GPU", "partita 50%, neighbour solo", "time slicing", "MPS",
         "MPS 50 % / 50 %", "partita gate, whole GPU, MPS", "partita gate, whole GPU", "partita 25% / 75%", "partita 50% / 50%",
         "partita 75% / 25%", "partita 90% / 10%", "partita 50% / 50%, gate", "partita 50% / 50%..100%", "partita 80% / 20%..100%",
         "partita --slo p99=1.1x", "partita --slo p99=1.1x, turns"]


def spread(values: list[float]) -> dict:
    """The middle of the rounds and their ends."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summarise(runs: list[dict]) -> list[dict]:
    """One row a setting and pair."""
    rows: list[dict] = []
    keys = sorted({(run["serving"], run["neighbour"], run["setting"]) for run in runs},
                  key=lambda key: (key[0] == "-", key[:2], ORDER.index(key[2])))

    def of(setting: str, serving: str, neighbour: str) -> list[dict]:
        return [run for run in runs if (run["setting"], run["serving"], run["neighbour"]) == (setting, serving, neighbour)]

    def p99s(these: list[dict]) -> list[float]:
        return [percentile(run["serve"]["latencies_ms"], .99) for run in these]

    for serving, neighbour, setting in keys:
        these = of(setting, serving, neighbour)
        latencies = [value for run in these for value in run["serve"]["latencies_ms"]]
        row: dict = {"setting": setting, "serving": serving, "neighbour": neighbour, "rounds": len(these),
                     "requests": len(latencies)}
        on_half = setting.startswith(("partita 50%", "MPS 50"))
        if latencies:
            row["p50_ms"], row["p99_ms"] = percentile(latencies, .5), percentile(latencies, .99)
            row["requests_per_s"] = statistics.median(
                len(run["serve"]["latencies_ms"]) / (run["serve"]["stop"] - run["serve"]["start"]) for run in these)
            for key, base in (("p99_against_solo", "partita 50%, solo" if on_half else "solo, whole GPU"),
                              ("p99_against_whole", "solo, whole GPU")):
                alone = p99s(of(base, serving, "-"))
                if alone:
                    # A round that was cut short has no solo run of its own.
                    against = [*alone, *[statistics.median(alone)] * (len(these) - len(alone))]
                    row[key] = spread([p99 / solo for p99, solo in zip(p99s(these), against)])
                    row[key]["against"] = "half" if "50%" in base else "whole GPU"
        if "explained" in these[-1]:
            row["explained"] = these[-1]["explained"]
        if "sm_mhz" in these[0]:
            row["sm_mhz"] = statistics.median(run["sm_mhz"] for run in these)
            row["watts"] = statistics.median(run["watts"] for run in these)
        rates = [run["neighbour_rate"] for run in these if "neighbour_rate" in run]
        if rates:
            row["neighbour_per_s"], row["neighbour_rates"] = statistics.median(rates), rates
            whole = [run["neighbour_rate"] for run in of("neighbour solo, whole GPU", "-", neighbour)]
            if whole:
                row["neighbour_of_whole"] = row["neighbour_per_s"] / statistics.median(whole)
            # What a neighbour that borrows could have had is the whole GPU.
            of_half = on_half and not setting.endswith("..100%")
            half = [run["neighbour_rate"] for run in of("partita 50%, neighbour solo", "-", neighbour)]
            alone = half if of_half else whole
            if alone:
                row["neighbour_against_solo"] = row["neighbour_per_s"] / statistics.median(alone)
                idle = idle_share(of("partita 50%, solo" if on_half else "solo, whole GPU", serving, "-"))
                if latencies and idle:
                    row["neighbour_of_idle"] = row["neighbour_against_solo"] / idle
        rows.append(row)
    return rows


def goodput(rows: list[dict]) -> list[dict]:
    """For each pair, what the neighbour gets where the target holds: by a target, and by the best setting fixed by hand."""
    found = []
    for pair in dict.fromkeys((row["serving"], row["neighbour"]) for row in rows if "-" not in (row["serving"], row["neighbour"])):
        these = [row for row in rows if (row["serving"], row["neighbour"]) == pair and "p99_against_whole" in row]
        # A round's p99 has noise: 2 % above counts as met.
        holds = [row for row in these if row["p99_against_whole"]["median"] <= TARGET * 1.02]
        fixed = [row for row in holds if "--slo" not in row["setting"]]
        best = max(fixed, key=lambda row: row["neighbour_per_s"], default=None)
        for row in (row for row in these if "--slo" in row["setting"]):
            found.append({"serving": pair[0], "neighbour": pair[1], "setting": row["setting"], "holds": row in holds,
                          "p99": row["p99_against_whole"], "best": best and best["setting"],
                          "of_best": best and row["neighbour_per_s"] / best["neighbour_per_s"]})
    return found


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = ["| setting | serving | neighbour | p50 ms | p99 ms | p99 against the whole GPU | p99 against solo (least–most) | "
             "requests/s | neighbour/s | of the whole GPU's | against solo | of the idle time |", "|---" * 12 + "|"]
    for row in rows:
        ratio, whole = row.get("p99_against_solo"), row.get("p99_against_whole")
        cells = [row["setting"], row["serving"], row["neighbour"],
                 f"{row['p50_ms']:.3f}" if "p50_ms" in row else "",
                 f"{row['p99_ms']:.3f}" if "p99_ms" in row else "",
                 f"{whole['median']:.2f} ({whole['least']:.2f}–{whole['most']:.2f})" if whole else "",
                 f"{ratio['median']:.2f} ({ratio['least']:.2f}–{ratio['most']:.2f}, of {ratio['against']})" if ratio else "",
                 f"{row['requests_per_s']:.0f}" if "requests_per_s" in row else "",
                 f"{row['neighbour_per_s']:.0f}" if "neighbour_per_s" in row else "",
                 f"{row['neighbour_of_whole']:.3f}" if "neighbour_of_whole" in row else "",
                 f"{row['neighbour_against_solo']:.3f}" if "neighbour_against_solo" in row else "",
                 f"{row['neighbour_of_idle']:.3f}" if "neighbour_of_idle" in row else ""]
        lines.append("| " + " | ".join(cells) + " |")
    found = goodput(rows)
    if found:
        lines += ["", "| serving | neighbour | setting | p99 | target of 1.1 | neighbour against the best fixed setting that holds it |",
                  "|---|---|---|---|---|---|"]
        lines += [f"| {row['serving']} | {row['neighbour']} | {row['setting']} | {row['p99']['median']:.2f} | "
                  f"{'holds' if row['holds'] else 'missed'} | "
                  + (f"{row['of_best']:.2f} of «{row['best']}» |" if row["best"] else "no fixed setting holds it |") for row in found]
    return "\n".join(lines)


def device() -> dict:
    """Name, driver and board, from nvidia-smi."""
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,uuid,memory.total", "--format=csv,noheader"],
                           capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    name, driver, uuid, memory = (part.strip() for part in query.split(","))
    return {"name": name, "driver": driver, "uuid": uuid, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita", help="the partita executable")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured window of each setting")
    parser.add_argument("--settle", type=float, default=45.0, help="work before the window of settings with a target")
    parser.add_argument("--clocks", action="store_true", help="record SM clock and power too")
    parser.add_argument("--pairs", default="resnet:train,resnet:burn", help="SERVING:NEIGHBOUR, separated by commas")
    parser.add_argument("--limit", type=float, default=3600.0, help="start no setting after so many seconds")
    parser.add_argument("--only", action="append", help="measure this setting alone; may be repeated")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    options.partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita

    bench = Bench(options)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        bench.round([tuple(pair.split(":")) for pair in options.pairs.split(",")])
    subprocess.run([options.partita, "mps", "stop"], check=False)
    rows = summarise(bench.runs)
    import torch

    facts = {"device": device(), "date": datetime.date.today().isoformat(), "torch": torch.__version__,
             "seconds": options.seconds, "rounds": options.rounds, "tpcs": bench.sets}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "main_job.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    text = (f"# The main job\n\n{facts['device']['name']}, driver {facts['device']['driver']}, PyTorch {facts['torch']}, "
            f"{facts['date']}; {options.rounds} rounds of {options.seconds:g} s a setting.\n\n{table(rows)}\n")
    (options.out / "main_job.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
