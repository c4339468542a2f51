"""A server that treats GPU memory as vLLM does; `two_servers.py` starts two of them.

At its start it wants a part of the device's memory, and refuses to start if that is not free: two
such servers on one GPU fail without partitions. Prints its port. `POST /` answers with what it holds.
"""

import argparse
import http.server
import json
import threading

import cuda


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    arguments = parser.parse_args()

    gpu = cuda.Gpu()
    free, total = gpu.memory()
    wanted = int(total * arguments.gpu_memory_utilization)
    if free < wanted:
        raise SystemExit(
            f"{free >> 30} of {total >> 30} GiB are free, fewer than the wanted {wanted >> 30} GiB"
        )
    gpu.allocate(wanted)
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                gpu.enter()
                sms = gpu.where()
            answer = json.dumps({"sms": sms, "kv_cache_bytes": wanted}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
