"""Processes over gloo that each run the same list of plans."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = 240  # Seconds for one plan.


def _worker(rank, ranks, port, begin, plans, run, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(ranks), USE_LIBUV="0")
    title = "start"
    try:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        begin(rank, ranks)
        for planned in plans:
            title = str(planned)
            queue.put((title, rank, run(rank, ranks, planned)))
        queue.put(("", rank, None))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((title, rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


def run_world(ranks, begin, plans, run):
    """Calls begin(rank, ranks) on every process, then run(rank, ranks, plan)
    for each plan; returns the largest result on any rank, by the plan's
    text."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_worker,
                        args=(r, ranks, port, begin, plans, run, queue))
        for r in range(ranks)]
    for p in processes:
        p.start()
    worst, done = {}, 0
    try:
        while done < ranks:
            title, rank, value = queue.get(timeout=TIMEOUT)
            if value is None:
                done += 1
            elif isinstance(value, str):
                raise AssertionError(f"{title}, rank {rank}: {value}")
            else:
                worst[title] = max(worst.get(title, 0.0), value)
    finally:
        for p in processes:
            if done < ranks:
                p.terminate()
            p.join(30)
    return worst
