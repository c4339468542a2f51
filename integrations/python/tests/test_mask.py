"""Masks for the launches of a stream, outside of tenants and inside of one."""

import subprocess
import sys
import threading
import unittest
from types import SimpleNamespace
from typing import Iterable, Set

import partita

from common import EXAMPLES, Case  # First: it makes `cuda` importable.

import cuda

IN_TENANT = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import cuda, partita
gpu, held = cuda.Gpu(), partita.current()
stream = gpu.stream()
with partita.mask(stream, tpcs=[held.tpcs[0], *set(range(66)) - set(held.tpcs)]):
    print({{sm // 2 for sm in gpu.where(stream)}} == {{held.tpcs[0]}})
with partita.mask(stream, tpcs=set(range(66)) - set(held.tpcs)):
    print({{sm // 2 for sm in gpu.where(stream)}} == set(held.tpcs))
"""


def sms(tpcs: Iterable[int]) -> Set[int]:
    return {sm for tpc in tpcs for sm in (2 * tpc, 2 * tpc + 1)}


class Mask(Case):
    gpu: cuda.Gpu

    @classmethod
    def setUpClass(cls) -> None:
        cls.gpu = cuda.Gpu()

    def test_only_launches_of_the_stream_and_in_the_block_are_masked(self) -> None:
        stream, other = self.gpu.stream(), self.gpu.stream()
        everything = set(self.gpu.where(other))
        self.assertEqual(len(everything), 132)
        with partita.mask(stream, tpcs="0-2,64") as masked:
            self.assertEqual(masked.tpcs, (0, 1, 2, 64))
            self.assertEqual(set(self.gpu.where(stream)), sms((0, 1, 2, 64)))
            self.assertEqual(set(self.gpu.where(other)), everything)
        self.assertEqual(set(self.gpu.where(stream)), everything)

    def test_blocks_nest_also_when_they_end_in_another_order(self) -> None:
        stream = self.gpu.stream()
        outer, inner = partita.mask(stream, tpcs=[1]), partita.mask(stream, tpcs=[2])
        with outer, inner:
            self.assertEqual(set(self.gpu.where(stream)), sms([2]))
            self.assertRaises(RuntimeError, outer.__enter__)
        outer.__enter__()
        inner.__enter__()
        outer.__exit__()
        self.assertEqual(set(self.gpu.where(stream)), sms([2]))
        inner.__exit__()
        self.assertEqual(len(self.gpu.where(stream)), 132)

    def test_an_exception_ends_the_mask(self) -> None:
        stream = self.gpu.stream()
        with self.assertRaises(ZeroDivisionError), partita.mask(stream, tpcs=[1]):
            1 / 0
        self.assertEqual(len(self.gpu.where(stream)), 132)

    def test_all_launches_of_the_process(self) -> None:
        stream, found = self.gpu.stream(), []

        def launch() -> None:
            self.gpu.enter()
            found.append(set(self.gpu.where()))

        with partita.mask(None, tpcs=range(4)), partita.mask(stream, tpcs=[9]):
            thread = threading.Thread(target=launch)
            thread.start()
            thread.join()
            found.append(set(self.gpu.where(stream)))
        self.assertEqual(found, [sms(range(4)), sms([9])])
        self.assertEqual(len(self.gpu.where()), 132)

    def test_streams_of_libraries(self) -> None:
        handle = self.gpu.stream()
        for stream in (
            SimpleNamespace(cuda_stream=handle, __class__="torch"),
            SimpleNamespace(ptr=handle),
            SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
            SimpleNamespace(__cuda_stream__=(0, handle)),
            handle,
        ):
            with partita.mask(stream, tpcs=[3]):
                self.assertEqual(set(self.gpu.where(handle)), sms([3]))
        for wrong in ("stream", object(), 1.5):
            with self.assertRaisesRegex(TypeError, "is no stream: give"):
                partita.mask(wrong, tpcs=[3])

    def test_what_cannot_be_masked_is_refused(self) -> None:
        for tpcs in ((), [-1], [256], "3-1", "a", ""):
            with self.assertRaises(ValueError):
                partita.mask(self.gpu.stream(), tpcs=tpcs)
        for text in ("0-", "0,", "gpc:0", "10%"):
            with self.assertRaisesRegex(ValueError, "not a list of numbers"):
                partita.mask(self.gpu.stream(), tpcs=text)
        # At once, without a list of them.
        with self.assertRaisesRegex(ValueError, "no TPC 100000000000"):
            partita.mask(self.gpu.stream(), tpcs="0-100000000000")
        for wrong in (3, ["a"], [0.5]):
            with self.assertRaisesRegex(TypeError, "tpcs"):
                partita.mask(self.gpu.stream(), tpcs=wrong)
        with self.assertRaisesRegex(partita.Error, "default stream"), partita.mask(0, tpcs=[1]):
            pass
        # A TPC that this GPU does not have.
        with self.assertRaisesRegex(partita.Error, "TPC"), partita.mask(self.gpu.stream(), tpcs=[200]):
            pass

    def test_in_a_tenant_masks_only_narrow(self) -> None:
        with partita.run(
            [sys.executable, "-B", "-c", IN_TENANT], sm="25%", mem="1GiB", stdout=subprocess.PIPE, text=True
        ) as process:
            self.assertEqual(process.communicate()[0].split(), ["True", "True"])


if __name__ == "__main__":
    unittest.main()
