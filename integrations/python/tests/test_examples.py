"""The examples, with the real programs that they are for where those are installed."""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from typing import Any, List
from unittest import mock

import partita
from partita import _install

from common import EXAMPLES, Case, example


def needs(*modules: str) -> Any:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"there is no {', '.join(missing)} here")


class Examples(Case):
    def test_two_servers_share_a_gpu(self) -> None:
        self.assertEqual(
            example("two_servers.py").splitlines(),
            [
                "chat runs on 78 SMs, code on 38, both on 0",
                "chat holds 72 of its 80 GiB",
                "code holds 36 of its 40 GiB",
                "chat runs on 26 SMs, code on 92, both on 0",
            ],
        )

    @needs("ray")
    def test_ray_actors_hold_their_fractions(self) -> None:
        self.assertEqual(
            example("ray_actors.py").splitlines(),
            [
                "large: 92 of 132 SMs, 90 GiB",
                "small: 38 of 132 SMs, 30 GiB",
                "small has 12 SMs now",
                "small: 12 of 132 SMs, 30 GiB",
            ],
        )

    @needs("jupyter_client", "ipykernel")
    def test_a_notebooks_kernel_runs_in_a_partition(self) -> None:
        with tempfile.TemporaryDirectory() as root:
            shutil.copytree(EXAMPLES / "jupyter", pathlib.Path(root, "kernels", "partita"))
            # The kernel's python3 is this one, and its partita that of the tests.
            path = os.pathsep.join([os.path.dirname(sys.executable), os.path.dirname(_install.program())])
            environment = {
                "JUPYTER_PATH": root,
                "JUPYTER_DATA_DIR": root,
                "PATH": os.pathsep.join([path, os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.path.dirname(partita.__path__[0])]),
            }
            with mock.patch.dict(os.environ, environment):
                self.use_kernel()

    def use_kernel(self) -> None:
        from jupyter_client.manager import KernelManager

        manager = KernelManager(kernel_name="partita")
        manager.start_kernel()
        client = manager.client()
        client.start_channels()

        def value(code: str) -> Any:
            """What a cell prints, as JSON."""
            said: List[str] = []
            client.execute_interactive(
                code, timeout=60, output_hook=lambda message: said.append(message["content"].get("text", ""))
            )
            return json.loads("".join(said))

        try:
            client.wait_for_ready(timeout=60)
            held = value(
                "import cuda, json, partita\ngpu = cuda.Gpu()\n"
                "print(json.dumps([len(gpu.where()), gpu.memory()[1], partita.current().sms]))"
            )
            self.assertEqual(held, [32, 20 << 30, 32])
            # An interrupt ends the cell, not the kernel.
            endless = client.execute("print('begun', flush=True)\nwhile True: gpu.where()")
            while client.get_iopub_msg(timeout=60)["content"].get("text") != "begun\n":
                pass
            manager.interrupt_kernel()
            reply = client.get_shell_msg(timeout=60)
            while reply["parent_header"]["msg_id"] != endless:
                reply = client.get_shell_msg(timeout=60)
            self.assertEqual(reply["content"]["ename"], "KeyboardInterrupt")
            self.assertEqual(
                value("print(json.dumps([partita.current().set(sm='10%').sms, len(gpu.where())]))"), [12, 12]
            )
            manager.restart_kernel()
            client.wait_for_ready(timeout=60)
            self.assertEqual(value("import partita; print(partita.current().sms)"), 32)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
            manager.cleanup_resources()


if __name__ == "__main__":
    unittest.main()
