#!/usr/bin/env python3
"""Trains a model of your own, planned by Pipeloom: a trainer to copy.

    pipeloom serve --listen 127.0.0.1:50551 &
    torchrun --nproc_per_node 2 examples/train_own.py --service 127.0.0.1:50551
    torchrun --nproc_per_node 2 examples/train_own.py       # Fixed schedule.

The model has an encoder of images, one of sound, and a language model. It shows
what a trainer needs: the model file from the modules (pipeloom.capture), a plan
for each step, samples in microbatches of its own, the loss of held-out samples,
a scheduler of the learning rate, and checkpoints (--save, --resume) that do not
depend on which rank has which layers: the service may choose anew.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent /
                       "python"))

import pipeloom  # noqa: E402
from pipeloom import capture  # noqa: E402
from pipeloom.plan import (Microbatch, SubMicrobatch,  # noqa: E402
                           loss_weights)
from pipeloom.torch import Executor, agreement, of_first_rank  # noqa: E402

WIDTH, VOCAB, PATCHES, SOUNDS = 64, 100, 16, 4
MODULES = ("vision", "audio", "text")
FEEDS = [("vision", "text"), ("audio", "text")]
SAMPLES = 2  # Of a microbatch.


# -- The model -----------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def layers_of():
    """Returns the layers of each module. The loss is no layer."""
    return {"vision": [nn.Linear(12, WIDTH)] + [Block() for _ in range(4)],
            "audio": [nn.Linear(8, WIDTH)] + [Block() for _ in range(2)],
            "text": [nn.Embedding(VOCAB, WIDTH)] +
                    [Block() for _ in range(6)] + [nn.Linear(WIDTH, VOCAB)]}


def model_file(path):
    with torch.random.fork_rng():
        layers = layers_of()
    for module in [m for some in layers.values() for m in some]:
        module.to("meta")
    sizes = [(64, 1), (256, 2), (512, 8)]
    capture.save(path, "own", [
        capture.module("vision", layers["vision"], lambda tokens, images:
                       torch.empty(tokens, 12, device="meta"), sizes,
                       role="encoder", token_rules=[{
                           "kind": "TOKEN_RULE_KIND_FIXED_SQUARE",
                           "modality": "MODALITY_IMAGE", "side_px": 56,
                           "patch_px": 14}]),
        capture.module("audio", layers["audio"], lambda tokens, sounds:
                       torch.empty(tokens, 8, device="meta"), sizes,
                       role="encoder", token_rules=[{
                           "kind": "TOKEN_RULE_KIND_AUDIO_RATE",
                           "modality": "MODALITY_AUDIO",
                           "tokens_per_second": SOUNDS,
                           "output_tokens_per_second": SOUNDS}]),
        capture.module("text", layers["text"], lambda tokens, samples:
                       torch.empty(tokens, dtype=torch.long, device="meta"),
                       sizes, loss=lambda y: y.float().logsumexp(-1).mean())],
        FEEDS)


class Stage(nn.Module):
    """Layers of one module that follow each other."""

    def __init__(self, name, layers, first_layer):
        super().__init__()
        self.name, self.first_layer = name, first_layer
        self.layers = nn.ModuleList(layers)

    def named_layers(self):
        return {f"{self.name}:{self.first_layer + i}": layer
                for i, layer in enumerate(self.layers)}

    def forward(self, x, item):
        layers = list(self.layers)
        if self.first_layer == 0:
            # Outputs of the encoders, by name and sub-microbatch; None without.
            given = x if self.name == "text" else None
            x = layers.pop(0)(item.batch.inputs(self.name, item))
            for parts in (given or {}).values():
                x = x + torch.cat(parts).mean(0)
        for layer in layers:
            x = layer(x)
        return x


def loss_fn(logits, item):
    return functional.cross_entropy(logits, item.batch.labels(item))


# -- The data ------------------------------------------------------------------


class Batch:
    """Random samples of a step, alike on all ranks. A real trainer has the
    sizes of all samples on all ranks, and the data where they are needed."""

    def __init__(self, seed, microbatches):
        draw = random.Random(seed)
        self.seed = seed
        self.samples = [pipeloom.Sample(
            draw.randrange(8, 60), images=((56, 56),) * draw.randrange(3),
            audio_seconds=(draw.randrange(1, 6),) * draw.randrange(2))
            for _ in range(SAMPLES * microbatches)]
        self.microbatch_of = [i // SAMPLES for i in range(len(self.samples))]

    def microbatches(self):
        parts = [self.samples[i:i + SAMPLES]
                 for i in range(0, len(self.samples), SAMPLES)]
        weights = loss_weights([sum(s.text_tokens for s in part)
                                for part in parts])
        result = []
        for m, (part, weight) in enumerate(zip(parts, weights)):
            images = sum(len(s.images) for s in part)
            sounds = [t for s in part for t in s.audio_seconds]
            subs = []
            if images:
                subs.append(SubMicrobatch(0, 0, 0, images, images * PATCHES))
            if sounds:
                subs.append(SubMicrobatch(1, 0, 0, len(sounds),
                                          int(sum(sounds)) * SOUNDS))
            subs.append(SubMicrobatch(2, 0, 0, len(part), sum(
                s.text_tokens for s in part)))
            result.append(Microbatch(tuple(range(
                m * SAMPLES, m * SAMPLES + len(part))), weight, tuple(subs)))
        return tuple(result)

    def _random(self, i, what):
        return torch.Generator().manual_seed(self.seed * 1000 + 3 * i + what)

    def inputs(self, name, item):
        """Returns the data of a module's instances in a sub-microbatch."""
        rows = []
        for i in item.samples:
            s = self.samples[i]
            if name == "vision":
                rows += [torch.randn(PATCHES, 12, generator=self._random(i, 0))
                         for _ in s.images]
            elif name == "audio":
                rows += [torch.randn(int(t) * SOUNDS, 8,
                                     generator=self._random(i, 1))
                         for t in s.audio_seconds]
            else:
                rows.append(torch.randint(VOCAB, (s.text_tokens,),
                                          generator=self._random(i, 2)))
        if name != "text":
            rows = rows[item.first_instance:
                        item.first_instance + item.instances]
        return torch.cat(rows)

    def labels(self, item):
        return (self.inputs("text", item) * 7 + 3) % VOCAB


# -- The plans -----------------------------------------------------------------


def even_stages(layers, ranks):
    """Returns stages with an equal part of each module on each rank."""
    return [pipeloom.Stage(m, n * r // ranks, n * (r + 1) // ranks -
                           n * r // ranks, r, m)
            for m, n in enumerate(len(layers[name]) for name in MODULES)
            for r in range(ranks) if n * (r + 1) // ranks > n * r // ranks]


class FixedPlans:
    """A fixed schedule, without a planner."""

    def __init__(self, layers, ranks):
        self.stages = even_stages(layers, ranks)

    def static(self, step, microbatches):
        numbers = [(MODULES.index(a), MODULES.index(b)) for a, b in FEEDS]
        return pipeloom.static_plan(self.stages, numbers, microbatches,
                                    MODULES, step, "own")

    def get(self, step, batch):
        return self.static(step, batch.microbatches())

    def report(self, step, result):
        pass

    def close(self):
        pass


class ServicePlans(FixedPlans):
    """Plans of the service, which learns from the times that are reported. When
    it does not answer, the fixed schedule."""

    def __init__(self, args, rank, ranks):
        from google.protobuf import json_format
        from pipeloom import messages
        self.client = pipeloom.Client(args.service)

        def open_job():
            path = args.model_file
            model_file(path)
            fields = {"name": "own", "cluster": args.cluster,
                      "model_spec": json.loads(pathlib.Path(path).read_text()),
                      "parallel": {"pp": ranks},
                      "training": {"microbatches": args.microbatches,
                                   "microbatch_tokens": 100_000}}
            # A run that starts again may have other batches from here on.
            return self.client.open_job(
                json_format.ParseDict(fields, messages.Job()),
                Batch(0, args.microbatches).samples, job_id=args.job_id,
                new_attempt=True, partition_time=args.partition_time,
                timeout=300)

        job = of_first_rank(open_job)
        self.stages = list(job.stages)
        self.session = pipeloom.Session(self.client, job, rank=rank)
        self.provider = pipeloom.PlanProvider(
            self.session, self.static, wait=args.wait, agree=agreement())

    def get(self, step, batch):
        # A real trainer announces steps ahead: pipeloom.MetadataPrefetcher.
        self.provider.expect(step, batch.microbatches(), batch.samples,
                             batch.microbatch_of)
        return self.provider.get(step)

    def report(self, step, result):
        self.provider.report(step, result.spans)

    def close(self):
        self.provider.close()
        self.session.close(close_job=self.session.rank == 0)
        self.client.close()


# -- Checkpoints ---------------------------------------------------------------


def save(folder, step, mine, optimizer, scheduler):
    """Writes a folder with a file of each rank, which all ranks must see; it
    has its name when all are written."""
    names = [name for name, _ in mine.named_parameters()]
    state = optimizer.state_dict()
    path = os.path.join(folder, f"step{step:08}")
    if dist.get_rank() == 0:  # An earlier try may have left files.
        shutil.rmtree(path + ".partial", ignore_errors=True)
        os.makedirs(path + ".partial")
    dist.barrier()
    torch.save({"step": step, "layers": mine.state_dict(),
                "moments": {names[i]: s for i, s in state["state"].items()},
                "groups": [{**group, "params": []}
                           for group in state["param_groups"]],
                "scheduler": scheduler.state_dict()},
               os.path.join(path + ".partial", f"rank{dist.get_rank()}.pt"))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        os.rename(path + ".partial", path)


def load(folder, mine, optimizer, scheduler):
    """Reads what this rank's layers need of the newest checkpoint, whichever
    ranks wrote it, and returns its step."""
    paths = sorted(p for p in pathlib.Path(folder).glob("step*")
                   if p.name[4:].isdigit())
    if not paths:
        sys.exit(f"--resume: {folder} has no folder step*; --save writes one")
    parts = [torch.load(path) for path in sorted(paths[-1].glob("rank*.pt"))]
    layers, moments = ({name: value for part in parts
                        for name, value in part[what].items()}
                       for what in ("layers", "moments"))
    mine.load_state_dict({name: value for name, value in layers.items()
                          if name.split(".")[0] in mine})
    own = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({
        "state": {i: moments[name] for i, (name, _) in
                  enumerate(mine.named_parameters()) if name in moments},
        "param_groups": [{**group, "params": its["params"]}
                         for group, its in zip(parts[0]["groups"], own)]})
    scheduler.load_state_dict(parts[0]["scheduler"])
    return parts[0]["step"]


# -- The training --------------------------------------------------------------


def total(value):
    """Returns the sum over all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor)


def train(args):
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)  # The same weights on all ranks; each keeps its own.
    layers = layers_of()
    plans = (ServicePlans(args, rank, ranks) if args.service else
             FixedPlans(layers, ranks))
    stages = {i: Stage(MODULES[s.module], layers[MODULES[s.module]][
        s.first_layer:s.first_layer + s.num_layers], s.first_layer)
        for i, s in enumerate(plans.stages) if s.rank == rank}
    mine = nn.ModuleDict({name: layer for stage in stages.values()
                          for name, layer in stage.named_layers().items()})
    optimizer = torch.optim.AdamW(mine.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    executor = Executor(stages, rank=rank, loss_fn=loss_fn)
    first = (load(args.resume, mine, optimizer, scheduler) if args.resume
             else 0)
    for step in range(first, args.steps):
        batch = Batch(args.seed + step, args.microbatches)
        plan = plans.get(step, batch)
        optimizer.zero_grad()
        result = executor.run(plan, batch)
        norm = executor.clip_grad_norm_(1.0)
        optimizer.step()
        scheduler.step()
        plans.report(step, result)
        loss = total(result.loss)
        if rank == 0:
            print(f"step {step}  loss {loss:.5f}  gradient {norm:.4f}  "
                  f"{plan.schedule}", flush=True)
        if (step + 1) % args.evaluate_every == 0:
            held_out = Batch(7, args.microbatches)
            mine.eval()
            loss = total(executor.evaluate(
                plans.static(step, held_out.microbatches()), held_out).loss)
            mine.train()
            if rank == 0:
                print(f"held out  loss {loss:.5f}", flush=True)
    if args.save:
        save(args.save, args.steps, mine, optimizer, scheduler)
    plans.close()
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--service", default="",
                        help="address of `pipeloom serve`")
    parser.add_argument("--job-id", default="",
                        help="of the run at the service, the same when the run "
                             "starts again")
    parser.add_argument("--cluster", default="h100-sxm")
    parser.add_argument("--model-file", default="own_model.json",
                        help="where rank 0 writes the model file")
    parser.add_argument("--partition-time", type=float, default=10.0,
                        help="seconds in which the service searches which rank "
                             "has which layers")
    parser.add_argument("--wait", type=float, default=10.0,
                        help="seconds for a plan before falling back")
    parser.add_argument("--seed", type=int, default=100, help="of the data")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--save", default="", metavar="FOLDER")
    parser.add_argument("--resume", default="", metavar="FOLDER")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
