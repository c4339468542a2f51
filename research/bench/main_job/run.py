"""The main job, measured: a serving tenant beside a neighbour, under every way of sharing one GPU.

    python3 research/bench/main_job/run.py --partita target/dist/partita --out research/bench/results

Each round runs every setting once, in a new random order; settings of one round are therefore seconds apart, and rounds show the
spread. Reported for each setting: p50 and p99 of the serving tenant over the pooled requests, its p99 against its solo run *on the
same TPCs* (the ratio of the round's pairs: median, least, most), and the neighbour's rate against its own solo run on its TPCs:
of all of it, and of what the time leaves it in which the serving tenant, alone, is idle.
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

    def partita(self, name: str, share: str | None, memory: str, program: pathlib.Path, *arguments: str,
                priority: str = "normal", isolation: str | None = None, target: list[str] | None = None) -> list[str]:
        """The command line that puts a program into its partition, or gives it the whole GPU by its priority."""
        compute = target or [*(["--sm", share] if share else ["--via", "time"]), "--priority", priority]
        if isolation:
            compute += ["--isolation", isolation]
        return [self.options.partita, "run", "--name", name, *compute, "--mem", memory, "--", "python3", str(program), *arguments]

    def serving(self) -> list[str]:
        return ["--seconds", str(self.options.seconds)]

    def share(self, tenant: str) -> str:
        """The TPCs of the tenant beside the other, so that its solo run uses the same ones."""
        return f"tpc:{self.sets[tenant]}" if tenant in self.sets else "50%"

    def measure(self, setting: str, neighbour: str, serve: tuple[list[str], dict] | None,
                other: tuple[list[str], dict] | None, settle: float = 0.0, explain: tuple[str, ...] = ()) -> None:
        """Runs one setting: the neighbour first, until it is warm, then the serving program's window.

        The serving program works for `settle` seconds before its window. `explain` names the tenants whose
        explanations are stored with the result.
        """
        if self.options.only and setting not in self.options.only:
            return
        run: dict = {"setting": setting, "neighbour": neighbour}
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
        print(f"  {setting:28} {neighbour:8} {told} {run.get('neighbour_rate', 0):.0f}/s"
              + (f" {run['sm_mhz']:.0f} MHz {run['watts']:.0f} W" if "sm_mhz" in run else ""), file=sys.stderr, flush=True)

    def round(self, neighbours: list[str]) -> None:
        """Every setting once."""
        python = ["python3"]
        serve = python + [str(SERVE), *self.serving()]
        scripts = {"train": TRAIN, "burn": BURN}
        jobs = []
        jobs.append(lambda: self.measure("solo, whole GPU", "-", (serve, self.bare), None))
        jobs.append(lambda: self.measure("partita 50%, solo", "-", (
            self.partita("serve", self.share("serve"), "20GiB", SERVE, *self.serving()), os.environ), None))
        for neighbour in neighbours:
            script = scripts[neighbour]
            other = python + [str(script)]

            def with_mps(percentage: str | None, neighbour=neighbour, other=other) -> None:
                with Mps() as environment:
                    if percentage:
                        environment = dict(environment, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
                    name = f"MPS {percentage} % / {percentage} %" if percentage else "MPS"
                    self.measure(name, neighbour, (serve, environment), (other, environment))

            def pair(neighbour=neighbour, script=script) -> None:
                self.measure("partita 50% / 50%", neighbour,
                             (self.partita("serve", "50%", "20GiB", SERVE, *self.serving()), os.environ),
                             (self.partita(neighbour, "50%", "40GiB", script), os.environ))

            def gated(neighbour=neighbour, script=script) -> None:
                self.measure("partita 50% / 50%, gate", neighbour,
                             (self.partita("serve", "50%", "20GiB", SERVE, *self.serving(), priority="high"), os.environ),
                             (self.partita(neighbour, "50%", "40GiB", script, priority="low"), os.environ))

            def elastic(guarantee: int, neighbour=neighbour, script=script) -> None:
                rest = 100 - guarantee
                self.measure(f"partita {guarantee}% / {rest}%..100%", neighbour,
                             (self.partita(f"serve-{guarantee}", f"{guarantee}%", "20GiB", SERVE, *self.serving()), os.environ),
                             (self.partita(f"{neighbour}-{rest}", f"{rest}%..100%", "40GiB", script), os.environ))

            def gated_whole(isolation: str | None, neighbour=neighbour, script=script) -> None:
                self.measure("partita gate, whole GPU" + (", MPS" if isolation == "shared" else ""), neighbour,
                             (self.partita("serve-whole", None, "20GiB", SERVE, *self.serving(), priority="high",
                                           isolation=isolation), os.environ),
                             (self.partita(f"{neighbour}-whole", None, "40GiB", script, priority="low", isolation=isolation),
                              os.environ))

            def target(in_turns: bool, neighbour=neighbour, script=script) -> None:
                way = ["--via", "time"] if in_turns else []
                names = tuple(f"{program}-target{'-turns' if in_turns else ''}" for program in ("serve", neighbour))
                self.measure("partita --slo p99=1.1x" + (", turns" if in_turns else ""), neighbour,
                             (self.partita(names[0], None, "20GiB", SERVE, *self.serving(),
                                           target=[*way, "--slo", "p99=1.1x"]), os.environ),
                             (self.partita(names[1], None, "40GiB", script, target=[*way, "--goal", "throughput"]), os.environ),
                             settle=self.options.settle, explain=names)

            def alone(neighbour=neighbour, script=script) -> None:
                self.measure("partita 50%, neighbour solo", neighbour, None,
                             (self.partita(neighbour, self.share(neighbour), "40GiB", script), os.environ))

            jobs.append(lambda neighbour=neighbour, other=other: self.measure(
                "neighbour solo, whole GPU", neighbour, None, (other, self.bare)))
            jobs.append(lambda neighbour=neighbour, other=other: self.measure(
                "time slicing", neighbour, (serve, self.bare), (other, self.bare)))
            jobs.append(lambda with_mps=with_mps: with_mps(None))
            jobs.append(lambda with_mps=with_mps: with_mps("50"))
            jobs.append(pair)
            jobs.append(gated)
            jobs.append(lambda elastic=elastic: elastic(50))
            jobs.append(lambda elastic=elastic: elastic(80))
            jobs.append(lambda gated_whole=gated_whole: gated_whole(None))
            jobs.append(lambda gated_whole=gated_whole: gated_whole("shared"))
            jobs.append(lambda target=target: target(False))
            jobs.append(lambda target=target: target(True))
            jobs.append(alone)
        random.shuffle(jobs)
        # The pair tells which TPCs the neighbour has; its solo run needs that.
        if not self.sets:
            jobs.sort(key=lambda job: job.__name__ != "pair")
        for job in jobs:
            job()


def idle_share(solo: list[dict]) -> float | None:
    """The share of time in which the serving program, alone, has no request to serve."""
    shares = [1 - sum(run["serve"]["latencies_ms"]) / 1000 / (run["serve"]["stop"] - run["serve"]["start"]) for run in solo]
    return statistics.median(shares) if shares else None


def summarise(runs: list[dict]) -> list[dict]:
    """One row a setting and neighbour."""
    rows: list[dict] = []
    order = ["solo, whole GPU", "partita 50%, solo", "neighbour solo, whole GPU", "partita 50%, neighbour solo",
             "time slicing", "MPS", "MPS 50 % / 50 %", "partita gate, whole GPU, MPS", "partita gate, whole GPU",
             "partita 50% / 50%",
             "partita 50% / 50%, gate", "partita 50% / 50%..100%", "partita 80% / 20%..100%",
             "partita --slo p99=1.1x", "partita --slo p99=1.1x, turns"]
    keys = sorted({(run["setting"], run["neighbour"]) for run in runs},
                  key=lambda key: (key[1], order.index(key[0])), reverse=False)

    def of(setting: str, neighbour: str) -> list[dict]:
        return [run for run in runs if (run["setting"], run["neighbour"]) == (setting, neighbour)]

    def p99s(setting: str) -> list[float]:
        return [percentile(run["serve"]["latencies_ms"], .99) for run in of(setting, "-")]

    for setting, neighbour in keys:
        these = of(setting, neighbour)
        latencies = [value for run in these for value in run["serve"]["latencies_ms"]]
        row: dict = {"setting": setting, "neighbour": neighbour, "rounds": len(these), "requests": len(latencies)}
        on_half = setting.startswith(("partita 50%", "MPS 50"))
        if latencies:
            row["p50_ms"], row["p99_ms"] = percentile(latencies, .5), percentile(latencies, .99)
            row["requests_per_s"] = statistics.median(
                len(run["serve"]["latencies_ms"]) / (run["serve"]["stop"] - run["serve"]["start"]) for run in these)
            base = p99s("partita 50%, solo" if on_half else "solo, whole GPU")
            ratios = [percentile(run["serve"]["latencies_ms"], .99) / solo for run, solo in zip(these, base)]
            if ratios:
                row["p99_against_solo"] = {"median": statistics.median(ratios), "least": min(ratios),
                                           "most": max(ratios), "against": "half" if on_half else "whole GPU"}
        if "explained" in these[-1]:
            row["explained"] = these[-1]["explained"]
        if "sm_mhz" in these[0]:
            row["sm_mhz"] = statistics.median(run["sm_mhz"] for run in these)
            row["watts"] = statistics.median(run["watts"] for run in these)
        rates = [run["neighbour_rate"] for run in these if "neighbour_rate" in run]
        if rates:
            row["neighbour_per_s"] = statistics.median(rates)
            # What a neighbour that borrows could have had is the whole GPU.
            of_half = on_half and not setting.endswith("..100%")
            alone = of("partita 50%, neighbour solo" if of_half else "neighbour solo, whole GPU", neighbour)
            if alone:
                row["neighbour_against_solo"] = row["neighbour_per_s"] / statistics.median(
                    run["neighbour_rate"] for run in alone)
                idle = idle_share(of("partita 50%, solo" if on_half else "solo, whole GPU", "-"))
                if latencies and idle:
                    row["neighbour_of_idle"] = row["neighbour_against_solo"] / idle
        rows.append(row)
    return rows


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = ["| setting | neighbour | p50 ms | p99 ms | p99 against solo (least–most) | requests/s | neighbour/s | against solo | of the idle time |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ratio = row.get("p99_against_solo")
        cells = [row["setting"], row["neighbour"],
                 f"{row['p50_ms']:.3f}" if "p50_ms" in row else "",
                 f"{row['p99_ms']:.3f}" if "p99_ms" in row else "",
                 f"{ratio['median']:.2f} ({ratio['least']:.2f}–{ratio['most']:.2f}, of {ratio['against']})" if ratio else "",
                 f"{row['requests_per_s']:.0f}" if "requests_per_s" in row else "",
                 f"{row['neighbour_per_s']:.0f}" if "neighbour_per_s" in row else "",
                 f"{row['neighbour_against_solo']:.3f}" if "neighbour_against_solo" in row else "",
                 f"{row['neighbour_of_idle']:.3f}" if "neighbour_of_idle" in row else ""]
        lines.append("| " + " | ".join(cells) + " |")
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
    parser.add_argument("--neighbours", default="train,burn")
    parser.add_argument("--only", action="append", help="measure this setting alone; may be repeated")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    options.partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita

    bench = Bench(options)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        bench.round(options.neighbours.split(","))
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
