"""The well-behaved tenant: inference, one CUDA graph a request, a request some time after the last answer.

--model resnet: ResNet-50, batch 8. decode: one token for each of 8 texts of 2,048 tokens. recommender: embeddings, batch 256.

Prints `ready` when warm. For each line on standard input it serves for so many seconds, or for --seconds if the line is empty, and
prints one JSON line: the latency of every request in milliseconds, the window on the monotonic clock, and a check that the answers
were the same throughout.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch

from model import Decoder, Recommender, resnet50


def resnet(batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Classifies a batch of images."""
    model = resnet50().to(device, torch.half, memory_format=torch.channels_last).eval()
    image = torch.randn(batch, 3, 224, 224, device=device, dtype=torch.half).to(memory_format=torch.channels_last)
    return lambda: model(image)


def decode(batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Makes a token for each text."""
    with device:
        model = Decoder().to(torch.bfloat16).eval()
    tokens, caches = torch.randint(0, 32000, (batch, 1), device=device), model.caches(batch, 2048)
    return lambda: model(tokens, caches)


def recommender(batch: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Rates a batch of 32 times as many items as `batch`."""
    with device:
        model = Recommender().to(torch.half).eval()
    rows = torch.randint(0, 500_000, (26, 32 * batch, 32), device=device)
    return lambda: model(rows)


MODELS = {"resnet": resnet, "decode": decode, "recommender": recommender}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--model", choices=MODELS, default="resnet")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pause-ms", type=float, default=3.0)
    options = parser.parse_args()

    torch.manual_seed(0)
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        request = MODELS[options.model](options.batch, torch.device("cuda"))
        for _ in range(5):
            request()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            answer = request()
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
