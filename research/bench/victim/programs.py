"""Programs that the benchmark starts: each is heard with a deadline, and ended by its own process number."""

import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import tempfile
import threading
import time

# How long a program may take to leave by itself, and again after each signal.
LEAVE_LIMIT_S = 10.0
# How long `partita kill` may take: it gives a program some seconds before it ends it by force.
KILL_LIMIT_S = 20.0


class Deadline(Exception):
    """The time that the whole benchmark has is over."""


class Failed(Exception):
    """A program did not do what it was started for: its words, or how it ended."""


class Clock:
    """The rest of the benchmark's time."""

    def __init__(self, limit_s: float) -> None:
        self.end = time.monotonic() + limit_s

    def left_s(self) -> float:
        return self.end - time.monotonic()

    def allow(self, wanted_s: float) -> float:
        """The time that a step may take.

        Raises `Deadline` if nothing is left.
        """
        left = self.left_s()
        if left <= 0:
            raise Deadline
        return min(wanted_s, left)


class Program:
    """A program that reads commands and answers, a line each. It has a separate session, so that Ctrl-C reaches it only through us."""

    def __init__(self, command: list[str], environment: dict[str, str], before_kill: list[str] | None = None) -> None:
        self.command, self.before_kill = command, before_kill
        self.errors = tempfile.TemporaryFile(prefix="victim")
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, start_new_session=True)
        self.is_ready = False
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # Only this thread has the stream: another one that closed it would wait for this thread, and so for all holders of the other end.
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.strip())
        self.lines.put(None)

    def hear(self, limit_s: float) -> str:
        """The next line, within a limit."""
        try:
            line = self.lines.get(timeout=limit_s)
        except queue.Empty:
            raise Failed(f"no answer within {limit_s:.0f} s") from None
        if line is None:
            self.lines.put(None)
            raise Failed(self.complaint() or f"it ended with {self._code()}")
        return line

    def _code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(LEAVE_LIMIT_S)
        return None

    def hear_json(self, limit_s: float) -> dict:
        return json.loads(self.hear(limit_s))

    def hear_ready(self, limit_s: float) -> None:
        line = self.hear(limit_s)
        if line != "ready":
            raise Failed(f"it said {line!r} instead of ready")
        self.is_ready = True

    def tell(self, line: str) -> None:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise Failed(self.complaint() or "it has ended") from None

    def complaint(self) -> str:
        """The last line that it wrote to its standard error."""
        # The place in the file is the program's, too: it is not moved.
        text = os.pread(self.errors.fileno(), 1 << 20, 0).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:400] if lines else ""

    def dismiss(self) -> None:
        """Ends its input: it may leave."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.close()

    def end(self) -> None:
        """Ends it, if need be by force; what Partita started is ended through Partita first, which does it without harm to others."""
        self.dismiss()
        orders = [lambda: None, self.process.terminate, lambda: os.killpg(self.process.pid, signal.SIGKILL)]
        if self.before_kill:
            orders.insert(1, lambda: said(self.before_kill, dict(os.environ), KILL_LIMIT_S))
        for order in orders:
            with contextlib.suppress(Failed, ProcessLookupError):
                order()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_LIMIT_S)
                break
        self.errors.close()


def end_all(programs: list[Program]) -> None:
    """Ends programs, all at once."""
    threads = [threading.Thread(target=program.end) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def said(command: list[str], environment: dict[str, str], limit_s: float, told: str | None = None, codes: tuple[int, ...] = (0,)) -> str:
    """The output of a command. Raises `Failed` with its message if it exits with another code, or takes too long."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE if told else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        raise Failed(str(error)) from None
    try:
        out, errors = process.communicate(told, timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.communicate(timeout=LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise Failed(f"{' '.join(command)}: no answer within {limit_s:.0f} s") from None
    if process.returncode not in codes:
        words = errors.strip() or out.strip() or f"ended with {process.returncode}"
        raise Failed(words)
    return out


class Mps:
    """A separate control daemon, whose clients are not tenants."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="mps")
        self.error: str | None = None
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=self.directory.name, CUDA_MPS_LOG_DIRECTORY=self.directory.name)

    def start(self) -> None:
        """Starts it. If that fails, `error` has the reason, for its clients."""
        # The daemon keeps its streams open, so it gets none of ours.
        try:
            process = subprocess.Popen(["nvidia-cuda-mps-control", "-d"], env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            if process.wait(2 * LEAVE_LIMIT_S) != 0:
                self.error = f"nvidia-cuda-mps-control -d ended with {process.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            self.error = str(error)

    def end(self) -> None:
        with contextlib.suppress(Failed):
            said(["nvidia-cuda-mps-control"], self.environment, 3 * LEAVE_LIMIT_S, "quit -t 5\n")
        # If it did not exit, its pid file names the process to end.
        with contextlib.suppress(OSError, ValueError):
            pid = int((pathlib.Path(self.directory.name) / "nvidia-cuda-mps-control.pid").read_text())
            if b"nvidia-cuda-mps-control" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, 9)
        self.directory.cleanup()
