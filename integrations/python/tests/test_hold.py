"""Partitions for programs that somebody else starts."""

import gc
import os
import signal
import subprocess
import sys
import time
import unittest

import partita

from common import ANSWERING, PIPES, Answering, Case, sms_of

# Holds a partition until it is killed.
HOLDER = (
    "import partita, sys; partita.env(sm='25%', mem='1GiB', name='held'); print(flush=True); sys.stdin.read()"
)


class Held(Case):
    def start(self, held: partita.Hold) -> Answering:
        command = [sys.executable, "-B", "-c", ANSWERING]
        return Answering(subprocess.Popen(command, env={**os.environ, **held.env}, **PIPES))

    def test_all_programs_with_its_variables_share_it(self) -> None:
        with partita.hold(sm="25%", mem="10GiB", name="held") as held:
            programs = [self.start(held), self.start(held)]
            for program in programs:
                self.assertEqual(program.sms(), sms_of(held.tenant()))
                self.assertEqual(program.total_bytes, 10 << 30)
            pids = {program.process.pid for program in programs}
            self.assertEqual(set(held.tenant().processes), pids)
            self.assertEqual(held.set(sm="50%").sms, 66)
            self.assertEqual(programs[0].sms(), sms_of(held.tenant()))
            self.assertEqual([program.end() for program in programs], [0, 0])
        # Again, which does nothing.
        held.end()

    def test_a_program_that_still_runs_keeps_it(self) -> None:
        with partita.hold(sm="25%", mem="10GiB") as held:
            program = self.start(held)
            before = program.sms()
        self.assertEqual(held.tenant().processes, (program.process.pid,))
        self.assertEqual(program.sms(), before)
        held.kill()
        program.end()

    def test_it_ends_with_a_process_that_is_killed(self) -> None:
        command = [sys.executable, "-B", "-c", HOLDER]
        for end in (signal.SIGKILL, signal.SIGINT, None):
            with subprocess.Popen(command, stderr=subprocess.DEVNULL, **PIPES) as owner:
                assert owner.stdout and owner.stdin
                owner.stdout.readline()
                self.assertEqual([tenant.name for tenant in partita.tenants()], ["held"])
                if end:
                    owner.send_signal(end)
                else:
                    owner.stdin.close()
                owner.wait()
                while end == signal.SIGKILL and partita.tenants():
                    time.sleep(0.01)
            self.assertEqual(partita.tenants(), [])

    def test_variables_are_only_those_that_differ(self) -> None:
        with partita.hold(mem="1GiB", sm="10%") as held:
            self.assertLessEqual({"LD_PRELOAD", "PARTITA_LEDGER", "CUDA_VISIBLE_DEVICES"}, set(held.env))
            self.assertFalse({"PWD", "SHLVL", "_", "HOME", "PYTHONPATH"} & set(held.env))
            self.assertTrue(all(type(value) is str for value in held.env.values()))

    def test_it_lasts_without_a_reference_to_it(self) -> None:
        variables = partita.hold(sm="10%", mem="1GiB", name="held").env
        gc.collect()
        self.assertTrue(os.path.isdir(variables["PARTITA_LEDGER"]))
        self.assertEqual([tenant.name for tenant in partita.tenants()], ["held"])
        partita.tenants()[0].kill(0)

    def test_limits_of_mps_in_the_environment_are_refused(self) -> None:
        name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
        os.environ[name] = "50"
        try:
            with self.assertRaisesRegex(partita.Error, f"{name}.*remove it"):
                partita.hold(mem="1GiB", sm="10%")
        finally:
            del os.environ[name]

    def test_the_partition_of_a_process_is_its_current_one(self) -> None:
        self.assertIsNone(partita.current())
        code = (
            "import partita; held = partita.current(); print(held.name, held.sms, held.memory_quota_bytes);"
            "print(held.set(sm='10%').sms, partita.current().sms)"
        )
        with partita.hold(sm="25%", mem="1GiB", name="inner") as held:
            environment = {**os.environ, **held.env}
            command = [sys.executable, "-B", "-c", code]
            said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            self.assertEqual(said.stdout.split(), ["inner", "32", str(1 << 30), "12", "12"])
            with self.assertRaisesRegex(subprocess.CalledProcessError, "exit status 1"):
                nested = [sys.executable, "-B", "-c", "import partita; partita.hold(sm='5%')"]
                subprocess.run(nested, env=environment, stderr=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    unittest.main()
