"""Tenants as they are now, and what can be done to them."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._command import Size, call, options
from ._error import Error


class Named:
    """What has the name of a tenant."""

    name: str

    def set(
        self,
        *,
        sm: Optional[str] = None,
        mem: Optional[Size] = None,
        time: Optional[str] = None,
        priority: Optional[str] = None,
        options: Sequence[str] = (),
    ) -> "Tenant":
        """Changes limits while the programs run, and returns the tenant with the new ones.

        The limits hold from the next launch and the next allocation on. The arguments are those of
        ``partita set``, where `options` are further words of that command.

        :raises Error: if a limit cannot be had. Then all limits stay as they were.
        """
        call("set", self.name, *_options(options, sm=sm, mem=mem, time=time, priority=priority))
        return find(self.name)

    def tenant(self) -> "Tenant":
        """What the tenant holds now.

        :raises Error: if it has ended.
        """
        return find(self.name)

    def kill(self, grace: int = 5) -> None:
        """Ends all processes of the tenant without harm to its neighbours, as ``partita kill``.

        The processes get SIGTERM, and SIGKILL after `grace` seconds.

        :raises Error: if the tenant belongs to another user. One that has ended is no error.
        """
        try:
            call("kill", self.name, f"--grace={grace}")
        except Error:
            if any(tenant.name == self.name for tenant in tenants()):
                raise


_options = options


@dataclass(frozen=True)
class Part:
    """What a tenant holds on one GPU."""

    gpu: str
    """The GPU's short name."""
    sms: Optional[int]
    """How many SMs it may use at most."""
    sms_of_device: Optional[int]
    """How many SMs the GPU has."""
    tpcs: Optional[Tuple[int, ...]]
    """Its TPCs, in the numbering of :func:`partita.mask`; None if it may use all."""
    memory_used_bytes: Optional[int]
    """Device memory that its processes hold. Other users' tenants may keep it to themselves."""
    memory_quota_bytes: Optional[int]
    """Device memory that they may hold together; None without a quota."""
    row: Mapping[str, Any] = field(repr=False, compare=False)
    """Everything that ``partita ps --json`` prints about it."""


@dataclass(frozen=True)
class Tenant(Named):
    """A tenant at the moment of the call that returned it; call :meth:`tenant` for a later one.

    `sms`, `sms_of_device`, `tpcs`, `memory_used_bytes` and `memory_quota_bytes` are those of its first
    GPU; `parts` has all GPUs.
    """

    name: str
    user: str
    """Its owner."""
    priority: Optional[str]
    """``high``, ``normal`` or ``low``."""
    time_percent: Optional[float]
    """Its share of the GPU's time; None without a limit."""
    processes: Tuple[int, ...]
    """The numbers of its processes that use the GPU."""
    parts: Tuple[Part, ...]

    @property
    def gpu(self) -> str:
        """See :class:`Part`."""
        return self.parts[0].gpu

    @property
    def sms(self) -> Optional[int]:
        """See :class:`Part`."""
        return self.parts[0].sms

    @property
    def sms_of_device(self) -> Optional[int]:
        """See :class:`Part`."""
        return self.parts[0].sms_of_device

    @property
    def tpcs(self) -> Optional[Tuple[int, ...]]:
        """See :class:`Part`."""
        return self.parts[0].tpcs

    @property
    def memory_used_bytes(self) -> Optional[int]:
        """See :class:`Part`."""
        return self.parts[0].memory_used_bytes

    @property
    def memory_quota_bytes(self) -> Optional[int]:
        """See :class:`Part`."""
        return self.parts[0].memory_quota_bytes


# TPCs of a device at most.
TPCS_MAX = 256


def tpc(number: int) -> int:
    """The number of a TPC, as it is.

    :raises ValueError: if no device has it.
    """
    if not 0 <= number < TPCS_MAX:
        raise ValueError(f"there is no TPC {number}; name TPCs from 0 to {TPCS_MAX - 1}")
    return number


def numbers(text: str) -> Tuple[int, ...]:
    """The numbers of TPCs in a text like ``0-3,7``.

    :raises ValueError: if it is something else, or no device has one of them.
    """
    found: List[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f"tpcs={text!r} is not a list of numbers; write it as '0-9,12'")
        begin, end = int(first), tpc(int(last if dash else first))
        if begin > end:
            raise ValueError(f"{word!r} is no range of numbers; write the smaller one first")
        found.extend(range(begin, end + 1))
    return tuple(found)


def _part(row: Mapping[str, Any]) -> Part:
    tpcs = row["tpcs"]
    return Part(
        gpu=row["gpu"],
        sms=row["sms"],
        sms_of_device=row["sms_of_device"],
        tpcs=None if tpcs in (None, "all") else numbers(tpcs),
        memory_used_bytes=row["memory_used_bytes"],
        memory_quota_bytes=row.get("memory_quota_bytes"),
        row=row,
    )


def _tenant(rows: Sequence[Mapping[str, Any]]) -> Tenant:
    first = rows[0]
    time = first.get("time")
    pids = {process["pid"]: None for row in rows for process in row["processes"]}
    return Tenant(
        name=first["name"],
        user=first["user"],
        priority=first.get("priority"),
        time_percent=time["share_percent"] if time else None,
        processes=tuple(pids),
        parts=tuple(_part(row) for row in rows),
    )


def tenants() -> List[Tenant]:
    """The tenants of this machine, as ``partita ps``.

    :raises Error: if the list cannot be read.
    """
    grouped: Dict[Tuple[str, str], List[Mapping[str, Any]]] = {}
    for row in json.loads(call("ps", "--json")):
        grouped.setdefault((row["user"], row["name"]), []).append(row)
    return [_tenant(rows) for rows in grouped.values()]


def find(name: str) -> Tenant:
    """The tenant of this name.

    :raises Error: if there is none.
    """
    present = tenants()
    for tenant in present:
        if tenant.name == name:
            return tenant
    names = ", ".join(tenant.name for tenant in present) or "none"
    raise Error(f"there is no tenant {name}: it has ended, or was never started; running: {names}")


def current() -> Optional[Tenant]:
    """The tenant that this process runs in, with what it really holds; None outside of tenants.

    >>> import partita
    >>> partita.current() is None
    True

    Inside of a tenant, ``partita.current().set(sm="20%")`` changes its own limits.

    :raises Error: if the tenant's files cannot be read.
    """
    try:
        answer = json.loads(call("ps", f"--pid={os.getpid()}", "--json"))
    except Error as error:
        if "is of no tenant" in str(error):
            return None
        raise
    return _tenant(answer if isinstance(answer, list) else [answer])
