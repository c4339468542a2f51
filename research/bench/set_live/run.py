"""`partita set` on a running PyTorch program: its SMs by census, and its throughput, before and after each change.

    python3 research/bench/set_live/run.py --partita target/dist/partita --out research/bench/results

The tenant runs by itself (`--isolation own`), where the SM numbers that blocks see are the device's.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
SHARES = ["100%", "50%", "20%", "10%", "1tpc", "33tpc", "100%"]


def sms_of(tpcs: str) -> list[int]:
    """The SMs of TPCs given as ranges."""
    numbers = []
    for part in tpcs.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return [sm for tpc in numbers for sm in (2 * tpc, 2 * tpc + 1)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partita", default="partita")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    options = parser.parse_args()
    partita = str(pathlib.Path(options.partita).resolve()) if "/" in options.partita else options.partita

    def call(*arguments: str) -> str:
        return subprocess.run([partita, *arguments], capture_output=True, text=True, check=True).stdout

    worker = subprocess.Popen([partita, "run", "--isolation", "own", "--name", "live", "--sm", SHARES[0], "--",
                               "python3", str(HERE / "worker.py"), "--rounds", "1000"], stdout=subprocess.PIPE, text=True)
    rows = []
    try:
        worker.stdout.readline()
        for share in SHARES:
            if rows:
                call("set", "live", "--sm", share)
            # The round in which the change fell is of neither setting.
            changed = time.monotonic()
            rounds = []
            while len(rounds) < 5:
                line = json.loads(worker.stdout.readline())
                if line["at"] > changed and (rounds or line["at"] - changed > 0):
                    rounds.append(line)
            rounds = rounds[1:]
            tpcs = json.loads(call("ps", "--json"))[0]["tpcs"]
            expected = sms_of(tpcs)
            outside = sum(sm not in expected for line in rounds for sm in line["sms"])
            rows.append({"share": share, "sms_promised": len(expected),
                         "sms_seen": sorted({len(line["sms"]) for line in rounds}), "outside": outside,
                         "tflops": statistics.median(line["tflops"] for line in rounds), "rounds": len(rounds)})
    finally:
        subprocess.run([partita, "kill", "live"], check=False, stdout=subprocess.DEVNULL)
        worker.stdout.close()
        worker.wait()
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                           capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    today = datetime.date.today().isoformat()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "set_live.json").write_text(json.dumps({"device": query, "date": today, "rows": rows}, indent=1) + "\n")
    lines = [f"# `partita set` on a running PyTorch program\n\n{query}, {today}; one process throughout, census and fp16 products "
             "of 8192 x 8192 after each change.\n", "| set to | SMs promised | SMs that blocks ran on | blocks elsewhere | TFLOP/s |",
             "|---|---|---|---|---|"]
    for row in rows:
        seen = "/".join(map(str, row["sms_seen"]))
        lines.append(f"| {row['share']} | {row['sms_promised']} | {seen} | {row['outside']} | {row['tflops']:.0f} |")
    text = "\n".join(lines) + "\n"
    (options.out / "set_live.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
