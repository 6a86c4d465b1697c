"""A step's samples, by task."""
import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

from pipeloom.hf.family import Chain, Family, Sample, SampleError, Work
from pipeloom.plan import Microbatch, Plan


class StepBatch:
    """The samples of a step, and what was computed from them. Tasks of one
    sub-microbatch share their masks and positions, which live as long as the
    step."""

    def __init__(self, family: Family, plan: Plan,
                 samples: Sequence[Sample]) -> None:
        self.family, self.plan, self.samples = family, plan, samples
        self._works: Dict[Tuple[str, int, int], Work] = {}

    def work(self, chain: Chain, item: Any) -> Work:
        key = (chain.name, item.microbatch, item.sub)
        if key not in self._works:
            samples = [self.samples[i] for i in item.samples]
            if not chain.feeds:
                # Instances of a module with a loss are samples.
                samples = samples[item.first_instance:
                                  item.first_instance + item.instances]
            self._works[key] = Work(chain, item, samples, item.first_instance,
                                    item.instances)
        return self._works[key]

    def terms(self, microbatch: int) -> int:
        """Returns the number of the loss's terms in a microbatch."""
        return sum(self.family.count(self.samples[i]) for i in
                   self.plan.microbatches[microbatch].samples)


def weigh(family: Family, plan: Plan, samples: Sequence[Sample],
          terms: int = 0) -> Plan:
    """Returns the plan with loss weights by the number of loss terms, instead
    of those by its loss_shares. `terms` is their number in the step, over all replicas; 0: that of these samples."""
    counts = [sum(family.count(samples[i]) for i in m.samples)
              for m in plan.microbatches]
    if terms and terms < sum(counts):
        raise SampleError(
            f"terms is {terms}, but the samples of this call alone have "
            f"{sum(counts)} labels: give the number over all replicas and over "
            "all calls whose gradients are added up")
    total = terms or sum(counts)
    if total == 0:
        raise SampleError("no sample of the step has a label: there is no loss")
    return dataclasses.replace(plan, loss_shares={}, loss_totals={},
                               microbatches=tuple(
        dataclasses.replace(m, loss_weight=n / total)
        for m, n in zip(plan.microbatches, counts)))


def check_samples(family: Family, plan: Plan,
                  samples: Sequence[Sample]) -> None:
    """Checks that the samples are those that the plan was made for.
    SampleError: names the sample, the field and the remedy."""
    if not plan.microbatches:
        raise SampleError(
            "the plan does not say which samples its microbatches have: plan "
            "files lack them; take plans from the service, or give them with "
            "Plan.with_microbatches")
    for i, sample in enumerate(samples):
        try:
            family.check_sample(sample)
        except SampleError as error:
            raise SampleError(f"sample {i}: {error}") from None
    seen: List[int] = []
    for m, microbatch in enumerate(plan.microbatches):
        if microbatch.cut_samples():
            raise SampleError(
                f"sample {microbatch.cut_samples()[0]} is longer than a "
                f"microbatch, and microbatch {m} of the plan has a part of it: "
                "samples are not cut here; raise training.microbatch_tokens of "
                "the job, or shorten the sample")
        for i in microbatch.samples:
            if not 0 <= i < len(samples):
                raise SampleError(
                    f"microbatch {m} of the plan has sample {i}; the step has "
                    f"{len(samples)}: give the samples that were submitted, in "
                    "that order")
            seen.append(i)
        _check_instances(family, plan, m, microbatch,
                         [samples[i] for i in microbatch.samples])
    if sorted(seen) != list(range(len(samples))):
        missing = sorted(set(range(len(samples))) - set(seen))
        raise SampleError(
            f"the plan has not all {len(samples)} samples once (not "
            f"{missing[:5]}): give those that it was made for")


def _check_instances(family: Family, plan: Plan, m: int,
                     microbatch: Microbatch,
                     samples: Sequence[Sample]) -> None:
    for chain in family.chains:
        module = plan.module_names.index(chain.name)
        have = sum(family.instances(chain, s) for s in samples)
        planned = sum(s.instances for s in microbatch.subs
                      if s.module == module)
        if have != planned:
            raise SampleError(
                f"microbatch {m}: its samples have {have} instances of "
                f"{chain.name}, the plan {planned}: submit the sizes of the "
                "same images and videos that the samples have "
                "(Pipeline.sizes)")
        subs = [s for s in microbatch.subs if s.module == module]
        if len(subs) > 1 and any(c.feeds == chain.name
                                 for c in family.chains):
            raise SampleError(
                f"microbatch {m}: {chain.name} has {len(subs)} sub-"
                "microbatches, which the outputs of other modules cannot be "
                "divided among: give it more instances than a microbatch has "
                "in training.sub_microbatch_sizes of the job")
