"""Collectives of NCCL and data-parallel training on two GPUs, one process each."""

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, torch, torch.distributed as dist
rank, what = int(os.environ["RANK"]), sys.argv[1]
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
def filled(value):
    return torch.full((1 << 20,), float(value), device="cuda")
if what == "all_reduce":
    for _ in range(20):
        values = filled(rank + 1)
        dist.all_reduce(values)
        assert (values == 3).all()
elif what == "all_gather":
    whole = torch.empty(2 << 20, device="cuda")
    dist.all_gather_into_tensor(whole, filled(rank))
    assert (whole[: 1 << 20] == 0).all() and (whole[1 << 20 :] == 1).all()
elif what == "reduce_scatter":
    part = torch.empty(1 << 19, device="cuda")
    dist.reduce_scatter_tensor(part, filled(rank + 1))
    assert (part == 3).all()
elif what == "all_to_all":
    given, taken = filled(rank), torch.empty(1 << 20, device="cuda")
    dist.all_to_all_single(taken, given)
    assert (taken[: 1 << 19] == 0).all() and (taken[1 << 19 :] == 1).all()
elif what == "send_recv":
    values = filled(rank)
    dist.send(values, 1) if rank == 0 else dist.recv(values, 0)
    assert (values == 0).all()
elif what == "graph":
    values, stream = filled(1), torch.cuda.Stream()
    dist.all_reduce(values)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(values)
    values.fill_(1)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert (values == 8).all()
    # NCCL's communicator does not end before the graphs that use it.
    graph.reset()
elif what == "ddp":
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(32, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    mine = model.module.weight.detach().clone()
    dist.broadcast(mine, 0)
    assert torch.equal(mine, model.module.weight)
elif what == "peer_copy":
    # Each sees both GPUs, and copies from one to the other.
    values = torch.arange(1 << 20, device="cuda:0").to("cuda:1")
    assert (values.cpu() == torch.arange(1 << 20)).all()
else:
    sys.exit(f"nothing is called {what}")
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("what", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "graph", "ddp", "peer_copy"])
def test_two_ranks(what: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, "-c", PROGRAM, what], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    try:
        told = [rank.communicate(timeout=50)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    codes = [rank.returncode for rank in ranks]
    lines = [line for text in told for line in text.splitlines() if "rror" in line]
    assert codes == [0, 0], f"ranks ended with {codes}: {' | '.join(lines[-3:])}"
