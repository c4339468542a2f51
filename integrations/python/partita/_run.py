"""Programs in partitions."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence, Union

from ._command import Size
from ._command import options as words_of
from ._error import Error
from ._install import program
from ._tenant import Named, tenants

if TYPE_CHECKING:
    _Popen = subprocess.Popen[Any]
else:
    _Popen = subprocess.Popen

Word = Union[str, "os.PathLike[str]"]


class _Info:
    """The named pipe of ``partita run --info``."""

    def __enter__(self) -> "_Info":
        self.directory = tempfile.mkdtemp(prefix="partita-")
        self.path = os.path.join(self.directory, "info")
        try:
            os.mkfifo(self.path, 0o600)
            self.file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.file)
        shutil.rmtree(self.directory, ignore_errors=True)

    def line(self, writer: "subprocess.Popen[Any]") -> str:
        """Waits for the line; empty if `writer` has ended without it."""
        poll = select.poll()
        poll.register(self.file, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            has_ended = writer.poll() is not None
            poll.poll(20)
            try:
                line += os.read(self.file, 4096)
            except BlockingIOError:
                pass
            if has_ended and not line.endswith(b"\n"):
                return ""
        return line.decode()


class Process(Named, _Popen):
    """A program in a partition: a :class:`subprocess.Popen` of ``partita run``.

    `poll`, `wait`, `communicate` and the context manager work as there; the exit code is the
    program's own, or 128 and the number of the signal that ended it. `terminate` ends the program's
    work on the GPU first, so that neighbours lose nothing.
    """

    name: str
    """The tenant's name."""
    program_pid: int
    """The process number of the program; `pid` is that of ``partita run``."""

    def __init__(self, command: Sequence[Word], words: Sequence[str], **popen: Any) -> None:
        """See :func:`run`; `words` are options of ``partita run``."""
        if isinstance(command, (str, bytes, os.PathLike)) or not isinstance(command, Iterable):
            raise TypeError("command must be a list of words, as ['python3', 'serve.py']")
        command = list(command)
        if wrong := [word for word in command if not isinstance(word, (str, bytes, os.PathLike))]:
            raise TypeError(f"command has {wrong[0]!r}, which is no word; give texts, as ['sleep', '1']")
        for name in ("args", "executable", "shell"):
            if name in popen:
                raise TypeError(f"{name} is not supported: give the program and its arguments as a list")
        with _Info() as info:
            super().__init__([program(), "run", f"--info={info.path}", *words, "--", *command], **popen)
            try:
                line = info.line(self)
            except BaseException:
                self.terminate()
                self.wait()
                raise
        told = json.loads(line) if line else {}
        if "name" not in told:
            code = self.wait()
            for pipe in (self.stdin, self.stdout, self.stderr):
                if pipe:
                    pipe.close()
            unknown = f"partita run ended with exit code {code}; standard error has its reason"
            raise Error(told.get("error", unknown))
        self.name = told["name"]
        self.program_pid = told["pid"]

    def kill(self, grace: int = 0) -> None:
        """Ends all processes of the tenant without harm to its neighbours, after `grace` seconds.

        SIGKILL to ``partita run`` itself would leave the program to run on.

        :raises Error: if ``partita kill`` cannot.
        """
        # A signal that ends `partita run` itself leaves the program.
        if self.poll() is None or self.returncode < 0 and self._is_there():
            super().kill(grace)

    def _is_there(self) -> bool:
        return any(tenant.name == self.name for tenant in tenants())


def run(
    command: Sequence[Word],
    *,
    sm: Optional[str] = None,
    mem: Optional[Size] = None,
    time: Optional[str] = None,
    priority: Optional[str] = None,
    gpu: Optional[str] = None,
    name: Optional[str] = None,
    options: Sequence[str] = (),
    **popen: Any,
) -> Process:
    """Starts a program in a partition of a GPU, and returns once it runs.

    >>> import partita, subprocess
    >>> with partita.run(["echo", "hello"], sm="10%", stdout=subprocess.PIPE, text=True) as process:
    ...     process.communicate()[0], process.returncode
    ('hello\\n', 0)

    The limits are those of ``partita run``: `sm` is a share of the compute units (``30%``, ``40sm``,
    ``20tpc``, ``gpc:0-2``, ``tpc:0-9``), `mem` device memory (``40GiB`` or bytes), `time` a share of
    GPU time, `priority` is ``high``, ``normal`` or ``low``, `gpu` is a number, a UUID or ``sim:NAME``.
    `options` are further words of that command, as ``["--on-misfit=widen", "--compact"]``. All other
    arguments go to :class:`subprocess.Popen`.

    The partition ends with the program. If this Python process ends first, both stay.

    :raises Error: with the message of ``partita run``, if the limits cannot be had or the program
        cannot run; then nothing is left behind.
    """
    words = words_of(options, sm=sm, mem=mem, time=time, priority=priority, gpu=gpu, name=name)
    return Process(command, words, **popen)
