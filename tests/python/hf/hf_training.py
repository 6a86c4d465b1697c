"""Trains tiny models of real classes by live plans, and one process alongside.

usage: hf_training.py FAMILY --pipeloom BINARY [--ranks N] [--steps N] ...

Prints the largest differences of losses and gradients from one process, which
computes the whole step in one call of the real class. Needs transformers, for
"wan" diffusers.
"""
import argparse
import collections
import copy
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import pipeloom
from pipeloom import hf, messages
from pipeloom.hf.gradients import local
from pipeloom.torch import agreement, of_first_rank

from hf_models import CONFIGS, SAMPLES, make_model


class Reference:
    """The model in one process: the whole step in one call."""

    def __init__(self, model):
        self.model = model
        self.family = hf.family.family_of(copy.deepcopy(model))

    def backward(self, samples):
        self.model.zero_grad(set_to_none=True)
        chain = self.family.chains[-1]
        work = hf.Work(chain, None, samples, 0, len(samples))
        inputs = dict(self.family.inputs(work))
        inputs.update(real_pixels(samples))
        output = self.model(**inputs)
        output = output.logits if hasattr(output, "logits") else output[0]
        total = sum(self.family.count(s) for s in samples)
        self.family.model = self.model
        loss = self.family.loss(output, work) / total
        loss.backward()
        return float(loss.detach())


def real_pixels(samples):
    result = {}
    for name in ("pixel_values", "pixel_values_videos"):
        own = [s[name] for s in samples if name in s]
        if own and own[0].dim() == 5:  # Images with a dimension of tiles.
            most = max(t.shape[1] for t in own)
            own = [torch.nn.functional.pad(
                t, (0, 0) * 3 + (0, most - t.shape[1])) for t in own]
        if own:
            result[name] = torch.cat(own)
    return result


def job_of(args, model_file):
    from google.protobuf import json_format
    with open(model_file, encoding="utf-8") as file:
        spec = json.load(file)
    names = [m["name"] for m in spec["modules"]]
    training = {"microbatches": args.microbatches,
                "microbatch_tokens": 100000, "microbatch_images": 1000,
                "sub_microbatch_sizes": [
                    {"module": name, "instances": args.sub if i == 0 and
                     len(names) > 1 else 1000000}
                    for i, name in enumerate(names)]}
    if getattr(args, "memory_limit", 0):
        training["memory_limit_bytes"] = args.memory_limit
    training["memory_strategies"] = ["MEMORY_STRATEGY_KEEP",
                                     "MEMORY_STRATEGY_RECOMPUTE"]
    return json_format.ParseDict({
        "name": "tiny", "model_spec": spec, "cluster": "h100-sxm",
        "parallel": {"tp": 1, "pp": args.ranks, "dp": args.replicas},
        "training": training,
        "search": {"schedule": args.schedule, "evaluations": args.evaluations,
                   "seed": 1}}, messages.Job())


def open_job(client, args, model_file, sizes):
    """Opens the job; with --spare, under a memory limit of so much more than
    the fullest rank holds throughout."""
    every = [s for step in sizes for s in step]
    if args.spare:
        job = client.open_job(job_of(args, model_file), every)
        client.submit_batch(job.job_id, 0, sizes[0])
        plan = client.plan(job.job_id, 0)
        args.memory_limit = args.spare + max(
            m.static for m in plan.memory.values())
        client.close_job(job.job_id)
    return client.open_job(job_of(args, model_file), every)


def distance(p, q, floor):
    if p is None or q is None:
        other = q if p is None else p
        return 0.0 if other is None or not bool(other.any()) else 1.0
    return float((p - q).norm()) / max(float(q.norm()), floor)


def train(rank, args, port, target, model_file, out):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank,
                            world_size=args.ranks * args.replicas)
    place = hf.grid(args.ranks)
    rank, replica = place.rank, place.replica
    model = make_model(args.family, args.seed, args.tied,
                       json.loads(args.config))
    freeze(model, args.freeze)
    reference = Reference(copy.deepcopy(model))
    draw = random.Random(args.seed)
    # Those of all replicas, and of this one.
    every = [[[SAMPLES[args.family](draw) for _ in range(args.samples)]
              for _ in range(args.replicas)] for _ in range(args.steps)]
    steps = [step[replica] for step in every]
    sizes = [[reference.family.sizes(s) for s in step] for step in steps]
    client = pipeloom.Client(target)
    job = of_first_rank(lambda: open_job(client, args, model_file, sizes))
    session = pipeloom.Session(client, job, rank=rank, replica=replica)
    options = {} if args.replicas == 1 else {
        "group": place.pipeline, "replicas": place.replicas,
        "shard": args.shard}
    pipe = hf.Pipeline(model, job, rank=rank, **options)
    provider = pipeloom.PlanProvider(session, pipe.static_plan, wait=100.0,
                                     agree=agreement())
    optimizer = torch.optim.SGD(pipe.parameters(), lr=args.learning_rate)
    theirs = torch.optim.SGD(reference.model.parameters(),
                             lr=args.learning_rate)
    named = dict(reference.model.named_parameters(remove_duplicate=False))
    own = sum(local(p).numel() for p in pipe.parameters())
    facts = collections.Counter()
    worst, worst_loss, losses = 0.0, 0.0, []
    for step, samples in enumerate(steps):
        microbatch_of = spread(draw, len(samples), args.microbatches)
        provider.expect(step, pipe.microbatches(samples, microbatch_of),
                        sizes[step], microbatch_of)
        plan = provider.get(step)
        optimizer.zero_grad(set_to_none=True)
        result = pipe.step(plan, samples)
        expected = reference.backward(sum(every[step], []))
        loss = torch.tensor([result.loss], dtype=torch.float64)
        dist.all_reduce(loss)
        losses.append(float(loss))
        worst_loss = max(worst_loss, abs(float(loss) - expected) /
                         abs(expected))
        floor = args.floor * max(float(p.grad.norm()) for p in named.values()
                                 if p.grad is not None)
        for name, p in pipe.named_parameters():
            off = distance(full(p.grad), named[name].grad, floor)
            if off > args.tolerance:
                print(f"rank {rank} step {step} {name}: {off:.1e}",
                      flush=True)
            worst = max(worst, off)
        count_facts(facts, plan, rank)
        facts["steps gathered by pass"] += options != {} and \
            pipe.gathers_by_pass
        optimizer.step()
        theirs.step()
    moved = max(float((full(p.detach()) - named[name].detach()).abs().max())
                for name, p in pipe.named_parameters())
    rows = [None] * (args.ranks * args.replicas)
    dist.all_gather_object(rows, (worst, worst_loss, own, dict(facts),
                                  [n for n, _ in pipe.named_parameters()],
                                  moved))
    if rank == replica == 0:
        facts = collections.Counter()
        for row in rows:
            facts.update(row[3])
        covered = set(n for row in rows for n in row[4])
        missing = set(dict(reference.model.named_parameters())) - covered
        pathlib.Path(out).write_text(json.dumps({
            "gradient": max(r[0] for r in rows), "weights": max(
                r[5] for r in rows), "loss": max(r[1] for r in rows),
            "parameters": [r[2] for r in rows], "facts": dict(facts),
            "missing": sorted(missing), "plans": provider.counts,
            "losses": losses,
            "whole": sum(p.numel() for p in reference.model.parameters())}))
    provider.close()
    dist.barrier()
    session.close(close_job=rank == replica == 0)
    client.close()
    dist.barrier()
    dist.destroy_process_group()


def full(tensor):
    """Returns a divided tensor as a whole."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread(draw, samples, microbatches):
    """Unequal microbatches, none of them empty."""
    rest = [draw.randrange(microbatches)
            for _ in range(samples - microbatches)]
    return sorted(list(range(microbatches)) + rest)


def freeze(model, prefixes):
    for name, p in model.named_parameters():
        if prefixes and any(f in name for f in prefixes.split(",")):
            p.requires_grad_(False)


def count_facts(facts, plan, rank):
    for i, t in plan.tasks.items():
        if t.rank != rank:
            continue
        facts[t.kind] += 1
        if t.kind == "F" and any(c != "KEEP" for c in
                                 plan.activations.get(i, ())):
            facts["recomputed forwards"] += 1
        if t.sub > 0 and t.kind == "F":
            facts["further sub-microbatches"] += 1
    if rank == 0:
        facts["steps planned by " + (plan.schedule or "?")] += 1
        for m in plan.microbatches:
            if len({s.module for s in m.subs}) < len(plan.module_names):
                facts["text-only microbatches"] += 1
            else:
                facts["microbatches with all modules"] += 1


def serve(binary):
    server = subprocess.Popen(
        [binary, "serve", "--listen", "127.0.0.1:0", "--metrics-port", "0",
         "--log-level", "off", "--data-dir", str(ROOT / "workloads")],
        stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not re.search(r"listening on", line):
        raise RuntimeError(f"the service did not start: {line!r}")
    return server, line.split()[-1]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("family", choices=sorted(CONFIGS))
    parser.add_argument("--pipeloom", default=os.environ.get(
        "PIPELOOM_BINARY", "pipeloom"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--shard", default="", help="step, pass")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8, help="of a step")
    parser.add_argument("--sub", type=int, default=2,
                        help="instances of an encoder's sub-microbatch")
    parser.add_argument("--schedule", default="pipeloom")
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--spare", type=int, default=0,
                        help="bytes for activations; 0: as the device has")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="{}",
                        help="JSON of fields of the configuration")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--freeze", default="",
                        help="parts of names of parameters, with commas")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--floor", type=float, default=1e-3,
                        help="least norm that differences are relative to, "
                             "in the largest norm of a gradient")
    return parser.parse_args(arguments)


def run(args):
    """Returns the figures of a training."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        pathlib.Path(config).write_text(json.dumps(CONFIGS[args.family]))
        model_file = os.path.join(folder, "model.json")
        subprocess.run([args.pipeloom, "model", config, "--name", "tiny",
                        "--out", model_file], check=True,
                       stdout=subprocess.DEVNULL)
        server, target = serve(args.pipeloom)
        out = os.path.join(folder, "out.json")
        try:
            make_model(args.family, 0)  # Imports once, before the fork.
            mp.start_processes(train, (args, port, target, model_file, out),
                               args.ranks * args.replicas,
                               start_method="fork")
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
        return json.loads(pathlib.Path(out).read_text())


def main():
    args = parse()
    begin = time.time()
    figures = run(args)
    figures["seconds"] = round(time.time() - begin, 1)
    figures["losses"] = [figures["losses"][0], figures["losses"][-1]]
    print(json.dumps(figures))
    good = (figures["gradient"] <= args.tolerance and
            figures["loss"] <= args.tolerance and not figures["missing"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
