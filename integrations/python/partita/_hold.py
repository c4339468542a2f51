"""Partitions for programs that somebody else starts."""

import atexit
import os
import subprocess
import threading
import time as clock
from typing import Dict, Optional, Sequence, Set

from ._command import Size
from ._command import options as words_of
from ._error import Error
from ._run import Process
from ._tenant import Named

# Runs in the tenant until this process ends or closes the pipe.
_KEEPER = "exec cat >/dev/null"
# What a shell sets for itself.
_SHELLS = frozenset(("PWD", "OLDPWD", "SHLVL", "_"))
# Limits of MPS itself, which `partita run` takes out of the environment. A dict cannot.
_LIMITS_OF_MPS = (
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)


def _environment_of(pid: int) -> Dict[str, str]:
    """The environment with which a process was started."""
    while True:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read()
        if content:
            break
        # It is empty for a moment while the process changes its program.
        clock.sleep(0.001)
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


class Hold(Named):
    """A partition that this process holds for programs that somebody else starts; see :func:`hold`."""

    name: str
    """The tenant's name."""
    env: Dict[str, str]
    """The variables that put a program into the partition, beside those of this process."""

    def __init__(self, words: Sequence[str]) -> None:
        """See :func:`hold`; `words` are options of ``partita run``."""
        who = f"held by process {os.getpid()}"
        # Ctrl-C in a terminal reaches all processes of a session.
        self._process = Process(
            ["sh", "-c", _KEEPER, who],
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.name = self._process.name
        self._lock = threading.Lock()
        self._owner = os.getpid()
        try:
            own = dict(os.environ)
            held = _environment_of(self._process.program_pid)
            self.env = {
                key: value for key, value in held.items() if own.get(key) != value and key not in _SHELLS
            }
            left = [key for key in _LIMITS_OF_MPS if key in own and key not in held]
            if left:
                raise Error(
                    f"{', '.join(left)}: programs with this variable get limits of MPS beside those of "
                    "Partita; remove it from os.environ before you call partita"
                )
        except BaseException:
            self.end()
            raise
        # Without a reference the pipe would be closed, and with it the partition.
        _held.add(self)

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Lets go of the partition: it ends now, or with the last program that uses its GPU.

        While there are such programs, :meth:`kill` ends all programs of the partition.
        """
        _held.discard(self)
        with self._lock:
            stdin, self._process.stdin = self._process.stdin, None
        # A child that was forked has a copy; the partition is its parent's.
        if stdin and os.getpid() == self._owner:
            stdin.close()
            self._process.wait()


def hold(
    *,
    sm: Optional[str] = None,
    mem: Optional[Size] = None,
    time: Optional[str] = None,
    priority: Optional[str] = None,
    gpu: Optional[str] = None,
    name: Optional[str] = None,
    options: Sequence[str] = (),
) -> Hold:
    """Makes a partition for programs that somebody else starts.

    >>> import os, partita, subprocess
    >>> with partita.hold(sm="25%", mem="10GiB", name="held") as held:
    ...     done = subprocess.run(["sh", "-c", "test $PARTITA_LEDGER"], env={**os.environ, **held.env})
    ...     done.returncode, held.tenant().sms
    (0, 32)
    >>> partita.tenants()
    []

    All programs that are started with `env` on this machine share the partition's limits. The
    arguments are those of :func:`run`. The partition ends at the end of the ``with`` block, at
    :meth:`Hold.end`, or with this process, however that ends. Programs that use the GPU by then keep
    it until they end. One that has not begun to use it is refused when it does.

    Unlike :func:`run`, this function does not see the programs: a statically linked one is not held.

    :raises Error: with the message of ``partita run``, if the limits cannot be had.
    """
    words = words_of(options, sm=sm, mem=mem, time=time, priority=priority, gpu=gpu, name=name)
    return Hold(words)


def env(
    *,
    sm: Optional[str] = None,
    mem: Optional[Size] = None,
    time: Optional[str] = None,
    priority: Optional[str] = None,
    gpu: Optional[str] = None,
    name: Optional[str] = None,
    options: Sequence[str] = (),
) -> Dict[str, str]:
    """The environment variables of a partition that is held until this process ends.

    For Ray (``runtime_env={"env_vars": partita.env(sm="30%")}``), vLLM, subprocess and everything
    else that takes variables for the programs that it starts.

    >>> import partita
    >>> variables = partita.env(sm="10%", mem="1GiB", name="actors")
    >>> sorted(set(variables) & {"CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "PARTITA_LEDGER"})
    ['CUDA_VISIBLE_DEVICES', 'LD_PRELOAD', 'PARTITA_LEDGER']
    >>> [tenant.kill() for tenant in partita.tenants() if tenant.name == "actors"]
    [None]

    Each call makes one partition, which all programs with its variables share; call it once for
    each program that is to have its own. :func:`hold` does the same with an end of your choice.

    :raises Error: as :func:`hold`.
    """
    return hold(sm=sm, mem=mem, time=time, priority=priority, gpu=gpu, name=name, options=options).env


_held: Set[Hold] = set()


@atexit.register
def _end_all() -> None:
    for held in list(_held):
        held.end()
