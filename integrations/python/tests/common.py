"""What the tests share: where the examples are, and programs that report what they hold."""

import os
import pathlib
import subprocess
import sys
import time
import unittest
from typing import Any, Dict, Set

import partita

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "python"
sys.path.insert(0, str(EXAMPLES))

# Answers each line that it gets with its total memory and the SMs on which its blocks ran.
ANSWERING = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import cuda
gpu = cuda.Gpu()
for _ in sys.stdin:
    print(gpu.memory()[1], *gpu.where(), flush=True)
"""
PIPES: Dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


class Answering:
    """A program that answers."""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self.process = process
        self.total_bytes = 0

    def sms(self) -> Set[int]:
        """The SMs on which its blocks run now."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin and stdout
        stdin.write("\n")
        stdin.flush()
        total, *sms = stdout.readline().split()
        self.total_bytes = int(total)
        return {int(sm) for sm in sms}

    def end(self) -> int:
        """Its exit code after the end of its input."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code


class Case(unittest.TestCase):
    """A test that leaves no tenant behind."""

    def tearDown(self) -> None:
        # Another process holds what an ended one had on the GPU, for a moment.
        deadline = time.monotonic() + 60
        while partita.tenants():
            if time.monotonic() > deadline:
                names = [tenant.name for tenant in partita.tenants()]
                for tenant in partita.tenants():
                    tenant.kill(0)
                self.fail(f"{names} are left")
            time.sleep(0.05)

    def answering(self, **limits: Any) -> Answering:
        """The program in a partition of its own."""
        process = partita.run([sys.executable, "-B", "-c", ANSWERING], **limits, **PIPES)
        return Answering(process)


def sms_of(tenant: partita.Tenant) -> Set[int]:
    """The SMs of its TPCs, on GPUs with two SMs a TPC."""
    assert tenant.tpcs is not None
    return {sm for tpc in tenant.tpcs for sm in (2 * tpc, 2 * tpc + 1)}


def example(name: str) -> str:
    """Runs an example and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-B", str(EXAMPLES / name)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    if done.returncode:
        raise AssertionError(f"{name}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
