"""Small copies beside a neighbour that copies all the time, with Partita and without, on a real GPU.

    python3 research/bench/copies/run.py --partita target/dist/partita --out research/bench/results

Without Partita both share one MPS service of the benchmark's own; with it both are tenants with half of the GPU. Every program is started
once and stays, and each round runs every setting once, in a new random order.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cnn"))

from run import Partita, Program, beside, gpu, mps_daemon, percentile  # noqa: E402

COPIER = str(HERE / "copier.py")
VICTIMS_KIB = (64, 4096)
FLOODS = {"none": None, "to the GPU": ("up", "1"), "to the GPU, 4 streams": ("up", "4"), "from the GPU": ("down", "1")}


def measure(options: argparse.Namespace) -> list[dict]:
    runs = []
    partita = Partita(options.partita)
    with contextlib.ExitStack() as stack:
        shared = mps_daemon(stack)

        def start(name: str | None, share: str, *arguments: str) -> Program:
            program = [COPIER, *arguments]
            command = partita.tenant(name, share, program) if name else ["python3", *program]
            started = Program(command, dict(os.environ) if name else shared)
            stack.callback(started.close)
            return started

        programs = {}
        for side in ("MPS", "Partita"):
            tenant = side == "Partita"
            for kib in VICTIMS_KIB:
                programs[side, kib] = start(f"victim-{kib}" if tenant else None, "25%", "victim", str(kib))
            for number, (flood, arguments) in enumerate(FLOODS.items()):
                if arguments:
                    programs[side, flood] = start(f"flood-{number}" if tenant else None, "16%", "flood", *arguments)
        for program in programs.values():
            assert program.line() == "ready"
        settings = [(side, kib, flood) for side in ("MPS", "Partita") for kib in VICTIMS_KIB for flood in FLOODS]
        for number in range(options.rounds):
            random.shuffle(settings)
            for side, kib, flood in settings:
                result, other = beside(programs[side, kib], programs.get((side, flood)), options.seconds)
                told = result["latencies_ms"]
                runs.append({"round": number, "side": side, "kib": kib, "flood": flood, "trips": len(told), "p50_ms": percentile(told, .5),
                             "p99_ms": percentile(told, .99), "gb_per_s": other and other["gb_per_s"]})
    return runs


def text(runs: list[dict], versions: str, options: argparse.Namespace) -> str:
    def of(key: str, side: str, kib: int, flood: str) -> list[float]:
        return [run[key] for run in runs if (run["side"], run["kib"], run["flood"]) == (side, kib, flood)]

    def spread(values: list[float], digits: int) -> str:
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"

    lines = ["# Small copies beside a neighbour that copies all the time", "",
             f"{versions}; {options.rounds} rounds of {options.seconds:g} s a setting. `python3 research/bench/copies/run.py`.", "",
             "The victim copies so much to the GPU, launches a kernel and copies it back, a thousand times a second; the flood copies 256 MiB",
             "at a time. Milliseconds of a round trip, and GB/s of the flood: median of the rounds (least–most).", "",
             "| victim | flood | MPS: p50 | p99 | Partita: p50 | p99 | p50, Partita / MPS | flood, MPS | Partita | Partita / MPS |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for kib in VICTIMS_KIB:
        for flood in FLOODS:
            cells = [spread(of(key, side, kib, flood), 3) for side in ("MPS", "Partita") for key in ("p50_ms", "p99_ms")]
            p50, speed = ([of(key, side, kib, flood) for side in ("Partita", "MPS")] for key in ("p50_ms", "gb_per_s"))
            cells.append(spread([ours / theirs for ours, theirs in zip(*p50)], 2))
            if flood == "none":
                cells += ["-"] * 3
            else:
                cells += [spread(speed[1], 1), spread(speed[0], 1), spread([ours / theirs for ours, theirs in zip(*speed)], 3)]
            lines.append(f"| {kib} KiB | {flood} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    versions = f"{gpu()}, {datetime.date.today()}"
    runs = measure(options)
    report = text(runs, versions, options)
    (options.out / "copies.md").write_text(report)
    (options.out / "copies.json").write_text(json.dumps({"versions": versions, "runs": runs}, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
