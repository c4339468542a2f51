"""Table III and figure 14 of «Hardware Compute Partitioning on NVIDIA GPUs», with YOLOv2 in PyTorch or in Darknet on a real GPU.

    python3 research/bench/cnn/run.py --partita target/dist/partita --out research/bench/results [--darknet DIRECTORY]

Every program is started once and stays; each round runs every setting once, in a new random order, so that the settings of a round
are seconds apart. Without partitions the programs share one MPS service of the benchmark's own, with them they are Partita's tenants.
A setting with partitions is compared, round by round, with the network alone on the same TPCs; one without, with the network alone
on the whole GPU.
"""

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FLOODS = {f"faulty, {kind}": [str(HERE / "faulty.py"), kind] for kind in ("compute", "memory")}
# The paper's network and its competitor have eight TPCs.
SLIDE_TPCS = 8


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the samples lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Program:
    """A Python program that works for a number of seconds on command."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)

    def line(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait(timeout=60)}")
        return line.strip()

    def go(self, seconds: float) -> None:
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def result(self) -> dict:
        return json.loads(self.line())

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Partita:
    """The command line of the `partita` under test."""

    def __init__(self, executable: str) -> None:
        self.executable = executable

    def __call__(self, *arguments: str) -> str:
        return subprocess.run([self.executable, *arguments], check=True, capture_output=True, text=True).stdout

    def tenant(self, name: str, wish: str, program: list[str]) -> list[str]:
        return [self.executable, "run", "--name", name, "--sm", wish, "--", "python3", *program]


def mps_daemon(stack: contextlib.ExitStack) -> dict[str, str]:
    """Starts a control daemon of the benchmark's own, that ends with the stack; its clients' environment."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="mps"))
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=directory, CUDA_MPS_LOG_DIRECTORY=directory)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
    stack.callback(subprocess.run, ["nvidia-cuda-mps-control"], input="quit -t 5\n", env=environment, text=True,
                   stdout=subprocess.DEVNULL, check=False, timeout=60)
    return environment


def beside(subject: Program, other: Program | None, seconds: float) -> tuple[dict, dict | None]:
    """Both at work; the other a second longer, around the subject's window."""
    if other:
        other.go(seconds + 1)
    subject.go(seconds)
    return subject.result(), other.result() if other else None


def protection(options: argparse.Namespace, partita: Partita) -> list[dict]:
    """Table III: what the network's images take, by setting."""
    runs = []
    competitors = {"YOLOv2": options.network, **FLOODS}
    with contextlib.ExitStack() as stack:
        shared = mps_daemon(stack)

        def start(command: list[str], environment: dict[str, str]) -> Program:
            program = Program(command, environment)
            stack.callback(program.close)
            return program

        sides = {}
        plain = start(["python3", *options.network], shared)
        kept = start(partita.tenant("network", "50%", options.network), dict(os.environ))
        sides["none"] = plain, {name: start(["python3", *program], shared) for name, program in competitors.items()}
        # The competitors take turns, so that they may have one half of the TPCs in turn as well: one tenant at a time is at work in it.
        for program in (plain, kept, *sides["none"][1].values()):
            assert program.line() == "ready"
        tpcs = json.loads(partita("ps", "--json"))[0]["tpcs"]
        settings = [("none", None), *(("none", name) for name in competitors)]
        for name, program in competitors.items():
            rival = start(partita.tenant("rival", "50%", program), dict(os.environ))
            assert rival.line() == "ready"
            for number in range(options.rounds):
                order = [("partition", None), ("partition", name)] + (settings if name == "YOLOv2" else [])
                random.shuffle(order)
                for partition, competitor in order:
                    subject = plain if partition == "none" else kept
                    other = None if not competitor else rival if partition == "partition" else sides["none"][1][competitor]
                    result, flood = beside(subject, other, options.seconds)
                    runs.append({"round": f"{name} {number}", "partition": partition, "competitor": competitor or "-",
                                 "competitor_done": flood and (flood.get("kernels") or len(flood["latencies_ms"])), **result})
                    told = result["latencies_ms"]
                    print(f"  {partition:10} {competitor or 'alone':16} mean {statistics.mean(told):.3f} p99 {percentile(told, .99):.3f} ms",
                          file=sys.stderr, flush=True)
            rival.close()
    for run in runs:
        run["tpcs"] = tpcs if run["partition"] == "partition" else "all"
    return runs


def slide(options: argparse.Namespace, partita: Partita) -> list[dict]:
    """Figure 14: two networks on eight TPCs, the split moved under them while they run."""
    points = []
    last = SLIDE_TPCS - 1
    with contextlib.ExitStack() as stack:
        first = Program(partita.tenant("first", "tpc:0", options.network), dict(os.environ))
        stack.callback(first.close)
        second = Program(partita.tenant("second", f"tpc:1-{last}", options.network), dict(os.environ))
        stack.callback(second.close)
        assert first.line() == second.line() == "ready"
        at = 1
        for number in range(options.rounds):
            for split in range(1, SLIDE_TPCS):
                moves = [("first", f"tpc:0-{split - 1}"), ("second", f"tpc:{split}-{last}")]
                # The giving one goes first.
                for name, wish in moves if split < at else reversed(moves):
                    partita("set", name, "--sm", wish)
                at = split
                ours, theirs = beside(first, second, options.seconds / 2)
                points.append({"round": number, "first_tpcs": split, "second_tpcs": SLIDE_TPCS - split,
                               "first_ms": ours["latencies_ms"], "second_ms": theirs["latencies_ms"], "same": ours["same"] and theirs["same"]})
    return points


def table(runs: list[dict]) -> list[dict]:
    """A row for each setting."""
    rows = []
    for partition, competitor in dict.fromkeys((run["partition"], run["competitor"]) for run in sorted(
            runs, key=lambda run: (run["partition"] != "none", run["competitor"] != "-"))):
        these = [run for run in runs if (run["partition"], run["competitor"]) == (partition, competitor)]
        pooled = [value for run in these for value in run["latencies_ms"]]
        alone = {run["round"]: run["latencies_ms"] for run in runs if (run["partition"], run["competitor"]) == (partition, "-")}
        pairs = [(statistics.mean(run["latencies_ms"]) / statistics.mean(alone[run["round"]]),
                  percentile(run["latencies_ms"], .99) / percentile(alone[run["round"]], .99)) for run in these]
        means, tails = zip(*pairs)
        rows.append({"partition": partition, "tpcs": these[0]["tpcs"], "competitor": competitor, "rounds": len(these), "images": len(pooled),
                     "mean_ms": statistics.mean(pooled), "deviation_ms": statistics.stdev(pooled), "least_ms": min(pooled),
                     "p50_ms": percentile(pooled, .5), "p99_ms": percentile(pooled, .99), "most_ms": max(pooled),
                     "mean_ratio": [statistics.median(means), min(means), max(means)],
                     "p99_ratio": [statistics.median(tails), min(tails), max(tails)],
                     "answers_unchanged": all(run["same"] for run in these)})
    return rows


def text(rows: list[dict], points: list[dict], versions: str, options: argparse.Namespace) -> str:
    """The report."""
    def ratio(values: list[float]) -> str:
        return f"{values[0]:.3f} ({values[1]:.3f}–{values[2]:.3f})"

    lines = ["# A network beside a faulty one", "",
             f"{versions}; {options.rounds} rounds of {options.seconds:g} s a setting, a competitor at a time. "
             f"`python3 research/bench/cnn/run.py{' --darknet DIRECTORY' if options.darknet else ''}`.", "",
             f"YOLOv2 in {'Darknet' if options.darknet else 'PyTorch'} with random weights, one random image of 416 × 416 again and again, in",
             "milliseconds. Ratios are those of a round's pair, with and without the competitor on the same TPCs: median (least–most). Without",
             "partitions all share one MPS service.", "",
             "| partition | competitor | mean | deviation | least | p50 | p99 | most | mean against alone | p99 against alone | images |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        where = "none" if row["partition"] == "none" else f"TPCs {row['tpcs']}"
        lines.append(f"| {where} | {row['competitor']} | {row['mean_ms']:.3f} | {row['deviation_ms']:.3f} | {row['least_ms']:.3f} | {row['p50_ms']:.3f}"
                     f" | {row['p99_ms']:.3f} | {row['most_ms']:.3f} | {ratio(row['mean_ratio'])} | {ratio(row['p99_ratio'])} | {row['images']} |")
    lines += ["", f"Answers unchanged in every run: {'yes' if all(row['answers_unchanged'] for row in rows) else 'NO'}.", "",
              "## Sliding the split", "", f"Two of the networks on {SLIDE_TPCS} TPCs, both at work, the split moved by `partita set` while they run; mean milliseconds an image.",
              "", "| TPCs of the first | of the second | first | second | rounds |", "|---|---|---|---|---|"]
    for split in range(1, SLIDE_TPCS):
        these = [point for point in points if point["first_tpcs"] == split]
        first = statistics.mean(value for point in these for value in point["first_ms"])
        second = statistics.mean(value for point in these for value in point["second_ms"])
        lines.append(f"| {split} | {SLIDE_TPCS - split} | {first:.2f} | {second:.2f} | {len(these)} |")
    return "\n".join(lines) + "\n"


def gpu() -> str:
    told = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], check=True, capture_output=True, text=True)
    return told.stdout.splitlines()[0].replace(", ", ", driver ")


def pytorch() -> str:
    told = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True).stdout.strip()
    return f"PyTorch {told}"


def darknet(directory: pathlib.Path) -> str:
    """Darknet itself has no version; those of what it uses, then."""
    library = ctypes.CDLL(str(directory.resolve() / "libdarknet.so"))
    version = [ctypes.c_int() for _ in range(3)]
    for part, value in enumerate(version):
        library.cublasGetProperty(part, ctypes.byref(value))
    return f"Darknet with cuBLAS {'.'.join(str(value.value) for value in version)}, {'with' if hasattr(library, 'cudnn_handle') else 'without'} cuDNN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partita", default="partita")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--darknet", type=pathlib.Path, help="directory of libdarknet.so and cfg: that network, and not PyTorch's")
    options = parser.parse_args()
    options.network = [str(HERE / "darknet.py"), str(options.darknet.resolve())] if options.darknet else [str(HERE / "infer.py")]
    partita = Partita(str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita)
    versions = f"{gpu()}, {darknet(options.darknet) if options.darknet else pytorch()}, {datetime.date.today()}"
    runs, points = protection(options, partita), slide(options, partita)
    rows = table(runs)
    report = text(rows, points, versions, options)
    name = "cnn_darknet" if options.darknet else "cnn"
    (options.out / f"{name}.md").write_text(report)
    slid = [{**point, "first_ms": statistics.mean(point["first_ms"]), "second_ms": statistics.mean(point["second_ms"])} for point in points]
    (options.out / f"{name}.json").write_text(json.dumps({"versions": versions, "protection": rows, "slide": slid}, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
