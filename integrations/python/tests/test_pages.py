"""What the docstrings and the guide say."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import unittest
from typing import Any

import partita

from common import EXAMPLES, ROOT, Case


def load_tests(_loader: Any, tests: unittest.TestSuite, _pattern: Any) -> unittest.TestSuite:
    names = [module.name for module in pkgutil.iter_modules(partita.__path__, "partita.")]
    modules = [partita, *map(importlib.import_module, names)]
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [doctest.DocTestCase(one) for module in modules for one in finder.find(module) if one.examples]
    assert len(found) >= 5, "the docstrings have lost their examples"
    tests.addTests(found)
    return tests


class Guide(Case):
    def test_its_examples_run(self) -> None:
        text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        runnable = [block for block in blocks if not re.search(r"\b(torch|cupy|jax|ray)\b", block)]
        self.assertGreaterEqual(len(runnable), 3)
        for block in runnable:
            with self.subTest(block=block):
                command = [sys.executable, "-B", "-c", block]
                done = subprocess.run(
                    command, cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                # Comments behind a call of print have its output.
                says = re.findall(r"\)\s+# ([0-9].*)", block)
                # The programs that an example starts print too.
                self.assertEqual([line for line in done.stdout.splitlines() if line in says], says)
                for tenant in partita.tenants():
                    tenant.kill(0)


if __name__ == "__main__":
    unittest.main()
