"""Ranks of a test that are processes of their own, in a group over gloo."""
import os
import socket


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(size, work):
    """Returns, by rank, what work(rank) returns, or the text of its error.
    Ends all ranks once one has failed."""
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    queue, port = context.Queue(), free_port()
    processes = [context.Process(target=_run_rank,
                                 args=(r, size, port, work, queue))
                 for r in range(size)]
    for p in processes:
        p.start()
    results = {}
    for _ in processes:
        rank, result, failed = queue.get(timeout=120)
        results[rank] = result
        if failed:
            for p in processes:
                p.terminate()
            break
    for p in processes:
        p.join(60)
    return results


def _run_rank(rank, size, port, work, queue):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    try:
        queue.put((rank, work(rank), False))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((rank, repr(error), True))
        raise
    finally:
        dist.destroy_process_group()
