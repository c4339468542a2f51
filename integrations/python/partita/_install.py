"""Where the parts of this installation are.

The program ``partita`` belongs to this package if a wheel or a package installed both. Libraries are
beside the program (a build directory) or in ``../lib/partita`` (an installation), as for the program
itself.
``PARTITA_LIB_DIR`` comes first.
"""

import functools
import importlib.metadata
import os
import shutil
from typing import List, Optional

from ._error import NotInstalled

_LIB_DIR = "PARTITA_LIB_DIR"
# Where packages and `install.sh` have this package.
_PACKAGED = "/lib/partita/python/"


@functools.lru_cache(maxsize=None)
def _of_wheel() -> Optional[str]:
    """The program that the wheel of this very package installed."""
    try:
        distribution = importlib.metadata.distribution("partita")
    except importlib.metadata.PackageNotFoundError:
        return None
    module = program = None
    for path in distribution.files or ():
        if path.parts[-2:] == ("partita", "_install.py"):
            module = os.path.realpath(str(path.locate()))
        elif path.parts[-2:] == ("bin", "partita"):
            program = os.path.realpath(str(path.locate()))
    return program if module == os.path.realpath(__file__) else None


def _lib_dirs() -> List[str]:
    given = os.environ.get(_LIB_DIR)
    return [given] if given else []


def program() -> str:
    """The path of the program ``partita``.

    :raises NotInstalled: if it is nowhere.
    """
    wheel = _of_wheel()
    candidates = [os.path.join(dir, "partita") for dir in _lib_dirs()]
    candidates += [wheel] if wheel else []
    if _PACKAGED in os.path.realpath(__file__):
        prefix = os.path.realpath(__file__).rsplit(_PACKAGED, 1)[0]
        candidates.append(os.path.join(prefix, "bin", "partita"))
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    found = shutil.which("partita")
    if found:
        return found
    places = ", ".join([*candidates, "the directories of PATH"])
    raise NotInstalled(
        f"the program partita was not found in {places}; install the wheel or a package of Partita, "
        f"or name the directory of a build in {_LIB_DIR}"
    )


def library(name: str) -> str:
    """The path of a library.

    :raises NotInstalled: if it is nowhere.
    """
    directories = _lib_dirs()
    if not directories:
        beside = os.path.dirname(os.path.realpath(program()))
        directories = [beside, os.path.normpath(os.path.join(beside, "../lib/partita"))]
    for directory in directories:
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            return path
    raise NotInstalled(
        f"{name} was not found in {', '.join(directories)}; install Partita again, or name the "
        f"directory of a build in {_LIB_DIR}"
    )
