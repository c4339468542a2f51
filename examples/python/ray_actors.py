"""Ray actors with fractions of one GPU that hold: each has its own compute units and memory quota.

Ray only counts `num_gpus`. The variables of `partita.env` put each actor's process into a partition.

    pip install ray partita
    python3 ray_actors.py

The actors run on the machine on which the driver runs, because that holds their partitions.
"""

import os
import sys

import partita
import ray

HERE = os.path.dirname(os.path.abspath(__file__))


@ray.remote
class Model:
    """An actor that uses CUDA, as with PyTorch."""

    def __init__(self) -> None:
        sys.path.insert(0, HERE)
        import cuda

        self.gpu = cuda.Gpu()

    def report(self) -> str:
        """What it holds, and what its launches used."""
        held = partita.current()
        assert held is not None, "this actor is in no partition"
        total = self.gpu.memory()[1]
        return f"{held.name}: {len(self.gpu.where())} of {self.gpu.sms} SMs, {total >> 30} GiB"


def main() -> None:
    ray.init(num_gpus=1, num_cpus=2, include_dashboard=False, log_to_driver=False)
    fractions = {"large": (0.7, "70%", "90GiB"), "small": (0.3, "30%", "30GiB")}
    actors = []
    for name, (gpus, sm, mem) in fractions.items():
        # One call, and so one partition, for each actor.
        variables = partita.env(name=name, sm=sm, mem=mem)
        actors.append(Model.options(num_gpus=gpus, runtime_env={"env_vars": variables}).remote())
    print("\n".join(ray.get([actor.report.remote() for actor in actors])))
    # The next launches of this actor obey.
    print(f"small has {next(t for t in partita.tenants() if t.name == 'small').set(sm='10%').sms} SMs now")
    print(ray.get(actors[1].report.remote()))
    ray.shutdown()


if __name__ == "__main__":
    main()
