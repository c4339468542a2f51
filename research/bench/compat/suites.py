"""The suites: how each is run from the directory in which it lies, which of its tests are chosen, and which are left out."""

import dataclasses
import json
import os
import pathlib
import shlex
import sys

HERE = pathlib.Path(__file__).resolve().parent
PLUGIN = HERE / "plugin"
sys.path.insert(0, str(PLUGIN))

import compat_record  # noqa: E402
from jobs import Job  # noqa: E402

LISTS = HERE / "lists"


@dataclasses.dataclass(frozen=True)
class Suite:
    """A list of tests or programs. Without `programs` it is pytest's to run."""

    key: str
    title: str
    # The packages whose versions the page lists.
    packages: tuple[str, ...] = ()
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    import_mode: str = "prepend"
    # Whether its directories without an `__init__.py` are part of the names of its modules.
    has_namespaces: bool = False
    # Directories whose modules its tests import.
    paths: tuple[str, ...] = ()
    programs: bool = False
    # The GPUs that it needs.
    gpus: int = 1
    # Where it lies, if it is this project's.
    home: pathlib.Path | None = None
    # Programs of it at a time in a seat, at most.
    workers_max: int = 64
    # Whether each mode compiles again: the code may depend on measurements there.
    own_caches: bool = False
    test_limit_s: float = 40.0


SMOKE = HERE / "smoke"
# Each process of tests would start a compiler for every core, and try each of the CPU's vector instructions, for which they wait
# for each other.
COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
SUITES = (
    Suite("pytorch", "PyTorch's tests of CUDA, streams, graphs and memory", ("torch",),
          {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda"}),
    Suite("cudagraphs", "PyTorch's cudagraph tests of its compiler", ("torch", "triton"),
          # Without processes that compile: a test compiles little, and each process of tests would start its own.
          {"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda", **COMPILER, "TORCHINDUCTOR_COMPILE_THREADS": "1"}, test_limit_s=60.0),
    Suite("compile", "torch.compile and transformers' static cache, training and inference", ("torch", "transformers"), COMPILER,
          home=SMOKE, workers_max=4, own_caches=True, test_limit_s=150.0),
    Suite("triton", "Triton's tests", ("triton",), import_mode="importlib", paths=("unit/language",)),
    Suite("jax", "JAX's core tests", ("jax", "jaxlib"),
          # Its tests of callbacks need the CPU, too.
          {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": "cuda,cpu", "JAX_NUM_GENERATED_CASES": "2",
           "TF_CPP_MIN_LOG_LEVEL": "2"}),
    Suite("cupy", "CuPy's tests", ("cupy-cuda13x",)),
    # A local module `cuda` would hide NVIDIA's.
    Suite("numba-cuda", "Numba-CUDA's tests", ("numba-cuda", "numba"), import_mode="importlib", has_namespaces=True),
    Suite("models", "transformers, accelerate and timm, random weights, training and inference",
          ("transformers", "accelerate", "timm"), home=SMOKE, workers_max=4),
    Suite("cuda-samples", "NVIDIA's CUDA samples", programs=True),
    Suite("nccl", "NCCL on two GPUs of one tenant", ("torch", "nvidia-nccl-cu13"), home=SMOKE, gpus=2, workers_max=1),
)
BY_KEY = {suite.key: suite for suite in SUITES}


class BadList(Exception):
    """A line of a list that cannot be read."""


@dataclasses.dataclass
class Chosen:
    """A list's selection of a suite."""

    # {"path": …, "limit": …} of tests, {"path": …, "arguments": […]} of programs.
    entries: list[dict]
    # Pattern and reason.
    left_out: list[tuple[str, str]]


def read_list(path: pathlib.Path, of_programs: bool) -> Chosen:
    """A list: `PATH [LIMIT]` a line, or `NAME [ARGUMENTS]` of programs; `! PATTERN : why` leaves tests out."""
    chosen = Chosen([], [])
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = text.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("!"):
            pattern, colon, why = line[1:].partition(" : ")
            if not colon:
                raise BadList(f"{path}:{number}: `! PATTERN : why` needs both; got {text!r}")
            chosen.left_out.append((pattern.strip(), why.strip()))
            continue
        name, *rest = shlex.split(line)
        if of_programs:
            chosen.entries.append({"path": name, "arguments": rest})
        elif len(rest) > 1 or (rest and not rest[0].isdigit()):
            raise BadList(f"{path}:{number}: `PATH [LIMIT]`, and the limit is a number; got {text!r}")
        else:
            chosen.entries.append({"path": name, "limit": int(rest[0]) if rest else None})
    if not chosen.entries:
        raise BadList(f"{path}: it names no test")
    return chosen


@dataclasses.dataclass
class Prepared:
    """A suite with its directory and its list, ready for jobs."""

    suite: Suite
    directory: pathlib.Path
    chosen: Chosen
    work: pathlib.Path
    seed: str
    job_limit_s: float

    def missing(self) -> list[str]:
        """Entries of the list that the directory lacks."""
        return [entry["path"] for entry in self.chosen.entries if not self._target(entry["path"]).exists()]

    def _target(self, path: str) -> pathlib.Path:
        path = path.partition("::")[0]
        return self.directory / path / path if self.suite.programs else self.directory / path

    def planned(self, tests: list[str], sample: int | None) -> set[str]:
        """The tests that a sample of this size has, of those of a larger one."""
        return set(tests) if self.suite.programs else compat_record.select(tests, self._plan(sample, None))

    def job(self, mode: str, round_name: str, workers: int, sample: int | None, only: list[str] | None = None) -> Job:
        """A job that runs a sample of what the list chooses, or only some tests again."""
        stem = f"{self.suite.key}-{mode}-{round_name}"
        workers = max(1, min(workers, self.suite.workers_max, len(only) if only is not None else workers))
        record, plan_path = self.work / f"{stem}.jsonl", self.work / f"{stem}.plan.json"
        plan_path.write_text(json.dumps({**self._plan(sample, only), "record": str(record), "workers": workers}))
        caches = self.work / "caches" / (f"{self.suite.key}-{mode}" if self.suite.own_caches else "all")
        caches.mkdir(parents=True, exist_ok=True)
        environment = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton"),
                       "CUPY_CACHE_DIR": str(caches / "cupy"), "NUMBA_CACHE_DIR": str(caches / "numba"),
                       "CUDA_CACHE_PATH": str(caches / "cuda"), **self.suite.environment}
        if self.suite.programs:
            command = [sys.executable, "-B", str(HERE / "launch_programs.py"), str(plan_path)]
        else:
            environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")])),
                            compat_record.PLAN: str(plan_path)}
            command = self._pytest(only, workers)
        return Job(self.suite.key, command, environment, self.directory, record, self.work / f"{stem}.log", self.job_limit_s,
                   self.suite.gpus)

    def _plan(self, sample: int | None, only: list[str] | None) -> dict:
        if self.suite.programs:
            # A line is one program: there is nothing to choose from.
            entries = [entry for entry in self.chosen.entries if self._target(entry["path"]).exists()
                       and (only is None or entry["path"] in only)]
            return {"limit_s": self.suite.test_limit_s, "programs": [
                {"name": entry["path"], "directory": str(self.directory / entry["path"]),
                 "command": [str(self._target(entry["path"])), *entry["arguments"]]} for entry in entries]}
        entries = [{**entry, "limit": min(filter(None, (entry["limit"], sample)), default=None)} for entry in self.chosen.entries]
        return {"entries": entries, "leave_out": [pattern for pattern, _ in self.chosen.left_out], "seed": self.seed, "only": only}

    def _pytest(self, only: list[str] | None, workers: int) -> list[str]:
        settings = self.work / f"{self.suite.key}.ini"
        settings.write_text(f"[pytest]\nconsider_namespace_packages = {self.suite.has_namespaces}\n"
                            f"pythonpath = {' '.join(shlex.quote(str(self.directory / path)) for path in self.suite.paths)}\n")
        if only is not None:
            paths = list(dict.fromkeys(test.partition("::")[0] for test in only))
        else:
            paths = list(dict.fromkeys(entry["path"].partition("::")[0] for entry in self.chosen.entries))
        paths = [path for path in paths if (self.directory / path).exists()]
        # `thread` ends a test that hangs in the driver, which a signal would not.
        command = [sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(self.directory), "-p", "no:cacheprovider",
                   "-p", "compat_record", "-q", "--tb=short", "-W", "ignore", "--continue-on-collection-errors",
                   f"--import-mode={self.suite.import_mode}", f"--timeout={self.suite.test_limit_s:g}", "--timeout-method=thread",
                   # Idle workers take from busy ones; one that dies is started again, and its test has failed.
                   "-n", str(workers), "--dist", "worksteal", "--max-worker-restart", "30"]
        return [*command, *(str(self.directory / path) for path in paths)]
