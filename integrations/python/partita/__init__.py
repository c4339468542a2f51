"""Partita from Python: share one NVIDIA GPU between programs that need no changes.

>>> import partita
>>> serve = partita.run(["sleep", "60"], name="serve", sm="25%", mem="10GiB")
>>> serve.tenant().sms, serve.tenant().sms_of_device
(32, 132)
>>> serve.set(sm="50%").sms
66
>>> [tenant.name for tenant in partita.tenants()]
['serve']
>>> serve.kill()
>>> serve.wait()
143

:func:`run` starts a program in a partition, :func:`hold` and :func:`env` make one for programs that
others start, :func:`current` is the partition of this process, and :func:`mask` keeps the launches of
a stream on chosen TPCs. A TPC is two SMs. :func:`step` names the program's own unit of work.

The package needs only the standard library. It runs the program ``partita`` and loads
``libsmctrl.so`` of the same installation.
"""

from ._error import Error, NotInstalled
from ._hold import Hold, env, hold
from ._mask import mask
from ._run import Process, run
from ._step import step
from ._tenant import Part, Tenant, current, tenants

__all__ = [
    "Error",
    "Hold",
    "NotInstalled",
    "Part",
    "Process",
    "Tenant",
    "current",
    "env",
    "hold",
    "mask",
    "run",
    "step",
    "tenants",
]
