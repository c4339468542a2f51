"""The ways in which a suite is run: without Partita, and as tenants of every kind."""

import dataclasses
import os
import pathlib

HALF = ("--sm", "50%")


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to run programs. It has a seat for each that runs at the same time; a seat is the options of `partita run`."""

    key: str
    title: str
    seats: tuple[tuple[str, ...], ...]
    # Whether its programs are clients of an MPS service.
    is_shared: bool = True


BARE, MPS, HAMI = "bare", "mps", "hami"
TENANTS = (
    Mode("mask", "`--sm 50%`, two at a time", (HALF, HALF)),
    Mode("priority", "`--sm 50% --priority high` beside `low`", ((*HALF, "--priority", "high"), (*HALF, "--priority", "low"))),
    Mode("four", "`--sm 24%`, four at a time", (("--sm", "24%"),) * 4),
    Mode("own", "`--sm 50% --isolation own`, two at a time", ((*HALF, "--isolation", "own"),) * 2, is_shared=False),
    Mode("time", "`--via time --time 50%`, two at a time", (("--via", "time", "--time", "50%"),) * 2, is_shared=False),
    Mode(HAMI, "HAMi's variables, 50 % of cores, 45 % of memory, two at a time", ((), ()), is_shared=False),
    Mode("share", "`--sm 50% --time 50%`, two at a time", ((*HALF, "--time", "50%"),) * 2),
)
KEYS = tuple(mode.key for mode in TENANTS)


def bare(seats: int) -> Mode:
    """Programs without Partita, in turns."""
    return Mode(BARE, "without Partita", ((),) * seats, is_shared=False)


def plain_mps() -> Mode:
    """Plain clients of an MPS service, without Partita: tells its limits from Partita's."""
    return Mode(MPS, "MPS, without Partita", ((), ()))


@dataclasses.dataclass
class Place:
    """The requirements of seats on this machine."""

    partita: str
    preload: pathlib.Path
    work: pathlib.Path
    memory_mib: int
    # The environment of a client of this benchmark's own MPS service.
    mps: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(self, mode: Mode, seat: int, gpus: int, name: str, command: list[str]) -> tuple[list[str], dict[str, str], list[str] | None]:
        """The command line and environment of a program in a seat, and the command that ends it without harm to others."""
        environment = dict(os.environ)
        # No daemon's directory: no client of MPS.
        no_mps = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
        if mode.key == BARE:
            return command, {**environment, **no_mps}, None
        if mode.key == MPS:
            return command, {**environment, **self.mps}, None
        if mode.key == HAMI:
            # Both caches lie in one directory, so the two are disjoint.
            own = {"LD_PRELOAD": str(self.preload), "CUDA_DEVICE_SM_LIMIT": "50",
                   "CUDA_DEVICE_MEMORY_LIMIT": f"{self.memory_mib * 45 // 100}m",
                   "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self.work / "hami" / f"{name}.cache")}
            return command, {**environment, **no_mps, **own}, None
        devices = ["--gpu", ",".join(map(str, range(gpus)))] if gpus > 1 else []
        return [self.partita, "run", "--name", name, *devices, *mode.seats[seat], "--", *command], environment, [self.partita, "kill", name]
