"""A training by examples/megatron/plan_runner.py for fault_training.py: two
processes, on the stand-in of Megatron's schedules; without an agreed plan, a
schedule that stands in for Megatron's own."""
import types

import torch
import torch.distributed as dist
from google.protobuf import json_format

import fault_training
import pipeloom
from faulty_planner import OTHER_JOB
from fault_training import AHEAD, ROOT, TimedAgreement, checksum_text
from pipeloom import messages
from pipeloom.torch import agreement, of_first_rank
from test_megatron import (Chunk, RANKS, data, forward_step_func,
                           stand_in)
from plan_runner import PlanRunner, refusal

MICROBATCHES = 4


def job_message():
    with open(f"{ROOT}/workloads/jobs/llama3-8b.json",
              encoding="utf-8") as file:
        job = json_format.Parse(file.read(), messages.Job())
    job.name = "megatron_training"
    job.parallel.pp, job.parallel.dp = RANKS, 1
    job.training.microbatches = MICROBATCHES
    job.search.schedule = "1f1b"  # Whole backwards, as Megatron has them.
    return job


class MegatronTrainer:
    RANKS = RANKS

    def __init__(self, rank, replicas, port, wait, shared):
        assert replicas == 1
        self.rank, self.shared = rank, shared
        client = pipeloom.Client(f"127.0.0.1:{port}")
        samples = [pipeloom.Sample(1000 + 37 * i) for i in range(8)]
        self.job = of_first_rank(lambda: client.open_job(
            job_message(), samples, job_id="training"))
        self.stages = list(self.job.stages)
        if rank == 0:
            # Its stages on the other rank: for a liar to answer from.
            client.open_job(
                job_message(), samples, job_id=OTHER_JOB,
                module_names=self.job.module_names,
                stages=[pipeloom.Stage(s.module, s.first_layer, s.num_layers,
                                       RANKS - 1 - s.rank, s.segment)
                        for s in self.stages])
        self.session = pipeloom.Session(client, self.job, rank=rank)
        self.agreement = TimedAgreement(agreement())
        self.provider = pipeloom.PlanProvider(
            self.session, lambda step, microbatches: None, wait=wait,
            agree=self.agreement, accept=refusal)
        self.ran = ""
        self.step = 0
        stock = PlanRunner(lambda step, n: self.own(n), stand_in(), rank)
        self.runner = PlanRunner(self.plan, stand_in(), rank, stock=stock,
                                 iteration=lambda: self.step)
        config = types.SimpleNamespace(
            calculate_per_token_loss=True, no_sync_func=None,
            finalize_model_grads_func=None)
        self.models = []
        for _ in range(2):  # This rank's, and the reference.
            torch.manual_seed(0)
            self.models.append([Chunk(config, i == 0, i + 1 == len(self.stages))
                                for i in range(len(self.stages))])
        self.mine = [i for i, s in enumerate(self.stages) if s.rank == rank]

    def microbatches(self, step):
        return [pipeloom.Microbatch(
            (m,), 1.0 / MICROBATCHES,
            (pipeloom.SubMicrobatch(0, tokens=self.tokens(step, m)),))
                for m in range(MICROBATCHES)]

    @staticmethod
    def tokens(step, m):
        return 500 + 100 * ((step + m) % 7)

    def metadata(self, step):
        return ([pipeloom.Sample(self.tokens(step, m))
                 for m in range(MICROBATCHES)], list(range(MICROBATCHES)))

    def own(self, count):
        return pipeloom.static_plan(
            self.stages, (), self.microbatches(0)[:count],
            self.job.module_names)

    def plan(self, step, count):
        plan, self.waited = self.agreement.get(self.provider, step)
        self.ran = "stock" if plan is None else checksum_text(plan)
        return plan

    def difference(self, batches, losses):
        reference = self.models[1]
        total = 0.0
        for chunk in reference:
            chunk.zero_grad()
        for rows, target in batches:
            x = rows
            for chunk in reference:
                x = torch.tanh(chunk.linear(x))
            loss = ((x - target) ** 2).sum()
            loss.backward()
            total += float(loss.detach())
        worst = 0.0
        for i in self.mine:
            worst = max(worst, float((
                self.models[0][i].linear.weight.grad -
                reference[i].linear.weight.grad).abs().max()))
        if self.stages[-1].rank == self.rank:
            worst = max(worst, abs(sum(d["loss"] for d in losses) - total))
        return worst

    def train(self):
        log, worst = [], 0.0
        end = torch.zeros(1)

        def steps():
            step = 0
            while True:
                yield step
                step += 1

        for self.step, _ in pipeloom.MetadataPrefetcher(
                steps(), self.provider, self.microbatches, self.metadata,
                ahead=AHEAD):
            sizes = [1 + (self.step + m) % 3 for m in range(MICROBATCHES)]
            batches = data(sizes)
            model = self.models[0]
            for chunk in model:
                chunk.zero_grad()
            losses = self.runner(
                forward_step_func=forward_step_func,
                data_iterator=[iter(batches) for _ in self.mine],
                model=[model[i] for i in self.mine],
                num_microbatches=MICROBATCHES, seq_length=1,
                micro_batch_size=1)
            worst = max(worst, self.difference(batches, losses))
            counts = self.provider.counts
            log.append((self.waited, self.ran, counts["planned"],
                        counts["last_good"]))
            if self.rank == 0:
                self.shared.step.value = self.step
                if log[-1][2] > (log[-2][2] if len(log) > 1 else 0):
                    self.shared.planned.value = self.step
                end[0] = float(self.shared.stop.value)
            # As long as a real step, so that faults meet different ones.
            fault_training.time.sleep(0.02)
            dist.broadcast(end, 0)
            if end[0] > 0:
                break
        self.provider.close()
        self.session.close(close_job=self.rank == 0)
        self.session.client.close()
        return log, worst, dict(self.provider.counts), dict(
            self.session.counts), self.provider.votes
