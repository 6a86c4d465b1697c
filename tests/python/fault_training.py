#!/usr/bin/python3
"""A training of several processes while its planner fails again and again.

  fault_training.py --faults 300                  # each kind, 4 processes
  fault_training.py --faults 300 --replicas 2     # 8 processes
  fault_training.py --kinds stop,cut --faults 20

Trains the small model of examples/train_vlm.py over gloo (--trainer megatron:
one by examples/megatron/plan_runner.py, two processes). Checks of every step
that losses and gradients are those of one process, that all ranks ran the same
plan, and how long the ranks waited ("late": more than 1.1 times what they may;
"late by load": of those, steps that were not but for what their processes were
ready to run and got no core); after every fault, that steps are planned again.
PIPELOOM_BINARY says which `pipeloom` serves. Prints a row for each kind;
exit code 0: all is well.
"""
import argparse
import ctypes
import faulthandler
import json
import os
import random
import socket
import sys
import threading
import time
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path[:0] = [HERE, os.path.join(ROOT, "python"),
                os.path.join(ROOT, "examples")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import pipeloom  # noqa: E402
from faulty_planner import OTHER_JOB, Faults  # noqa: E402
import train_vlm  # noqa: E402
from pipeloom.agreement import decode  # noqa: E402
from pipeloom.torch import Executor, agreement, of_first_rank  # noqa: E402

RANKS = train_vlm.RANKS
MICROBATCHES = 4
SAMPLES = 2  # Of a microbatch.
BATCHES = 24  # Distinct ones, one after another.
AHEAD = 2


class Shared:
    """The data that the processes share with the test that watches them."""

    def __init__(self, context, world):
        self.stop = context.Value(ctypes.c_bool, False)
        self.step = context.Value(ctypes.c_long, -1)
        self.planned = context.Value(ctypes.c_long, -1)  # The last such step.
        self.results = context.Queue()
        self.stuck = context.Event()
        self.world = world


def job_message(replicas):
    from google.protobuf import json_format
    from pipeloom import messages
    with open(os.path.join(ROOT, "workloads/jobs/dip-vlm-s.json"),
              encoding="utf-8") as file:
        job = json_format.Parse(file.read(), messages.Job())
    job.name = "fault_training"
    job.parallel.dp = replicas
    job.training.microbatches = MICROBATCHES
    # A deadline in time, so that a restarted planner finds another plan.
    job.search.deadline_us = 10000
    return job


class Moment:
    """A time, and how long each thread of this process had been ready to run
    by then and got no core; seconds."""

    def __init__(self):
        self.at = time.monotonic()
        self._delays = {}
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/schedstat",
                          encoding="ascii") as file:
                    self._delays[thread] = int(file.read().split()[1]) * 1e-9
            except OSError:
                pass  # It has ended.

    def delay_since(self, earlier):
        """Returns the delay of the thread that was delayed most."""
        return max((delay - earlier._delays.get(thread, 0.0)
                    for thread, delay in self._delays.items()), default=0.0)


class Wait(NamedTuple):
    """The wait of one rank for one step's plan."""
    called: float
    voted: float  # The last vote that it cast for the step.
    returned: float
    delay_before: float  # The vote, from the call on.
    delay_after: float


class TimedAgreement:
    """An all-gather of votes, and how long a rank waits for a plan by it."""

    def __init__(self, gather):
        self._gather = gather
        self.rank, self.size = gather.rank, gather.size
        self._votes = {}

    def __call__(self, words):
        self._votes[decode(words).step] = Moment()
        return self._gather(words)

    def get(self, provider, step):
        """The plan, and the Wait for it."""
        called = Moment()
        plan = provider.get(step)
        returned = Moment()
        voted = max(called, self._votes.pop(step), key=lambda m: m.at)
        return plan, Wait(called.at, voted.at, returned.at,
                          voted.delay_since(called),
                          returned.delay_since(voted))


def time_and_delay(waits):
    """Seconds from when the last rank had come until all had their plan; and
    how many of them the machine gave no core to a thread of those that had to
    act: the rank that voted last, until then, and after that the rank that was
    delayed most."""
    voter = max(waits, key=lambda w: w.voted)
    return (max(w.returned for w in waits) - max(w.called for w in waits),
            voter.delay_before + max(w.delay_after for w in waits))


def checksum_text(plan):
    return f"{plan.checksum[0]:016x}{plan.checksum[1]:016x}"


class Trainer:
    """One process; another class of this shape is another trainer."""
    RANKS = RANKS

    def __init__(self, rank, replicas, port, wait, shared):
        self.world, self.shared = RANKS * replicas, shared
        self.rank, self.replica = rank % RANKS, rank // RANKS
        self.global_rank, self.replicas = rank, replicas
        groups = [dist.new_group(list(range(r * RANKS, (r + 1) * RANKS)))
                  for r in range(replicas)]
        across = [dist.new_group([r * RANKS + s for r in range(replicas)])
                  for s in range(RANKS)]
        self.group, self.across = groups[self.replica], across[self.rank]
        per_step = MICROBATCHES * SAMPLES
        samples = train_vlm.read_samples(
            os.path.join(ROOT, "workloads/batches/mixed.jsonl"),
            per_step * BATCHES * replicas)
        self.batches = [[
            train_vlm.Batch(1000 * r + i, samples[
                (r * BATCHES + i) * per_step:(r * BATCHES + i + 1) * per_step],
                MICROBATCHES) for i in range(BATCHES)]
            for r in range(replicas)]
        client = pipeloom.Client(f"127.0.0.1:{port}")
        self.job = of_first_rank(lambda: client.open_job(
            job_message(replicas), samples[:64], job_id="training"))
        self.other_job(client, samples)
        stages = list(self.job.stages)
        self.session = pipeloom.Session(
            client, self.job, rank=self.rank, replica=self.replica,
            submits=self.rank == 0)
        self.agreement = TimedAgreement(agreement())
        self.provider = pipeloom.PlanProvider(
            self.session, lambda step, micro: pipeloom.static_plan(
                stages, train_vlm.FEEDS, micro, train_vlm.MODULES, step),
            wait=wait, agree=self.agreement)
        layers = [sum(s.num_layers for s in stages if s.module == m)
                  for m in range(2)]
        self.model = train_vlm.Model(layers)
        self.reference = train_vlm.Model(layers)
        self.expected = {}
        self.executor = Executor(
            train_vlm.stage_modules(self.model, stages, self.rank),
            rank=self.rank, group=self.group, loss_fn=train_vlm.loss_of,
            reduce_fn=self.reduce)

    def other_job(self, client, samples):
        """Opens the same model with another partition: what a lying planner
        answers from."""
        if self.global_rank == 0:
            stages = []
            for module, layers in ((0, 65), (1, 34)):
                for r in range(RANKS):
                    a, b = layers * r // RANKS, layers * (r + 1) // RANKS
                    # The encoder's ranks in the other order.
                    stages.append(pipeloom.Stage(
                        module, a, b - a, r if module else RANKS - 1 - r,
                        module))
            client.open_job(job_message(self.replicas), samples[:64],
                            stages=stages, module_names=train_vlm.MODULES,
                            job_id=OTHER_JOB)

    def reduce(self):
        for p in self.model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, group=self.across)

    def one_process(self, index):
        """Losses by replica, and gradients of all replicas together."""
        if index not in self.expected:
            for p in self.reference.parameters():
                p.grad = None
            losses = [train_vlm.one_process(self.reference, of[index])
                      for of in self.batches]
            self.expected[index] = (losses, [
                None if p.grad is None else p.grad.clone()
                for p in self.reference.parameters()])
        return self.expected[index]

    def loader(self):
        step = 0
        while True:
            yield self.batches[self.replica][step % BATCHES]
            step += 1

    def train(self):
        log, worst = [], 0.0
        end = torch.zeros(1)
        for step, batch in pipeloom.MetadataPrefetcher(
                self.loader(), self.provider, lambda b: b.microbatches(),
                lambda b: (b.samples, b.microbatch_of), ahead=AHEAD):
            for p in self.model.parameters():
                p.grad = None
            plan, waited = self.agreement.get(self.provider, step)
            result = self.executor.run(plan, batch)
            self.provider.report(step, result.spans)
            worst = max(worst, self.difference(step % BATCHES, result.loss))
            counts = self.provider.counts
            log.append((waited, checksum_text(plan), counts["planned"],
                        counts["last_good"]))
            if self.global_rank == 0:
                self.shared.step.value = step
                if log[-1][2] > (log[-2][2] if len(log) > 1 else 0):
                    self.shared.planned.value = step
                end[0] = float(self.shared.stop.value)
            dist.broadcast(end, 0)
            if end[0] > 0:
                break
        self.provider.close()
        self.session.close(close_job=self.global_rank == 0)
        self.session.client.close()
        return log, worst, dict(self.provider.counts), dict(
            self.session.counts), self.provider.votes

    def difference(self, index, loss):
        losses, gradients = self.one_process(index)
        total = torch.tensor([loss], dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        worst = abs(float(total) - losses[self.replica])
        own = set()
        for module in self.executor.stages.values():
            own |= {id(p) for p in module.parameters()}
        for p, expected in zip(self.model.parameters(), gradients):
            if id(p) not in own:
                continue
            # A layer without a gradient on either side is compared as zero.
            left = torch.zeros_like(p) if p.grad is None else p.grad
            right = torch.zeros_like(p) if expected is None else expected
            worst = max(worst, float((left - right).abs().max()))
        return worst


def explain(training):
    """Says what a rank is at, once no step is planned any more."""
    training.shared.stuck.wait()
    session, now = training.session, time.monotonic()
    print(f"rank {training.rank}: {training.provider.counts} "
          f"{session.counts}", *(
              f"{c.kind} {c.step}" + (f" for {now - c.begun:.1f} s"
                                      if c.future else "")
              for c in list(session._calls) if not c.done and c.wanted),
          sep="; ", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)


def worker(trainer, rank, replicas, port, master, wait, shared):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master),
                      USE_LIBUV="0")
    import logging
    logging.basicConfig(level=os.environ.get("PIPELOOM_TEST_LOG", "ERROR"))
    dist.init_process_group("gloo", rank=rank,
                            world_size=trainer.RANKS * replicas)
    try:
        training = trainer(rank, replicas, port, wait, shared)
        threading.Thread(target=explain, args=(training,), daemon=True).start()
        shared.results.put((rank, training.train()))
        dist.barrier()
    except BaseException as error:
        shared.results.put((rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


class Run:
    """A training that goes on until it is told to stop."""

    def __init__(self, trainer, port, replicas=1, wait=1.0):
        context = mp.get_context("fork")
        self.world = trainer.RANKS * replicas
        self.shared = Shared(context, self.world)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            master = s.getsockname()[1]
        self.processes = [
            context.Process(target=worker, args=(
                trainer, r, replicas, port, master, wait, self.shared),
                daemon=True)
            for r in range(self.world)]
        for p in self.processes:
            p.start()

    def check_alive(self):
        if any(p.exitcode not in (None, 0) for p in self.processes):
            raise AssertionError("a process of the training has ended: "
                                 f"{self.collect(20)}")

    def until_planned(self, after, patience=120.0):
        """Waits for a planned step later than `after`; returns it."""
        end = time.monotonic() + patience
        while self.shared.planned.value <= after:
            self.check_alive()
            if time.monotonic() > end:
                self.shared.stuck.set()
                time.sleep(2.0)
                raise AssertionError(
                    f"no step after {after} is planned; the training is at "
                    f"step {self.shared.step.value}")
            time.sleep(0.005)
        return self.shared.planned.value

    def collect(self, patience):
        results = {}
        while len(results) < self.world:
            rank, result = self.shared.results.get(timeout=patience)
            results[rank] = result
        return results

    def finish(self):
        """Stops the training; returns each rank's result."""
        self.shared.stop.value = True
        results = self.collect(120)
        for rank, result in results.items():
            if isinstance(result, str):
                raise AssertionError(f"rank {rank}: {result}")
        for p in self.processes:
            p.join(60)
            if p.exitcode != 0:
                raise AssertionError(f"a process ended with {p.exitcode}")
        return results

    def kill(self):
        for p in self.processes:
            if p.is_alive():
                p.kill()
            p.join(10)


def judge(results, ranks, replicas, wait):
    """Figures of a training that has ended; AssertionError: ranks ran
    different plans."""
    logs = {rank: result[0] for rank, result in results.items()}
    steps = {len(log) for log in logs.values()}
    if len(steps) != 1:
        raise AssertionError(f"the ranks ran {steps} steps")
    count = steps.pop()
    waits, late, late_by_load = [], 0, 0
    for step in range(count):
        for replica in range(replicas):
            sums = {logs[replica * ranks + r][step][1] for r in range(ranks)}
            if len(sums) != 1:
                raise AssertionError(f"step {step}: the ranks ran the plans "
                                     f"{sums}")
        chosen = {log[step][2:] for log in logs.values()}
        if len(chosen) != 1:
            raise AssertionError(f"step {step}: the ranks chose differently: "
                                 f"{chosen}")
        took, delay = time_and_delay([log[step][0] for log in logs.values()])
        waits.append(took)
        late += took > 1.1 * wait
        late_by_load += took > 1.1 * wait >= took - delay
    counts, session = results[0][2], results[0][3]
    return {"steps": count, "largest difference": max(
        r[1] for r in results.values()), "longest wait": max(waits),
        "late": late, "late by load": late_by_load, **counts,
        "votes a step": results[0][4] / count,
        "failures": sum(r[3]["failures"] for r in results.values()),
        "misfits": sum(r[3]["misfits"] for r in results.values()),
        "reopened": sum(r[3]["reopened"] for r in results.values()),
        "reconnected": sum(r[3]["reconnected"] for r in results.values()),
        "reported": session["reported"]}


def run_under(kinds, faults, *, trainer=Trainer, replicas=1, wait=1.0, seed=1,
              longest_stop=10.0, pause=0.5):
    """A training under so many faults, of the kinds in turn; its figures."""
    rng = random.Random(seed)
    planner = Faults(kinds, seed, longest_stop)
    run = None
    try:
        run = Run(trainer, planner.port, replicas, wait)
        run.until_planned(-1)
        slowest = 0.0
        for i in range(faults):
            time.sleep(rng.uniform(0.0, pause))
            planner.strike(kinds[i % len(kinds)])
            begin = time.monotonic()
            # Now and then the next fault comes before all is well again.
            if rng.random() < 0.8 or i + 1 == faults:
                run.until_planned(run.shared.step.value)
                slowest = max(slowest, time.monotonic() - begin)
            run.check_alive()
        figures = judge(run.finish(), trainer.RANKS, replicas, wait)
        figures["faults"] = faults
        figures["slowest recovery"] = slowest
        if planner.liar is not None:
            figures["lies"] = planner.liar.lies
        if planner.proxy is not None:
            figures["cuts"] = planner.proxy.cuts
        return figures
    except AssertionError as error:
        code = planner.planner.process.poll()
        raise AssertionError(f"{error}; the planner " + (
            "runs" if code is None else f"has ended with {code}")) from error
    finally:
        if run is not None:
            run.kill()
        planner.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--faults", type=int, default=300, help="of each kind")
    parser.add_argument("--kinds", default=",".join(Faults.KINDS),
                        help="one training each; with + between them: both in "
                             "turn in one training")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--trainer", choices=("executor", "megatron"),
                        default="executor")
    parser.add_argument("--wait", type=float, default=1.0,
                        help="seconds that a step waits for its plan")
    parser.add_argument("--longest-stop", type=float, default=10.0,
                        help="seconds; SIGSTOP lasts 0.5 to this")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    runs = [kinds.split("+") for kinds in args.kinds.split(",")]
    unknown = {kind for kinds in runs for kind in kinds} - set(Faults.KINDS)
    if unknown:
        parser.error(f"--kinds has {sorted(unknown)}; there are "
                     f"{', '.join(Faults.KINDS)}")
    trainer = Trainer
    if args.trainer == "megatron":
        from megatron_training import MegatronTrainer as trainer
    failed = False
    for kinds in runs:
        begin = time.monotonic()
        try:
            figures = run_under(
                kinds, args.faults * len(kinds), trainer=trainer,
                replicas=args.replicas, wait=args.wait, seed=args.seed,
                longest_stop=args.longest_stop)
            wrong = figures["largest difference"] >= 1e-5
            failed |= wrong or figures["late"] > 0
        except AssertionError as error:
            failed, figures = True, {"error": str(error)}
        figures["seconds"] = time.monotonic() - begin
        print(json.dumps({"kind": "+".join(kinds), **{
            k: round(v, 9) if isinstance(v, float) else v
            for k, v in figures.items()}}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
