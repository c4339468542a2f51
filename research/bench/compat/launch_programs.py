"""Runs the programs of a plan, several at a time, and records how each ended: the process that is made a tenant for a suite of programs.

    python3 launch_programs.py PLAN

Each program is a separate process group, which is ended on a timeout or when this process must end.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import judge

# The exit code of CUDA's samples when the device lacks the feature.
WAIVED = 2


class Programs:
    """Runs programs and knows those that live."""

    def __init__(self, plan: dict) -> None:
        self.plan = plan
        self.file = open(plan["record"], "ab", buffering=0)
        self.lock = threading.Lock()
        self.living: set[subprocess.Popen] = set()
        self.is_ending = False

    def write(self, **line: object) -> None:
        self.file.write(json.dumps(line).encode() + b"\n")

    def run(self, program: dict) -> None:
        """One program, from its start to its line in the record."""
        name = program["name"]
        with self.lock:
            if self.is_ending:
                return
            self.write(test=name, phase="start")
            try:
                process = subprocess.Popen(program["command"], cwd=program["directory"], stdin=subprocess.DEVNULL,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                           process_group=0)
            except OSError as error:
                self.write(test=name, phase="end", outcome="failed", detail=f"not started: {error}", verdict=[])
                return
            self.living.add(process)
        is_late = False
        try:
            out, errors = process.communicate(timeout=self.plan["limit_s"])
        except subprocess.TimeoutExpired:
            is_late = True
            self.end(process)
            out, errors = process.communicate()
        finally:
            with self.lock:
                self.living.discard(process)
        if self.is_ending:
            return
        outcome = {0: "passed", WAIVED: "skipped"}.get(process.returncode, "failed")
        verdict = judge.verdict(out + "\n" + errors)
        detail = f"no end within {self.plan['limit_s']:g} s" if is_late else f"exit status {process.returncode}"
        if outcome == "failed":
            said_last = [line.strip() for line in (out + "\n" + errors).splitlines()
                         if line.strip() and not line.startswith("partita: ")]
            telling = [line for line in said_last if "error" in line.lower()]
            detail += ": " + (telling or said_last or [""])[-1][:300]
        said = [line for line in errors.splitlines() if line.startswith("partita: ")]
        self.write(test=name, phase="end", outcome=outcome, detail=detail, verdict=verdict, said=list(dict.fromkeys(said))[:5])

    def end(self, process: subprocess.Popen) -> None:
        """Ends a program and what it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def end_all(self, *_: object) -> None:
        """Ends every program, and starts no more."""
        self.is_ending = True
        for process in list(self.living):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        os._exit(1)


def main() -> None:
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
    programs = Programs(plan)
    signal.signal(signal.SIGTERM, programs.end_all)
    with concurrent.futures.ThreadPoolExecutor(plan["workers"]) as workers:
        list(workers.map(programs.run, plan["programs"]))


if __name__ == "__main__":
    main()
