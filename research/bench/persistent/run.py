"""Persistent blocks on a GPU: the same results as without Partita, on the tenant's SMs, at which cost, and how soon a kernel that runs
leaves its SMs.

    python3 research/bench/persistent/run.py --partita target/dist/partita --out research/bench/results

Three programs load the same PTX, of `kernels.cu` by NVRTC and of `triton_kernels.py`: one without Partita, a tenant with a mask and
one with persistent blocks, each of half the GPU. They run in turns, in a new random order each round; a ratio is of the pair of a
round. Needs CuPy and Triton, and an idle GPU.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "victim"))
from programs import Clock, Program  # noqa: E402

BARE, MASK, PERSISTENT = "without Partita", "mask", "persistent"
# Blocks of 0.5 ms, of which one SM runs two at a time: 150 ms on half of an H100.
SPIN = (40_000, 500_000)


def ptx() -> dict:
    """The PTX of all kernels. It needs no GPU."""
    from cupy.cuda import nvrtc

    import triton_kernels
    program = nvrtc.createProgram((HERE / "kernels.cu").read_text(), "kernels.cu", [], [])
    nvrtc.compileProgram(program, ["--gpu-architecture=compute_80"])
    text = nvrtc.getPTX(program)
    return {"cuda": text.decode() if isinstance(text, bytes) else text,
            "triton": {name: triton_kernels.compiled(name) for name in triton_kernels.KERNELS}}


class Bench:
    """The programs and their tenants."""

    def __init__(self, options: argparse.Namespace, kernels: pathlib.Path) -> None:
        self.options, self.clock = options, Clock(options.budget_s)
        self.worker = [sys.executable, str(HERE / "worker.py"), str(kernels)]

    def call(self, *arguments: str) -> str:
        return subprocess.run([self.options.partita, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout

    def start(self, name: str, *options: str) -> Program:
        """The worker as a tenant."""
        command = [self.options.partita, "run", "--name", name, "--mem", "20GiB", *options, "--", *self.worker]
        return self.ready(Program(command, dict(os.environ), [self.options.partita, "kill", name]))

    def ready(self, program: Program) -> Program:
        program.hear_ready(self.clock.allow(120.0))
        return program

    def ask(self, program: Program, *words: object) -> object:
        program.tell(json.dumps(words))
        return json.loads(program.hear(self.clock.allow(120.0)))

    def sms(self, name: str) -> set[int]:
        """The SMs that a tenant has."""
        tpcs = next(row["tpcs"] for row in json.loads(self.call("ps", "--json")) if row["name"] == name)
        parts = [part.partition("-") for part in tpcs.split(",")]
        return {2 * tpc + of for first, _, last in parts for tpc in range(int(first), int(last or first) + 1) for of in (0, 1)}

    def same(self, programs: dict[str, Program]) -> dict:
        """Digests of results, and blocks by SM."""
        digests = {key: self.ask(program, "check") for key, program in programs.items()}
        kernels = list(digests[BARE])
        census = {int(sm): count for sm, count in self.ask(programs[PERSISTENT], "census", self.options.blocks).items()}
        own = self.sms(PERSISTENT)
        return {"kernels": kernels, "different": [name for name in kernels if len({one[name] for one in digests.values()}) > 1],
                "blocks": sum(census.values()), "sms": len(own), "sms_used": len(census),
                "outside": sum(count for sm, count in census.items() if sm not in own)}

    def costs(self, programs: dict[str, Program]) -> list[dict]:
        counts = {"empty": 2000, "empty, 10^6 blocks": 5}
        kernels = ["empty", "empty, 10^6 blocks", *self.ask(programs[BARE], "check")]
        times: dict[str, dict[str, list[float]]] = {name: {MASK: [], PERSISTENT: []} for name in kernels}
        for _ in range(self.options.rounds):
            random.shuffle(kernels)
            for name in kernels:
                for key in random.sample([MASK, PERSISTENT], 2):
                    times[name][key].append(self.ask(programs[key], "time", name, counts.get(name, 50)))
        return [{"kernel": name, "mask_us": statistics.median(of[MASK]), "persistent_us": statistics.median(of[PERSISTENT]),
                 "ratios": sorted(new / old for new, old in zip(of[PERSISTENT], of[MASK]))} for name, of in sorted(times.items())]

    def leaving(self, key: str, *options: str) -> list[float]:
        """Milliseconds from the moment at which `partita set` has taken most SMs away to the end of the last block on one of them."""
        program, left = self.start("leaves", *options), []
        try:
            offset = self.ask(program, "clock")
            for _ in range(self.options.tries):
                self.call("set", "leaves", "--sm", "50%")
                self.ask(program, "spin", *SPIN)
                time.sleep(0.03)
                self.call("set", "leaves", "--sm", "5tpc")
                at, kept = time.time_ns(), self.sms("leaves")
                sms, ends = self.ask(program, "ended")
                late = [end + offset - at for sm, end in zip(sms, ends) if sm not in kept]
                left.append(max(late, default=0) / 1e6)
        finally:
            program.end()
        return left

    def gate(self) -> list[float]:
        """Milliseconds of a launch of high priority, and a wait for it, beside a kernel of low priority that runs."""
        low = self.start("low", "--via", "time", "--priority", "low", "--isolation", "shared")
        waits = []
        try:
            high = self.start("high", "--via", "time", "--priority", "high", "--isolation", "shared")
            try:
                for _ in range(self.options.tries):
                    self.ask(low, "spin", *SPIN)
                    time.sleep(0.03)
                    waits.append(self.ask(high, "wait") / 1e3)
                    self.ask(low, "ended")
            finally:
                high.end()
        finally:
            low.end()
        return waits


def verdict(command: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """How a program ended and what it says of its results, and what Partita refused."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "no end within 30 s", ""
    refused = re.findall(r"(?m)^partita: .*$", done.stderr)[:1]
    said = re.findall(r"(?im)^(?!partita).*(?:pass|fail|error|mismatch|correct).*$", done.stdout + done.stderr)
    told = [f"exit {done.returncode}", *(re.sub(r"\d+(\.\d+)?", "#", line.strip()) for line in said[:4])]
    return "; ".join(told), "".join(refused)


def samples(options: argparse.Namespace) -> list[dict]:
    """Programs that are ready to run and succeed without Partita, with persistent blocks."""
    found = []
    for program in sorted(options.samples.iterdir()) if options.samples else []:
        if os.access(program, os.X_OK) and program.is_file():
            tenant = [options.partita, "run", "--name", "sample", "--isolation", "own", "--sm", "50%", "--via", "persistent", "--"]
            bare, _ = verdict([str(program)], dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nonexistent"))
            if not bare.startswith("exit 0"):
                continue
            told, refused = verdict([*tenant, str(program)], dict(os.environ))
            found.append({"name": program.name, "bare": bare, "persistent": told, "refused": refused})
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def spread(values: list[float], digits: int = 2) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})" if values else "not run"


def page(result: dict) -> str:
    same = result["same"]
    ran = [one for one in result["samples"] if one["bare"] == one["persistent"]]
    lines = ["# Persistent blocks on a GPU", "",
             f"{result['device']}, {result['date']}, `research/bench/persistent/run.py`, {result['rounds']} rounds. "
             f"Kernels by NVRTC and by Triton {result['triton']}, PTX for sm_80.", "",
             f"* **Results**: {len(same['kernels'])} kernels, {len(same['different'])} with other bits than without Partita"
             + (f" ({', '.join(same['different'])})." if same["different"] else "."),
             f"* **NVIDIA's samples**, PTX alone: {len(ran)} of {len(result['samples'])} end and judge themselves as without Partita, "
             f"{sum(one['refused'] != '' for one in result['samples'] if one not in ran)} were refused by name (below).",
             f"* **Blocks**: {same['blocks']:,} in one launch on {same['sms_used']} of the tenant's {same['sms']} SMs; outside: "
             f"{same['outside']}.",
             "* **Leaving**: a kernel of 40,000 blocks of 0.5 ms runs, and `partita set` takes 61 of 66 SMs away. "
             f"Milliseconds until the last block there ends, {result['tries']} tries: persistent {spread(result['leaving'][PERSISTENT], 1)}, "
             f"mask {spread(result['leaving'][MASK], 1)}.",
             f"* **The gate**: the same kernel in a tenant of low priority; a launch of high priority waits {spread(result['gate'], 1)} ms.",
             "", "## Cost", "", "Half of the GPU each; microseconds a launch.", "",
             "| kernel | mask | persistent | ratio: median (least–most) |", "|---|---|---|---|"]
    for row in result["costs"]:
        lines.append(f"| {row['kernel']} | {row['mask_us']:.1f} | {row['persistent_us']:.1f} | {spread(row['ratios'])} |")
    others = [one for one in result["samples"] if one not in ran]
    if others:
        lines += ["", "## Samples that differ", "", "| sample | without Partita | persistent | refused |", "|---|---|---|---|"]
        lines += [f"| {one['name']} | {one['bare']} | {one['persistent']} | {one['refused']} |" for one in others]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--samples", type=pathlib.Path, help="a directory of programs with PTX alone, ready to run")
    parser.add_argument("--budget-s", type=float, default=240.0)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    options.partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita
    import triton
    with tempfile.TemporaryDirectory(prefix="persistent") as directory:
        kernels = pathlib.Path(directory) / "kernels.json"
        kernels.write_text(json.dumps(ptx()))
        bench, programs = Bench(options, kernels), {}
        try:
            programs[BARE] = bench.ready(Program(bench.worker, dict(os.environ, CUDA_MPS_PIPE_DIRECTORY="/nonexistent")))
            half = ("--sm", "50%", "--isolation", "own")
            programs[MASK] = bench.start(MASK, *half)
            programs[PERSISTENT] = bench.start(PERSISTENT, *half, "--via", "persistent")
            same = bench.same(programs)
            print(json.dumps(same), file=sys.stderr, flush=True)
            costs = bench.costs(programs)
        finally:
            for program in programs.values():
                program.end()
        half = ("--sm", "50%", "--isolation", "own")
        leaving = {MASK: bench.leaving(MASK, *half), PERSISTENT: bench.leaving(PERSISTENT, *half, "--via", "persistent")}
        gate = bench.gate()
        told = samples(options)
    name = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                          check=True).stdout.strip().splitlines()[0].replace(", ", ", driver ")
    result = {"device": name, "date": datetime.date.today().isoformat(), "rounds": options.rounds, "tries": options.tries,
              "triton": triton.__version__, "same": same, "costs": costs, "leaving": leaving, "gate": gate, "samples": told}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "persistent.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "persistent.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
