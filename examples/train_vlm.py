#!/usr/bin/python3
"""Trains a small vision-language model on real batch metadata with four
processes, planned anew for every step, and checks it against one process.

  train_vlm.py --pipeloom build/dev/cli/pipeloom            # plans by search
  train_vlm.py --service 127.0.0.1:50551                    # by the service

Every layer of the planned model (dip-vlm-s: 65 encoder layers, 34 language
layers) is one small layer here, so any partition can be carried out. Each task
also lasts as long as the plan says, times --scale: the step times that are
measured are those of real processes, messages and waiting, on stages of
synthetic cost. After each dynamic step the same batch runs on the static
schedule (Megatron's interleaved 1F1B, layers of both modules in one row).

Exit code 0: losses and gradients of both equal those of one process.
"""
import argparse
import json
import os
import pathlib
import socket
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
try:
    import pipeloom
except ImportError:
    sys.path.insert(0, str(ROOT / "python"))
    import pipeloom

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from pipeloom import local
from pipeloom.torch import Executor, agreement, of_first_rank

WIDTH = 16
RANKS = 4
MODULES = ("vision_encoder", "backbone")
FEEDS = ((0, 1),)


# -- Data ---------------------------------------------------------------------


def read_samples(path, count):
    samples = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            samples.append(pipeloom.Sample(
                row.get("text_tokens", 0),
                tuple((w, h) for w, h in row.get("images", []))))
            if len(samples) == count:
                break
    return samples


def image_tokens(size):
    """Returns the number of patches of 14 pixels, at most 2704 as in the
    planned model."""
    return max(1, min(2704, (size[0] // 14) * (size[1] // 14)))


class Batch:
    """A step's samples in microbatches, and small tensors made from them."""

    def __init__(self, step, samples, num_microbatches):
        self.step = step
        self.samples = samples
        self.microbatch_of = [i * num_microbatches // len(samples)
                              for i in range(len(samples))]
        self.num_microbatches = num_microbatches
        self._tensors = {}

    def members(self, m):
        return [i for i, mine in enumerate(self.microbatch_of) if mine == m]

    def text_tokens(self, m):
        return sum(self.samples[i].text_tokens for i in self.members(m))

    def images(self, m):
        return [s for i in self.members(m) for s in self.samples[i].images]

    def tensors(self, m):
        """Returns (images, text, target) of a microbatch; `images` has a tensor
        of a few rows for each image."""
        if m not in self._tensors:
            g = torch.Generator().manual_seed(1000 * self.step + m)
            images = [torch.randn(1 + image_tokens(s) // 256, WIDTH,
                                  generator=g) for s in self.images(m)]
            rows = max(1, min(64, self.text_tokens(m) // 32))
            self._tensors[m] = (images, torch.randn(rows, WIDTH, generator=g),
                                torch.randn(rows, 1, generator=g))
        return self._tensors[m]

    def microbatches(self):
        """Returns the microbatches as the trainer has made them."""
        weights = pipeloom.loss_weights(
            [self.text_tokens(m) for m in range(self.num_microbatches)])
        result = []
        for m in range(self.num_microbatches):
            subs = []
            images = self.images(m)
            if images:
                tokens = sum(image_tokens(s) for s in images)
                subs.append(pipeloom.SubMicrobatch(0, 0, 0, len(images),
                                                   tokens, tokens // 16))
            subs.append(pipeloom.SubMicrobatch(
                1, 0, 0, len(self.members(m)),
                self.text_tokens(m) + sum(image_tokens(s) // 16
                                          for s in images)))
            result.append(pipeloom.Microbatch(tuple(self.members(m)),
                                              weights[m], tuple(subs)))
        return result


# -- Model --------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + 0.1 * torch.tanh(self.linear(x))


class Model:
    """All layers, the same on every rank; stages are slices of them."""

    def __init__(self, layers_of_module):
        torch.manual_seed(0)
        self.layers = [[Layer() for _ in range(n)] for n in layers_of_module]
        self.head = nn.Linear(WIDTH, 1)

    def parameters(self):
        for module in self.layers:
            for layer in module:
                yield from layer.parameters()
        yield from self.head.parameters()


class StageModule(nn.Module):
    def __init__(self, model, stage, is_first, is_last):
        super().__init__()
        self.module = stage.module
        self.is_first = is_first
        own = model.layers[stage.module]
        end = stage.first_layer + stage.num_layers
        self.layers = nn.ModuleList(own[stage.first_layer:end])
        self.head = model.head if is_last and stage.module == 1 else None

    def forward(self, x, item):
        if self.is_first:
            images, text, _ = item.batch.tensors(item.microbatch)
            if self.module == 0:
                first = item.first_instance
                x = torch.cat(images[first:first + item.instances])
            else:
                encoded = x
                x = text
                if encoded:
                    x = x + torch.cat(encoded[MODULES[0]]).mean(0)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def stage_modules(model, stages, rank):
    last = {}
    first = {}
    for i, s in enumerate(stages):
        last[s.module] = i
        first.setdefault(s.module, i)
    return {i: StageModule(model, s, first[s.module] == i, last[s.module] == i)
            for i, s in enumerate(stages) if s.rank == rank}


def loss_of(output, item):
    return ((output - item.batch.tensors(item.microbatch)[2]) ** 2).mean()


def one_process(model, batch):
    """Runs the same step without a pipeline; returns its loss."""
    total = 0.0
    for m, micro in enumerate(batch.microbatches()):
        images, text, target = batch.tensors(m)
        x = text
        if images:
            encoded = torch.cat(images)
            for layer in model.layers[0]:
                encoded = layer(encoded)
            x = x + encoded.mean(0)
        for layer in model.layers[1]:
            x = layer(x)
        loss = ((model.head(x) - target) ** 2).mean() * micro.loss_weight
        loss.backward()
        total += float(loss.detach())
    return total


# -- Partitions and costs ------------------------------------------------------


def dynamic_stages(layers):
    """Returns stages with a segment for each module: rank r has the r-th
    quarter of each."""
    stages = []
    for module, count in enumerate(layers):
        for r in range(RANKS):
            a, b = count * r // RANKS, count * (r + 1) // RANKS
            stages.append(pipeloom.Stage(module, a, b - a, r, module))
    return stages


def static_stages(layers, weights):
    """Returns stages with the layers of both modules in one row, cut into eight
    parts of nearly equal parameters, looped over the ranks. A part with layers
    of both modules is two stages."""
    parts = 2 * RANKS
    total = sum(n * w for n, w in zip(layers, weights))
    stages, done = [], 0.0
    row = [(m, i, weights[m]) for m, n in enumerate(layers) for i in range(n)]
    for m, i, w in row:
        part = min(parts - 1, int((done + w / 2) * parts / total))
        done += w
        if (stages and stages[-1].module == m and
                stages[-1].segment * RANKS + stages[-1].rank == part):
            s = stages[-1]
            stages[-1] = pipeloom.Stage(m, s.first_layer, s.num_layers + 1,
                                        s.rank, s.segment)
        else:
            stages.append(pipeloom.Stage(m, i, 1, part % RANKS, part // RANKS))
    return stages


def cost_of(stages, microbatches):
    """Returns a function for the nanoseconds of a task, used without a service:
    tokens times layers; a backward takes twice as long as a forward. The
    encoder's layers are 1792 wide, the language model's 4096, so a token costs
    a quarter in the encoder."""

    def cost(kind, stage, m, j):
        s = stages[stage]
        for sub in microbatches[m].subs:
            if sub.module == s.module and sub.index == j:
                per_token = 70.0 if s.module == 0 else 280.0
                forward = s.num_layers * (2e3 + per_token * sub.tokens)
                return int(forward * (1 if kind == "F" else 2))
        return 0

    return cost


# -- Sources of plans ----------------------------------------------------------


class SearchPlans:
    """Plans of `pipeloom search`, which rank 0 runs for all ranks, and the
    static plan."""

    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        self.layers = (65, 34)
        self.stages = {"dynamic": dynamic_stages(self.layers),
                       "static": static_stages(self.layers, (1.0, 5.0))}

    def prepare(self, batches):
        pass

    def close(self):
        pass

    def get(self, which, batch):
        stages = self.stages[which]
        microbatches = batch.microbatches()
        cost = cost_of(stages, microbatches)
        if which == "static":
            return pipeloom.static_plan(stages, FEEDS, microbatches, MODULES,
                                        batch.step, "train_vlm", cost)
        graph = local.graph_of(stages, FEEDS, microbatches, cost)
        orders = [None]
        if self.rank == 0:
            orders[0] = local.search_orders(
                self.args.pipeloom, graph, RANKS,
                evaluations=self.args.evaluations)
        dist.broadcast_object_list(orders)
        return local.plan_of(graph, orders[0], MODULES, microbatches,
                             "search", batch.step, "train_vlm")


class ServicePlans:
    """Plans of two jobs of the service, one of them with the static schedule.
    Once they are open, the service may be slow, end or be replaced, and the
    training goes on."""

    def __init__(self, args, rank):
        self.client = pipeloom.connect(args.service)
        self.stages, self.sessions, self.providers = {}, {}, {}
        sample = read_samples(args.batches, 512)
        for which, schedule in (("dynamic", "pipeloom"),
                                ("static", "megatron")):
            # The model is built from the job's partition, so all ranks need the
            # same job.
            job = of_first_rank(lambda s=schedule: self.client.open_job(
                self.job(args, s), sample,
                job_id=args.job_id and f"{args.job_id}-{s}",
                new_attempt=True))
            if job.module_names != MODULES:
                raise SystemExit(
                    f"the job's modules are {job.module_names}, not {MODULES}")
            stages = self.stages[which] = list(job.stages)
            self.sessions[which] = pipeloom.Session(self.client, job,
                                                    rank=rank)
            self.providers[which] = pipeloom.PlanProvider(
                self.sessions[which],
                lambda step, microbatches, stages=stages: pipeloom.static_plan(
                    stages, FEEDS, microbatches, MODULES, step, "train_vlm",
                    cost_of(stages, microbatches)),
                wait=args.wait, agree=agreement())
        self.layers = [sum(s.num_layers for s in self.stages["dynamic"]
                           if s.module == m) for m in range(len(MODULES))]

    @staticmethod
    def job(args, schedule):
        from google.protobuf import json_format
        from pipeloom import messages
        text = (ROOT / "workloads/jobs/dip-vlm-s.json").read_text()
        job = json_format.Parse(text, messages.Job())
        job.name = f"train_vlm-{schedule}"
        job.training.microbatches = args.microbatches
        job.search.schedule = schedule
        job.search.ClearField("deadline_us")
        job.search.evaluations = args.evaluations
        return job

    def prepare(self, batches):
        """Announces steps two steps ahead of the trainer, as a data loader
        would."""
        for batch in batches:
            for provider in self.providers.values():
                provider.expect(batch.step, batch.microbatches(),
                                batch.samples, batch.microbatch_of)

    def get(self, which, batch):
        return self.providers[which].get(batch.step)

    def close(self):
        for which, provider in self.providers.items():
            provider.close()
            self.sessions[which].close(close_job=self.sessions[which].rank == 0)
        self.client.close()


# -- Training -----------------------------------------------------------------


def train(rank, args, port, out):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    plans = (ServicePlans if args.service else SearchPlans)(args, rank)
    per_step = args.microbatches * args.samples
    samples = read_samples(args.batches, per_step * args.steps)
    batches = [Batch(i, samples[i * per_step:(i + 1) * per_step],
                     args.microbatches) for i in range(args.steps)]

    def synthetic(plan, task):
        end = time.perf_counter() + (plan.tasks[task].duration_ns * 1e-9 *
                                     args.scale)
        return lambda: time.sleep(max(0.0, end - time.perf_counter()))

    reference = Model(plans.layers)
    models, executors = {}, {}
    for which in ("static", "dynamic"):
        models[which] = Model(plans.layers)
        executors[which] = Executor(
            stage_modules(models[which], plans.stages[which], rank),
            rank=rank, loss_fn=loss_of, on_task=synthetic)
    trace = (pipeloom.TraceFile(
        os.path.join(args.traces, f"rank{rank}.json"), rank)
        if args.traces else None)
    rows, worst = [], 0.0
    ahead = 2
    plans.prepare(batches[:ahead])
    for batch in batches:
        if batch.step + ahead < len(batches):
            plans.prepare([batches[batch.step + ahead]])
        for p in reference.parameters():
            p.grad = None
        expected = one_process(reference, batch)
        row = {"step": batch.step}
        for which in ("static", "dynamic"):
            for p in models[which].parameters():
                p.grad = None
            begin = time.perf_counter()
            plan = plans.get(which, batch)
            planning = time.perf_counter() - begin
            dist.barrier()
            begin = time.perf_counter()
            result = executors[which].run(plan, batch)
            if trace is not None and which == "dynamic":
                trace.add(plan, result)
            dist.barrier()
            seconds = time.perf_counter() - begin
            loss = torch.tensor([result.loss], dtype=torch.float64)
            dist.all_reduce(loss)
            difference = abs(float(loss) - expected)
            # Other ranks compare the gradients of their own layers.
            for a, b in zip(models[which].parameters(),
                            reference.parameters()):
                if a.grad is not None:
                    difference = max(difference, float(
                        (a.grad - b.grad).abs().max()))
            covered = torch.tensor([float(sum(
                a.grad is not None for a in models[which].parameters()))])
            dist.all_reduce(covered)
            wanted = sum(p.grad is not None for p in reference.parameters())
            if int(covered) != wanted:
                raise RuntimeError(f"{int(covered)} gradients, not {wanted}")
            largest = torch.tensor([difference])
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            worst = max(worst, float(largest))
            row[which] = seconds
            row[which + "_plan"] = planning
            row[which + "_predicted"] = (plan.predicted_step_time_ns * 1e-9 *
                                         args.scale)
            row[which + "_tasks"] = sum(t.rank == rank
                                        for t in plan.tasks.values())
            row[which + "_name"] = plan.schedule
            row["loss"] = float(loss)
            row["difference"] = max(row.get("difference", 0.0),
                                    float(largest))
        # All models get the same update, from the reference's gradients, so
        # that each step begins with equal weights.
        with torch.no_grad():
            for model in list(models.values()) + [reference]:
                for p, r in zip(model.parameters(), reference.parameters()):
                    if r.grad is not None:
                        p -= args.learning_rate * r.grad
        rows.append(row)
    if rank == 0:
        pathlib.Path(out).write_text(json.dumps(
            {"rows": rows, "worst": worst,
             "counts": {w: p.counts for w, p in getattr(
                 plans, "providers", {}).items()}}))
    plans.close()
    if trace is not None:
        trace.close()
    dist.barrier()
    dist.destroy_process_group()


def predicted(seconds):
    """Returns a cell of the table; 0: the plan predicts no time."""
    return f"{seconds * 1e3:7.1f} ms" if seconds > 0 else f"{'-':>10}"


def show(result, tolerance):
    print("      measured               predicted")
    print("step  static     dynamic     static     dynamic    ratio  planning  "
          "loss      difference")
    for row in result["rows"]:
        print(f"{row['step']:4d}  {row['static'] * 1e3:7.1f} ms "
              f"{row['dynamic'] * 1e3:7.1f} ms  "
              f"{predicted(row['static_predicted'])} "
              f"{predicted(row['dynamic_predicted'])}  "
              f"{row['static'] / row['dynamic']:5.2f}  "
              f"{row['dynamic_plan'] * 1e3:5.1f} ms  {row['loss']:.6f}   "
              f"{row['difference']:.1e}")
    rows = result["rows"]
    static = sum(r["static"] for r in rows)
    dynamic = sum(r["dynamic"] for r in rows)
    print(f"\nsum   {static * 1e3:7.1f} ms {dynamic * 1e3:7.1f} ms: the "
          f"dynamic plans are {static / dynamic:.2f} times as fast "
          f"({rows[0]['static_name']}, {rows[0]['static_tasks']} tasks on "
          f"rank 0, and {rows[0]['dynamic_name']}, "
          f"{rows[0]['dynamic_tasks']})")
    for which, counts in result["counts"].items():
        print(f"{which}: {counts}")
    print(f"largest difference of losses and gradients from one process: "
          f"{result['worst']:.1e} "
          f"({'ok' if result['worst'] < tolerance else 'too large'})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--service", default="",
                        help="address of `pipeloom serve`, or @FILE that has "
                             "it in its first line; its token and certificate "
                             "are in the files that PIPELOOM_TOKEN_FILE and "
                             "PIPELOOM_TLS_ROOT name")
    parser.add_argument("--job-id", default="",
                        help="of the run at the service, the same when the "
                             "run starts again")
    parser.add_argument("--pipeloom", default="pipeloom",
                        help="the binary, for plans without a service")
    parser.add_argument("--batches",
                        default=str(ROOT / "workloads/batches/mixed.jsonl"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4,
                        help="of a microbatch")
    parser.add_argument("--scale", type=float, default=2.0,
                        help="of the plan's times; 0: no synthetic cost")
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--wait", type=float, default=10.0,
                        help="seconds for a plan before falling back")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--json", default="", help="write the figures there")
    parser.add_argument("--traces", default="", metavar="FOLDER",
                        help="write what the dynamic plans' ranks did there, "
                             "for `pipeloom trace FOLDER`")
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        # Forked, so that torch is imported once; no thread was started yet.
        mp.start_processes(train, (args, port, out), RANKS,
                           start_method="fork")
        result = json.loads(pathlib.Path(out).read_text())
    show(result, args.tolerance)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))
    return 0 if result["worst"] < args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
