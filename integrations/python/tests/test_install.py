"""Where the package finds the rest of its installation, and what it says if it does not."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import partita
from partita import _install


class Places(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)

    def make(self, path: str) -> str:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        return str(file)

    def test_a_build_comes_first(self) -> None:
        program, library = self.make("debug/partita"), self.make("debug/libsmctrl.so")
        with mock.patch.dict(os.environ, PARTITA_LIB_DIR=str(self.root / "debug")):
            self.assertEqual((_install.program(), _install.library("libsmctrl.so")), (program, library))
            with self.assertRaisesRegex(partita.NotInstalled, f"libx.so was not found in {self.root}/debug;"):
                _install.library("libx.so")

    def test_an_installed_package(self) -> None:
        program, library = self.make("usr/bin/partita"), self.make("usr/lib/partita/libsmctrl.so")
        os.symlink(self.root / "usr/bin", self.root / "bin")
        environment = {"PATH": str(self.root / "bin")}
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(_install, "_of_wheel", lambda: None),
        ):
            self.assertEqual(os.path.realpath(_install.program()), program)
            self.assertEqual(_install.library("libsmctrl.so"), library)
            with self.assertRaisesRegex(
                partita.NotInstalled, "usr/bin, .*usr/lib/partita; install Partita again"
            ):
                _install.library("libx.so")

    def test_a_module_in_an_installed_package_has_its_program(self) -> None:
        program, library = self.make("usr/bin/partita"), self.make("usr/lib/partita/libsmctrl.so")
        self.make("bin/partita")
        shutil.copytree(os.path.dirname(_install.__file__), self.root / "usr/lib/partita/python/partita")
        environment = {
            "PYTHONPATH": str(self.root / "usr/lib/partita/python"),
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
        }
        code = "from partita._install import *; print(program(), library('libsmctrl.so'))"
        self.assertEqual(self.python(code, environment).split(), [program, library])

    def test_the_wheel_comes_before_path(self) -> None:
        wheel, other = self.make("venv/bin/partita"), self.make("bin/partita")
        library = self.make("venv/lib/partita/libsmctrl.so")
        site = self.root / "venv/lib/python3/site-packages"
        shutil.copytree(os.path.dirname(_install.__file__), site / "partita")
        info = site / "partita-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: partita\nVersion: 0.1.0\n")
        (info / "RECORD").write_text("partita/_install.py,,\n../../../bin/partita,,\n")
        code = "from partita._install import *; print(program(), library('libsmctrl.so'))"
        for path, found in ((site, (wheel, library)), (pathlib.Path(_install.__file__).parents[1], None)):
            environment = {"PYTHONPATH": f"{path}:{site}", "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
            with self.subTest(path=path):
                if found is None:
                    # Of another installation than the module: not its program.
                    code = "from partita._install import *; print(program(), program())"
                    found = (other, other)
                said = self.python(code, environment)
                self.assertEqual(tuple(os.path.realpath(word) for word in said.split()), found)

    def python(self, code: str, environment: "dict[str, str]") -> str:
        command = [sys.executable, "-B", "-c", code]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    def test_a_missing_program_is_named_with_the_places(self) -> None:
        environment = {"PATH": str(self.root), "PARTITA_LIB_DIR": str(self.root / "debug")}
        with mock.patch.dict(os.environ, environment, clear=True):
            with self.assertRaisesRegex(
                partita.NotInstalled, "program partita was not found in .*/debug/partita, the"
            ):
                partita.tenants()


if __name__ == "__main__":
    unittest.main()
