"""Runs jobs in the seats of a mode, each as a process group that is ended when its time is over."""

import contextlib
import dataclasses
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

LEAVE_LIMIT_S = 5.0
KILL_LIMIT_S = 20.0


@dataclasses.dataclass
class Job:
    """A command that writes a record."""

    suite: str
    command: list[str]
    environment: dict[str, str]
    directory: pathlib.Path
    record: pathlib.Path
    log: pathlib.Path
    limit_s: float
    gpus: int = 1


@dataclasses.dataclass
class Ended:
    """How a job ended."""

    code: int | None
    was_stopped: bool
    seconds: float
    # Lines that Partita wrote to the job's standard error, outside of any test.
    said: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether it ran everything. Of pytest's statuses, 1 means failed tests and 5 no selected tests."""
        return not self.was_stopped and self.code in (0, 1, 5)


class Living:
    """The process groups that this benchmark has started, so that none outlives it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: dict[int, list[str] | None] = {}
        self.is_over = False

    def end(self, pid: int) -> None:
        """Ends a group; a tenant first through Partita, which spares its neighbours."""
        with self.lock:
            before = self.groups.get(pid)
        if before:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(before, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               timeout=KILL_LIMIT_S, check=False)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                return
            end = time.monotonic() + LEAVE_LIMIT_S
            while time.monotonic() < end:
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if not group_lives(pid):
                    return
                time.sleep(0.05)

    def end_all(self) -> None:
        """Ends every group; no further job is started."""
        self.is_over = True
        with self.lock:
            pids = list(self.groups)
        threads = [threading.Thread(target=self.end, args=(pid,)) for pid in pids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def group_lives(pid: int) -> bool:
    """Whether a process of the group is left that is more than a zombie."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, _, group = pathlib.Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == pid and state != "Z":
                    return True
    return False


def run(job: Job, command: list[str], environment: dict[str, str], before_kill: list[str] | None, limit_s: float,
        living: Living) -> Ended:
    """Runs one job to its end, or to the end of its time."""
    begin = time.monotonic()
    with open(job.log, "wb") as log:
        try:
            process = subprocess.Popen(command, cwd=job.directory, env={**environment, **job.environment}, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return Ended(None, False, 0.0, [f"not started: {error}"])
    with living.lock:
        living.groups[process.pid] = before_kill
    was_stopped = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        was_stopped = True
    was_stopped = was_stopped or living.is_over
    # Also after an end in order: what the job left behind would disturb the next one.
    if was_stopped or group_lives(process.pid):
        living.end(process.pid)
    process.wait()
    with living.lock:
        del living.groups[process.pid]
    text = job.log.read_bytes().decode(errors="replace")
    said = list(dict.fromkeys(line for line in text.splitlines() if line.startswith("partita: ")))
    return Ended(process.returncode, was_stopped, time.monotonic() - begin, said)


def run_all(jobs: list[Job], mode, place, clock, living: Living) -> dict[str, Ended]:
    """Runs jobs in a mode's seats, the next in the list whenever a seat is free; how each ended, by suite. A job for which no
    time is left is not in it."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    ended: dict[str, Ended] = {}
    failures: list[BaseException] = []

    def sit(seat: int) -> None:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            left = clock.left_s()
            if left < LEAVE_LIMIT_S or living.is_over:
                return
            name = f"compat-{os.getpid()}-{mode.key}-{seat}-{job.suite}"
            command, environment, before_kill = place.start(mode, seat, job.gpus, name, job.command)
            try:
                ended[job.suite] = one = run(job, command, environment, before_kill, min(job.limit_s, left), living)
            except BaseException as failure:
                failures.append(failure)
                return
            how = "stopped, its time was over" if one.was_stopped else f"exit status {one.code}"
            print(f"  {mode.key:9} {job.suite:14} {one.seconds:6.1f} s  {how}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=sit, args=(seat,)) for seat in range(len(mode.seats))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return ended
