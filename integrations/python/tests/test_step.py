"""The steps that a program names."""

import json
import sys
import unittest

import partita
from partita._command import call
from common import EXAMPLES, Case, PIPES

STEPS = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import cuda
import partita
partita.step()
gpu = cuda.Gpu()
for _ in range(5):
    gpu.where()
    partita.step()
print("ready", flush=True)
sys.stdin.read()
"""


class Steps(Case):
    def test_steps_are_counted_in_a_tenant(self) -> None:
        with partita.run([sys.executable, "-B", "-c", STEPS], name="steps", sm="10%", **PIPES) as process:
            assert process.stdin and process.stdout
            self.assertEqual(process.stdout.readline(), "ready\n")
            row = json.loads(call("ps", "steps", "--json"))
            # The call before the process used CUDA does nothing, and the next one begins the first.
            self.assertEqual(row["steps"]["count"], 4)
            self.assertGreaterEqual(row["bursts"]["count"], 5)
            process.stdin.close()
            self.assertEqual(process.wait(), 0)

    def test_nothing_happens_outside_of_a_tenant(self) -> None:
        self.assertIsNone(partita.step())


if __name__ == "__main__":
    unittest.main()
