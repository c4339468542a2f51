"""One YOLOv2 instance of unmodified Darknet: an image at a time, back to back.

Its one argument is a directory with `libdarknet.so` and `cfg/yolov2-voc.cfg`. Prints `ready` when warm. Each line on standard input is a
number of seconds; it then infers for so long and prints one JSON line: the latency of every image in milliseconds, from its copy to the GPU
to the copy of the answer back, and a check that the answer never changed, to the bit. Ends with its input.
"""

import ctypes
import functools
import json
import math
import os
import pathlib
import sys
import tempfile
import time
from typing import IO

import numpy

SIDE = 416


def layers(cfg: pathlib.Path) -> list[tuple[str, dict[str, str]]]:
    """The layers of a network, each with its settings."""
    found: list[tuple[str, dict[str, str]]] = []
    for line in cfg.read_text().splitlines():
        line = line.split("#")[0].replace(" ", "")
        if line.startswith("["):
            found.append((line[1:-1], {}))
        elif line:
            key, value = line.split("=")
            found[-1][1][key] = value
    return found[1:]


def write_weights(cfg: pathlib.Path, file: IO[bytes]) -> None:
    """Random weights as Darknet would choose, but with variances of one: it starts from zero, and inference would then overflow."""
    random = numpy.random.default_rng(0)
    # The version of the format, and the number of images seen.
    file.write(numpy.array([0, 2, 0, 0, 0], dtype=numpy.int32).tobytes())
    channels: list[int] = []
    for kind, settings in layers(cfg):
        out = channels[-1] if channels else 3
        if kind == "convolutional":
            inputs, out = out * int(settings["size"]) ** 2, int(settings["filters"])
            zeros, ones = numpy.zeros(out, dtype=numpy.float32), numpy.ones(out, dtype=numpy.float32)
            # Biases, then scales, means and variances.
            for values in [zeros, ones, zeros, ones] if "batch_normalize" in settings else [zeros]:
                file.write(values.tobytes())
            weights = random.standard_normal((out, inputs), dtype=numpy.float32) * numpy.float32(math.sqrt(2 / inputs))
            file.write(weights.tobytes())
        elif kind == "route":
            out = sum(channels[int(index)] for index in settings["layers"].split(","))
        elif kind == "reorg":
            out *= int(settings["stride"]) ** 2
        channels.append(out)
    file.flush()


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    # Darknet writes to standard output as well.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    darknet = ctypes.CDLL(str(directory.resolve() / "libdarknet.so"))
    darknet.load_network.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    darknet.load_network.restype = ctypes.c_void_p
    darknet.network_predict.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    darknet.network_predict.restype = ctypes.c_void_p
    for name in ["network_width", "network_height", "network_outputs"]:
        getattr(darknet, name).argtypes = [ctypes.c_void_p]
    cfg = directory / "cfg" / "yolov2-voc.cfg"
    with tempfile.NamedTemporaryFile() as file:
        write_weights(cfg, file)
        network = darknet.load_network(str(cfg).encode(), file.name.encode(), 0)
    if (darknet.network_width(network), darknet.network_height(network)) != (SIDE, SIDE):
        sys.exit(f"{cfg} is not for images of {SIDE} × {SIDE}")
    image = numpy.random.default_rng(1).random((3, SIDE, SIDE), dtype=numpy.float32)
    size = darknet.network_outputs(network) * ctypes.sizeof(ctypes.c_float)
    infer = functools.partial(darknet.network_predict, network, image.ctypes.data)
    for _ in range(25):
        answer = infer()
    expected = ctypes.string_at(answer, size)
    if not numpy.isfinite(numpy.frombuffer(expected, dtype=numpy.float32)).all():
        sys.exit("the answer is not finite")
    print("ready", file=told, flush=True)
    for line in sys.stdin:
        latencies_ms = []
        # A partition that has changed is found by the first.
        answer = infer()
        end = time.monotonic() + float(line)
        while time.monotonic() < end:
            before = time.perf_counter()
            answer = infer()
            latencies_ms.append(1e3 * (time.perf_counter() - before))
        print(json.dumps({"latencies_ms": latencies_ms, "same": ctypes.string_at(answer, size) == expected}), file=told, flush=True)


if __name__ == "__main__":
    main()
