"""Replicas of a pipeline in pipeloom.hf: gradients of all of them, of whole
parameters and of those that fully_shard has divided, are those of one process.
A small model in plain torch on up to four processes. Needs torch 2.1, for
divided ones 2.9, such as scripts/hf_peer.sh makes; the real classes are in
test_hf_pipeline.py."""
import dataclasses
import os
import random
import tempfile
import unittest

import test_split
from test_split import HAVE_ALL, cut
from test_weights import model_of, on_ranks

if HAVE_ALL:
    import torch
    from torch import nn

    from pipeloom import Stage, hf
    from pipeloom.hf import shards
    from pipeloom.transport import has_local_groups
    import tiny_model

SHARDS = [""]
if HAVE_ALL and hasattr(torch.distributed, "fsdp") and hasattr(
        getattr(torch.distributed.fsdp, "FSDPModule", None),
        "set_force_sum_reduction_for_comms"):
    SHARDS += ["step", "pass"]


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def make(ranks, shard, tied=False, frozen="", seed=None):
    """Returns the place, the pipeline, and the model in one process."""
    place = hf.grid(ranks)
    models = []
    for _ in range(2):
        model = model_of(tied)
        for name, p in model.named_parameters():
            p.requires_grad_(not (frozen and frozen in name))
        models.append(model)
    partition = cut(2, 2) if ranks == 2 else hf.Partition(
        test_split.NAMES, (Stage(0, 0, 5, 0, 0), Stage(1, 0, 5, 0, 1)))
    return place, hf.Pipeline(
        models[0], partition, rank=place.rank, group=place.pipeline,
        replicas=place.replicas, shard=shard), models[1]


def samples_of(draw, replicas, pixels):
    """Six samples for each replica; patches in those of `pixels` only."""
    return [[tiny_model.sample(draw, n if r in pixels else 0)
             for n in (3, 0, 0, 0, 1, 4)] for r in range(replicas)]


def microbatch_of(replica, same):
    """Not `same`: the replicas' microbatches differ in number."""
    return [i * (3 if same or replica == 0 else 2) // 6 for i in range(6)]


def plan_of(pipe, samples, replica=0, same=True, choices=()):
    """A static plan."""
    micro = pipe.microbatches(samples, microbatch_of(replica, same))
    plan = pipe.static_plan(0, micro)
    stages = pipe.partition.stages
    return dataclasses.replace(plan, activations={
        i: tuple(choices[(i + k) % len(choices)]
                 for k in range(stages[t.stage].num_layers))
        for i, t in plan.tasks.items() if t.kind == "F" and choices})


def backward(one, every, terms, same=True):
    """The loss of all replicas' microbatches in one process."""
    total = 0.0
    for replica, samples in enumerate(every):
        of = microbatch_of(replica, same)
        for m in range(1 + max(of)):
            own = [s for s, i in zip(samples, of) if i == m]
            ids = torch.cat([s["ids"] for s in own])
            pixels = [s["pixels"] for s in own if "pixels" in s]
            loss = nn.functional.cross_entropy(
                one(ids, torch.cat(pixels) if pixels else None), ids,
                reduction="sum") / terms
            if loss.requires_grad:
                loss.backward()
            total += float(loss.detach())
    return total


def count(every):
    return sum(len(s["ids"]) for samples in every for s in samples)


def named(one):
    return {**dict(one.named_parameters()), "head.weight": one.head.weight}


def worst(pipe, one):
    """The largest difference of a gradient, which must be there on both sides
    or on neither."""
    result, expected = 0.0, named(one)
    for name, p in pipe.named_parameters():
        other = expected[name].grad
        assert (p.grad is None) == (other is None), (name, p.grad, other)
        if p.grad is not None:
            result = max(result, float((whole(p.grad) - other).abs().max()))
    return result


def compare(_, ranks, shard, options):
    """Returns the differences of gradients of several steps, and whether
    parameters were gathered by pass."""
    options = dict(options)
    tied, frozen = options.get("tied", False), options.get("frozen", "")
    place, pipe, one = make(ranks, shard, tied, frozen)
    replicas = torch.distributed.get_world_size() // ranks
    draw = random.Random(3)
    result, passes = [], []
    for pixels in ((0, 1), (1,), ()):
        pipe.zero_grad()
        one.zero_grad(set_to_none=True)
        every = samples_of(draw, replicas, pixels)
        plan = plan_of(pipe, every[place.replica], place.replica,
                       options.get("same", True), options.get("choices", ()))
        loss = torch.tensor([pipe.step(plan, every[place.replica]).loss])
        torch.distributed.all_reduce(loss)
        total = backward(one, every, count(every), options.get("same", True))
        result += [abs(float(loss) / total - 1), worst(pipe, one)]
        passes.append(pipe.gathers_by_pass)
        norm = float(pipe.clip_grad_norm_(0.01))
        other = float(nn.utils.clip_grad_norm_(one.parameters(), 0.01))
        result += [abs(norm / other - 1), worst(pipe, one)]
    return result, passes


def evaluate(place, pipe, one, every):
    """Returns how far the loss of all replicas' samples is off."""
    own = every[place.replica]
    loss = torch.tensor([pipe.evaluate(plan_of(pipe, own), own).loss])
    torch.distributed.all_reduce(loss)
    with torch.no_grad():
        return abs(float(loss) / backward(one, every, count(every)) - 1)


def accumulate(_, shard, tied):
    """Two calls before the optimizer steps, with the labels of both and of both
    replicas, and an evaluation between them; then an optimizer's steps."""
    place, pipe, one = make(2, shard, tied)
    optimizers = [torch.optim.AdamW(list(m.parameters()), lr=0.01)
                  for m in (pipe, one)]
    draw, result = random.Random(4), []
    for _ in range(3):
        calls = [samples_of(draw, 2, (0,)) for _ in range(2)]
        terms = sum(count(every) for every in calls)
        for every in calls:
            pipe.step(plan_of(pipe, every[place.replica]),
                      every[place.replica], terms=terms)
            backward(one, every, terms)
            result.append(evaluate(place, pipe, one,
                                   samples_of(draw, 2, (1,))))
        result.append(worst(pipe, one))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    expected = named(one)
    return result + [
        float((whole(p.detach()) - expected[n].detach()).abs().max())
        for n, p in pipe.named_parameters()]


def save(_, shard, tied, folder):
    place, pipe, one = make(2, shard, tied)
    own = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel()
              for p in pipe.parameters())
    with torch.no_grad():
        for p in pipe.parameters():
            p.add_(1.0)
    pipe.save(folder)
    torch.distributed.barrier()
    found = shards.find_tensors(folder)
    same = [torch.equal(shards.read_tensor(n, found[n]), p.detach() + 1.0)
            for n, p in one.named_parameters()]
    return own, all(same) and len(same) == len(found)


def wrong(rank, what):
    """Returns the error of each process."""
    try:
        if what == "grid":
            hf.grid(3)
        elif what == "no replicas":
            hf.Pipeline(model_of(), cut(2, 2), rank=0, shard="step")
        elif what == "mode":
            place = hf.grid(2)
            hf.Pipeline(model_of(), cut(2, 2), rank=place.rank,
                        group=place.pipeline, replicas=place.replicas,
                        shard="zero")
        elif what in ("weights", "stages"):
            place = hf.grid(2)
            model = model_of()
            if what == "weights" and place.replica:
                with torch.no_grad():
                    model.layers[2].down.weight[0, 0] += 1e-3
                    model.layers[0].down.weight[0, 0] += 1e-3
            at = 2 + (place.replica if what == "stages" else 0)
            hf.Pipeline(model, cut(at, 2), rank=place.rank,
                        group=place.pipeline, replicas=place.replicas)
        else:
            place, pipe, _ = make(2, "")
            samples = samples_of(random.Random(1), 2, ())[place.replica]
            plan = plan_of(pipe, samples)
            if place.replica:
                samples = samples[:5] + [{}]
            pipe.step(plan, samples)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@unittest.skipUnless(HAVE_ALL and has_local_groups(),
                     "torch 2.1 or grpcio is missing")
class ReplicasTest(unittest.TestCase):

    def check(self, processes, ranks, shard, **options):
        rows = on_ranks(processes, compare, ranks, shard,
                        sorted(options.items()))
        for differences, passes in rows:
            self.assertEqual(len(differences), 12)
            for value in differences:
                self.assertLess(value, 1e-6)
            self.assertEqual(passes, rows[0][1])
        return rows[0][1]

    def test_gradients_are_those_of_one_process(self):
        for shard in SHARDS:
            for processes, ranks in ((4, 2), (2, 1)):
                passes = self.check(processes, ranks, shard)
                # Where only one has images, the passes differ.
                self.assertEqual(passes, [shard == "pass", False,
                                          shard == "pass"])

    def test_of_a_shared_weight_and_of_frozen_ones(self):
        for shard in SHARDS:
            for processes, ranks in ((4, 2), (2, 1)):
                self.check(processes, ranks, shard, tied=True)
            self.check(4, 2, shard, frozen="tower.blocks")

    def test_recomputed(self):
        for shard in SHARDS:
            passes = self.check(4, 2, shard, choices=("KEEP", "RECOMPUTE"))
            self.assertEqual(passes[0], shard == "pass")

    def test_nothing_is_gathered_by_pass_where_plans_differ_or_offload(self):
        for options in ({"same": False}, {"choices": ("OFFLOAD", "KEEP")}):
            for shard in SHARDS:
                self.assertEqual(self.check(4, 2, shard, **options),
                                 [False] * 3)

    def test_calls_add_up_and_optimizers_step_alike(self):
        for shard in SHARDS:
            for tied in (False, True):
                for differences in on_ranks(4, accumulate, shard, tied):
                    self.assertLess(max(differences), 1e-6)

    def test_a_checkpoint_is_whole(self):
        for shard in SHARDS:
            for tied in (False, True):
                with tempfile.TemporaryDirectory() as folder:
                    rows = on_ranks(4, save, shard, tied, folder)
                    self.assertEqual(len([n for n in os.listdir(folder)
                                          if n.endswith(".safetensors")]), 2)
                self.assertTrue(all(good for _, good in rows))
                held = [own for own, _ in rows]
                every = sum(p.numel() for p in model_of().parameters())
                if shard:
                    self.assertLess(sum(held), 1.2 * every)
                else:
                    self.assertEqual(sum(held), 2 * every)

    def test_what_is_wrong_is_said_by_every_process(self):
        for what, words in (
                ("grid", "ValueError: 4 processes cannot be divided into "
                 "pipelines of 3 ranks: start a multiple of 3"),
                ("no replicas", "ValueError: shard='step' needs replicas="),
                ("mode", "ValueError: shard is 'zero'; it must be one of step, "
                 "pass"),
                ("weights", r"ValueError: layers\.[02]\.down\.weight differs "
                 "between replicas: give all of them the same weights"),
                ("stages", "ValueError: the replicas do not hold the same "
                 "parameters: `replicas` must be")):
            for error in on_ranks(4, wrong, what):
                self.assertRegex(error, words)

    def test_an_error_of_one_replica_ends_the_step_of_all(self):
        rows = on_ranks(4, wrong, "sample")
        for error in rows[:2]:
            self.assertRegex(error, "RuntimeError: another replica cannot run")
        for error in rows[2:]:
            self.assertRegex(error, "SampleError: sample 5: a sample has no "
                             "'ids'")


if __name__ == "__main__":
    unittest.main()
