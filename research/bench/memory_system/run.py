"""What tenants share between their SMs and memory: latencies, bandwidths, and what each place of a neighbour costs.

    python3 research/bench/memory_system/run.py --partita target/release/partita --out research/bench/results

Needs nvcc and a GPU that nobody else uses; `partita topology` tells where the SMs are. No partition is used: one process
has a block on each SM, which loads or idles. Medians of --rounds runs, whose jobs are in a new random order each.
"""

import argparse
import datetime
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
IDLE, CHASE, LOAD_CACHE, LOAD_MEMORY, ADD = range(5)
LINE = 128
# Of what one SM chases: in the L2 cache, and beyond it.
IN_CACHE, IN_MEMORY = 8 << 20, 4 << 30


def size(count: int) -> str:
    """A number of bytes as people write it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


class Gpu:
    """Where the SMs are."""

    def __init__(self, topology: dict) -> None:
        self.sms, self.driver = topology["sms"], topology["driver_version"]
        per_tpc = topology["sms_per_tpc"]
        sms_of = lambda tpcs: [tpc * per_tpc + i for tpc in tpcs if tpc is not None for i in range(per_tpc)]
        self.gpcs = [{"half": gpc["ugpu"], "cpcs": [sms_of(cpc["places"]) for cpc in gpc["cpcs"]]} for gpc in topology["gpcs"]]

    def of(self, gpc: int) -> list[int]:
        """The SMs of a GPC."""
        return [sm for cpc in self.gpcs[gpc]["cpcs"] for sm in cpc]

    def spread(self, count: int) -> list[int]:
        """So many SMs, evenly over the GPCs."""
        ranks = [(rank, sm) for gpc in range(len(self.gpcs)) for rank, sm in enumerate(self.of(gpc))]
        return [sm for _, sm in sorted(ranks)[:count]]


def jobs_of(gpu: Gpu) -> dict[tuple, tuple]:
    """Every job by its name: mode, bytes, first line, roles."""

    def roles(**sets: list[int]) -> list[int]:
        row = [IDLE] * gpu.sms
        for name, role in (("cache", LOAD_CACHE), ("memory", LOAD_MEMORY), ("add", ADD), ("chase", CHASE)):
            for sm in sets.get(name, []):
                row[sm] = role
        return row

    jobs = {}
    one = gpu.gpcs[1]["cpcs"][0]
    victim = one[0]
    for footprint in [1 << shift for shift in range(14, 35)] + [3 << shift for shift in range(16, 26)]:
        jobs["latency", footprint] = ("cached", footprint, 0, roles(chase=[victim]))
    for line in (0, 1, 2, 3, 5, 9, 17, 33):
        for sm in range(0, gpu.sms, 2):
            jobs["line", line, sm] = ("same", 1 << 20, line, roles(chase=[sm]))
    first = gpu.of(1)
    packed = {"1 SM": one[:1], "1 TPC": one[:2], "1 CPC": one, "1 GPC": first}
    for count in (2, 4):
        packed[f"{count} GPCs"] = [sm for gpc in range(1, 1 + count) for sm in gpu.of(gpc)]
    packed["all"] = list(range(gpu.sms))
    for name, sms in packed.items():
        for where, chosen in (("packed", sms), ("spread", gpu.spread(len(sms)))):
            jobs["bandwidth", name, len(sms), where, "cache"] = ("level2", LINE, 0, roles(cache=chosen))
            jobs["bandwidth", name, len(sms), where, "memory"] = ("level2", LINE, 0, roles(memory=chosen))
    same = [gpc for gpc in range(len(gpu.gpcs)) if gpc != 1 and gpu.gpcs[gpc]["half"] == gpu.gpcs[1]["half"]]
    other = [gpc for gpc in range(len(gpu.gpcs)) if gpu.gpcs[gpc]["half"] != gpu.gpcs[1]["half"]]
    places = {
        "nobody": [],
        "the other SM of its TPC": one[1:2],
        "the rest of its CPC": one[2:],
        "the rest of its GPC": [sm for sm in first if sm not in one],
        "a GPC of its half": gpu.of(same[0]) if same else [],
        "a GPC of the other half": gpu.of(other[0]) if other else [],
        "all other GPCs": [sm for sm in range(gpu.sms) if sm not in first],
        "all other SMs": [sm for sm in range(gpu.sms) if sm != victim],
    }
    for place, sms in places.items():
        for what in ("cache", "memory", "add"):
            for footprint in (IN_CACHE, IN_MEMORY):
                if sms or what == "cache":
                    sets = {"chase": [victim], what: sms}
                    jobs["beside", place, len(sms), what, footprint] = ("level2", footprint, 0, roles(**sets))
    return jobs


def measure(program: pathlib.Path, jobs: dict, limit: float) -> tuple[str, dict]:
    """Runs every job once, in random order."""
    order = list(jobs)
    random.shuffle(order)
    text = ""
    for name in order:
        mode, footprint, first, roles = jobs[name]
        text += f"{mode} {footprint // LINE} {first} {' '.join(map(str, roles))}\n"
    ran = subprocess.run([program], input=text, capture_output=True, text=True, timeout=limit)
    if ran.returncode != 0:
        raise RuntimeError(f"memory_system ended with {ran.returncode}: {ran.stderr}")
    head, *answers = ran.stdout.splitlines()
    return head, dict(zip(order, map(float, answers), strict=True))


def page(head: str, gpu: Gpu, rounds: list[dict], date: str) -> str:
    """The page of results."""
    median = lambda name: statistics.median(one[name] for one in rounds)
    spread = lambda name: f"{min(one[name] for one in rounds):.0f}–{max(one[name] for one in rounds):.0f}"
    names = list(rounds[0])
    rows = ["# Between the SMs and memory", "",
            f"{head}, driver {gpu.driver}, {date}; `research/bench/memory_system`, medians of {len(rounds)} runs (least–most).", "",
            "## Latency of a load by how much one SM visits", "", "| footprint | ns a load |", "|---|---|"]
    for name in sorted(name for name in names if name[0] == "latency"):
        rows.append(f"| {size(name[1])} | {median(name):.0f} ({spread(name)}) |")
    rows += ["", "## Latency of one line in the L2 cache from each TPC", "",
             "| line | half 0 | half 1 |", "|---|---|---|"]
    for line in sorted({name[1] for name in names if name[0] == "line"}):
        cells = []
        for half in (0, 1):
            sms = {sm for gpc in range(len(gpu.gpcs)) if gpu.gpcs[gpc]["half"] == half for sm in gpu.of(gpc)}
            values = [median(name) for name in names if name[0] == "line" and name[1] == line and name[2] in sms]
            cells.append(f"{statistics.median(values):.0f} ({min(values):.0f}–{max(values):.0f})" if values else "")
        rows.append(f"| {line} | {' | '.join(cells)} |")
    rows += ["", "## Bandwidth by number and place of SMs, GB/s", "",
             "| SMs | in | L2 cache, packed | spread | memory, packed | spread |", "|---|---|---|---|---|---|"]
    for name, count in dict.fromkeys((name[1], name[2]) for name in sorted(names, key=lambda name: name[2] if name[0] == "bandwidth" else 0)
                                     if name[0] == "bandwidth"):
        cells = [f"{median(('bandwidth', name, count, where, what)):.0f}" for what in ("cache", "memory") for where in ("packed", "spread")]
        rows.append(f"| {count} | {name} | {' | '.join(cells)} |")
    rows += ["", "## One SM's loads beside others that load, ns a load", "",
             "«Cache» is a footprint of 8 MiB, «memory» one of 4 GiB. The columns say what the other SMs do.", "",
             "| the others | SMs | cache: loads from the cache | from memory | atomic adds | memory: loads from the cache | from memory | atomic adds |",
             "|---|---|---|---|---|---|---|---|"]
    for place, count in dict.fromkeys((name[1], name[2]) for name in names if name[0] == "beside"):
        cells = []
        for footprint in (IN_CACHE, IN_MEMORY):
            for what in ("cache", "memory", "add"):
                name = ("beside", place, count, what, footprint)
                cells.append(f"{median(name):.0f} ({spread(name)})" if name in rounds[0] else "")
        rows.append(f"| {place} | {count} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Compiles, measures, writes the page and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita", help="the program to ask where the SMs are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120, help="seconds that a round may take")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the directory for memory_system.md and .json")
    options = parser.parse_args()
    topology = json.loads(subprocess.run([options.partita, "topology", "--json"], capture_output=True, check=True, timeout=120).stdout)
    gpu = Gpu(topology)
    jobs = jobs_of(gpu)
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory) / "memory_system"
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", "-o", program, HERE / "memory_system.cu"], check=True, timeout=300)
        rounds = []
        for _ in range(options.rounds):
            head, answers = measure(program, jobs, options.limit)
            rounds.append({name: answers[name] for name in jobs})
    numbers = {"gpu": head, "driver": gpu.driver, "jobs": [[list(name), [one[name] for one in rounds]] for name in jobs]}
    (options.out / "memory_system.json").write_text(json.dumps(numbers) + "\n")
    text = page(head, gpu, rounds, datetime.date.today().isoformat())
    (options.out / "memory_system.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
