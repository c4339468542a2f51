"""Programs in partitions of their own."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

import partita

from common import Case, sms_of


class Run(Case):
    def test_a_program_holds_what_the_call_says_and_is_resized_while_it_runs(self) -> None:
        program = self.answering(sm="25%", mem=10 << 30, name="one")
        process = program.process
        assert isinstance(process, partita.Process)
        tenant = process.tenant()
        self.assertEqual((process.name, tenant.name, tenant.gpu), ("one", "one", "sim:h200"))
        self.assertEqual((tenant.sms, tenant.sms_of_device, tenant.memory_quota_bytes), (32, 132, 10 << 30))
        self.assertEqual(program.sms(), sms_of(tenant))
        self.assertEqual(program.total_bytes, 10 << 30)
        self.assertEqual(process.tenant().processes, (process.program_pid,))
        self.assertGreater(process.tenant().memory_used_bytes or 0, 0)

        larger = process.set(sm="50%", mem="20GiB")
        self.assertEqual((larger.sms, larger.memory_quota_bytes), (66, 20 << 30))
        self.assertEqual(program.sms(), sms_of(larger))
        self.assertEqual(program.total_bytes, 20 << 30)
        self.assertEqual(program.end(), 0)

    def test_refusals_are_exceptions_with_the_message_of_the_command(self) -> None:
        with tempfile.TemporaryFile() as stderr:
            with self.assertRaisesRegex(partita.Error, "^--sm: ?.*110%|110%.*100") as refused:
                partita.run(["true"], sm="110%", stderr=stderr)
            stderr.seek(0)
            self.assertEqual(stderr.read().decode(), f"partita: {refused.exception}\n")
            for command, why in ((["no-such-program"], "no-such-program"), ([], "")):
                with self.assertRaisesRegex(partita.Error, why):
                    partita.run(command, stderr=stderr)
            # So are mistakes that the parser of the command line finds.
            with self.assertRaisesRegex(partita.Error, "urgent.*--priority.*high, normal, low"):
                partita.run(["true"], priority="urgent", stderr=stderr)
            with partita.run(["sleep", "100"], sm="60%", mem="1GiB", name="taken") as process:
                for limits, why in (({"sm": "60%"}, "does not fit"), ({"name": "taken"}, "taken")):
                    with self.assertRaisesRegex(partita.Error, why):
                        partita.run(["true"], stderr=stderr, **limits)
                with self.assertRaisesRegex(partita.Error, "there is no tenant other"):
                    partita.Tenant("other", "", None, None, (), ()).set(sm="10%")
                with self.assertRaisesRegex(partita.Error, "nothing to change"):
                    process.set()
                self.assertEqual(process.tenant().sms, 78)
                process.terminate()

    def test_mistakes_in_python_are_type_errors(self) -> None:
        for call in (
            lambda: partita.run("sleep 1"),
            lambda: partita.run(["true"], shell=True),
            lambda: partita.run(["true"], sn="10%"),
            lambda: partita.run(["true"], options="--compact"),
        ):
            self.assertRaises(TypeError, call)

    def test_it_is_a_popen(self) -> None:
        code = "import os, sys; print(sys.stdin.read(), os.environ['GREETING'], os.getcwd()); sys.exit(3)"
        command = [sys.executable, "-c", code]
        environment = {**os.environ, "GREETING": "hello"}
        with partita.run(
            command,
            sm="10%",
            mem="1GiB",
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            self.assertEqual(process.communicate("in"), ("in hello /\n", None))
        self.assertEqual(process.returncode, 3)
        # The program inherits none of the package's descriptors.
        with partita.run(
            ["ls", "/proc/self/fd"],
            sm="10%",
            mem="1GiB",
            stdout=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        ) as process:
            said = process.communicate()[0]
        bare = subprocess.run(["ls", "/proc/self/fd"], stdout=subprocess.PIPE, text=True, check=True).stdout
        # Its own lock keeps the tenant alive.
        self.assertLessEqual(len(said.split()), len(bare.split()) + 1, said)

    def test_kill_ends_a_program_that_ignores_signals(self) -> None:
        code = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print(flush=True); time.sleep(1000)"
        )
        process = partita.run([sys.executable, "-c", code], sm="10%", mem="1GiB", stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        process.kill()
        self.assertEqual(process.wait(), 128 + signal.SIGKILL)
        process.stdout.close()
        process.kill()
        with self.assertRaisesRegex(partita.Error, "it has ended"):
            process.tenant()

    def test_further_options_and_all_values_of_a_tenant(self) -> None:
        with partita.run(
            ["sleep", "100"],
            time="30%",
            priority="high",
            mem="1GiB",
            name="timed",
            options=["--on-misfit=widen"],
        ) as process:
            tenant = process.tenant()
            self.assertEqual((tenant.time_percent, tenant.priority), (30.0, "high"))
            self.assertEqual(tenant.parts[0].row["on_misfit"], "widen")
            self.assertEqual(tenant.tpcs, tuple(range(66)))
            self.assertEqual([one.name for one in partita.tenants()], ["timed"])
            process.terminate()
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_a_tenant_on_two_gpus_has_two_parts(self) -> None:
        with partita.run(
            ["sleep", "100"],
            gpu="sim:h200:0,1",
            sm="50%",
            mem="1GiB",
            name="both",
            options=["--isolation=own"],
            env={**os.environ, "PARTITA_SIM_GPUS": "2"},
        ) as process:
            tenant = process.tenant()
            self.assertEqual([part.gpu for part in tenant.parts], ["sim:h200", "sim:h200:1"])
            self.assertEqual([part.sms for part in tenant.parts], [66, 66])
            changed = process.set(sm="25%", options=["--gpu=1"])
            self.assertEqual([part.sms for part in changed.parts], [66, 32])
            self.assertEqual(len(partita.tenants()), 1)
            process.terminate()


if __name__ == "__main__":
    unittest.main()
