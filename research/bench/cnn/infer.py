"""One YOLOv2 instance: an image at a time, back to back, each as one CUDA graph.

Prints `ready` when warm. Each line on standard input is a number of seconds; it then infers for so long and prints one JSON line: the
latency of every image in milliseconds and a check that the answer never changed. Ends with its input.
"""

import json
import sys
import time

import torch

from yolo import Yolo


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Yolo().to(device).eval()
    image = torch.randn(1, 3, 416, 416, device=device)
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(5):
            model(image)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            answer = model(image)
        for _ in range(20):
            graph.replay()
        stream.synchronize()
        expected = answer.clone()
        stream.synchronize()
        print("ready", flush=True)
        for line in sys.stdin:
            latencies_ms = []
            # A partition that has changed is found by the first.
            graph.replay()
            stream.synchronize()
            end = time.monotonic() + float(line)
            while time.monotonic() < end:
                before = time.perf_counter()
                graph.replay()
                stream.synchronize()
                latencies_ms.append(1e3 * (time.perf_counter() - before))
            print(json.dumps({"latencies_ms": latencies_ms, "same": bool(torch.equal(answer, expected))}), flush=True)


if __name__ == "__main__":
    main()
