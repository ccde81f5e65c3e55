#!/usr/bin/env bash
# NCCL 2.28.9 in PyTorch 2.11.0 (CUDA 13.0): a small all-reduce in a CUDA graph takes longer, the more of them the graph holds.
# Expected: captured calls on one stream take the same time each, however many there are.
# Observed: 4 KiB on two H200s take 8.6 us each in a graph of 12, 11.2 in one of 60, 19.5 in one of 240. With
#   NCCL_GRAPH_MIXING_SUPPORT=0 (its default is 1) they take 5.0 to 7.3 us. Behind a GEMM of 30 us a call costs 2 us more
#   with it than without: a loop of nothing but all-reduces measures the dependencies between graph and communicator.
# Way out: NCCL_GRAPH_MIXING_SUPPORT=0, if no captured and other calls of one communicator are outstanding at once.
# Needs two NVIDIA GPUs; exit code 2 without them.
set -eu
[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] || { echo "needs two NVIDIA GPUs"; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.11.0 numpy==2.3.5
cat >"$folder/loop.py" <<'PYTHON'
import os
import statistics

import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
data = torch.zeros(2048, device="cuda", dtype=torch.bfloat16)


def us_of_each(n):
    """Return the median time of an all-reduce in a graph of *n*."""
    dist.all_reduce(data)
    torch.cuda.synchronize()
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(n):
            dist.all_reduce(data)
    for _ in range(15):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / n)
    return statistics.median(times[3:])


few, many = us_of_each(12), us_of_each(240)
if rank == 0:
    print(f"{few:.1f} us each in a graph of 12, {many:.1f} us in one of 240")
dist.destroy_process_group()
raise SystemExit(0 if (many > 1.5 * few) == (os.environ["NCCL_GRAPH_MIXING_SUPPORT"] == "1") else 1)
PYTHON
for mixing in 1 0; do
    echo "NCCL_GRAPH_MIXING_SUPPORT=$mixing"
    NCCL_NVLS_ENABLE=0 NCCL_GRAPH_MIXING_SUPPORT=$mixing "$folder/venv/bin/torchrun" --nproc_per_node 2 "$folder/loop.py" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
done
