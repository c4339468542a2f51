"""Two servers that each want 90 % of "their" GPU, on one GPU; then one grows while both serve.

    python3 two_servers.py                 on the machine's first GPU, else on a simulated one

With vLLM the commands are ["vllm", "serve", MODEL, "--port", PORT].
"""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from typing import List

import partita

SERVER = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")]


def port_of(server: partita.Process) -> int:
    """Waits until the server listens."""
    line = server.stdout.readline() if server.stdout else ""
    if not line:
        raise SystemExit(f"{server.name} ended with exit code {server.wait()}")
    return int(line)


def ask(port: int) -> List[int]:
    """Sends a prompt; returns the SMs that computed the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=b'{"prompt": "Hello"}')
    # Not through a proxy of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as answer:
        sms: List[int] = json.load(answer)["sms"]
        return sms


def main() -> None:
    with contextlib.ExitStack() as at_end:
        servers = []
        for name, sm, mem in (("chat", "60%", "80GiB"), ("code", "30%", "40GiB")):
            server = partita.run(SERVER, name=name, sm=sm, mem=mem, stdout=subprocess.PIPE, text=True)
            at_end.enter_context(server)
            at_end.callback(server.terminate)
            servers.append(server)
        ports = [port_of(server) for server in servers]
        chat, code = (set(ask(port)) for port in ports)
        print(f"chat runs on {len(chat)} SMs, code on {len(code)}, both on {len(chat & code)}")
        for tenant in partita.tenants():
            used, quota = tenant.memory_used_bytes or 0, tenant.memory_quota_bytes or 0
            print(f"{tenant.name} holds {used >> 30} of its {quota >> 30} GiB")
        servers[0].set(sm="20%")
        servers[1].set(sm="70%")
        chat, code = (set(ask(port)) for port in ports)
        print(f"chat runs on {len(chat)} SMs, code on {len(code)}, both on {len(chat & code)}")


if __name__ == "__main__":
    main()
