"""Calls of the program ``partita``."""

import subprocess
from typing import List, Optional, Sequence, Union

from ._error import Error
from ._install import program

Size = Union[str, int]
"""An amount of memory: text as ``40GiB`` or ``50%``, or bytes."""


def options(
    further: Sequence[str],
    *,
    sm: Optional[str] = None,
    mem: Optional[Size] = None,
    time: Optional[str] = None,
    priority: Optional[str] = None,
    gpu: Optional[str] = None,
    name: Optional[str] = None,
) -> List[str]:
    """The words of the command line for these limits."""
    if isinstance(further, str):
        raise TypeError(f"options must be a list of words, as [{further!r}], not a str")
    size = f"{mem}B" if isinstance(mem, int) else mem
    given = {"sm": sm, "mem": size, "time": time, "priority": priority, "gpu": gpu, "name": name}
    return [f"--{key}={value}" for key, value in given.items() if value is not None] + list(further)


def call(*words: str) -> str:
    """Runs ``partita`` to its end and returns what it printed.

    :raises Error: with its message, if it refuses.
    """
    done = subprocess.run(
        [program(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        prefix = "partita: "
        said = done.stderr.strip()
        raise Error(
            said[len(prefix) :] if said.startswith(prefix) else said or f"exit code {done.returncode}"
        )
    return done.stdout
