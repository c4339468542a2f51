"""The well-behaved tenant: ResNet-50 inference, one CUDA graph a request, a request 3 ms after the last answer.

Prints `ready` when warm. For each line on standard input it serves for so many seconds, or for --seconds if the line is empty, and
prints one JSON line: the latency of every request in milliseconds, the window on the monotonic clock, and a check that the answers
were the same throughout.
"""

import argparse
import json
import sys
import time

import torch

from model import resnet50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pause-ms", type=float, default=3.0)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = resnet50().to(device, torch.half, memory_format=torch.channels_last).eval()
    image = torch.randn(options.batch, 3, 224, 224, device=device, dtype=torch.half)
    image = image.to(memory_format=torch.channels_last)
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(5):
            model(image)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            answer = model(image)
        for _ in range(100):
            graph.replay()
        stream.synchronize()
        expected = answer.clone()
        stream.synchronize()

        print("ready", flush=True)
        for line in sys.stdin:
            seconds = float(line) if line.strip() else options.seconds
            latencies_ms = []
            start = time.monotonic()
            while time.monotonic() - start < seconds:
                before = time.perf_counter()
                graph.replay()
                stream.synchronize()
                latencies_ms.append(1e3 * (time.perf_counter() - before))
                time.sleep(options.pause_ms * 1e-3)
            stop = time.monotonic()
            same = bool(torch.equal(answer, expected))
            free, total = torch.cuda.mem_get_info()
            print(json.dumps({"latencies_ms": latencies_ms, "start": start, "stop": stop, "answers_unchanged": same,
                              "memory_total_bytes": total, "memory_free_bytes": free}), flush=True)


if __name__ == "__main__":
    main()
