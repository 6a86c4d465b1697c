"""The front door: a real model, split into the stages of a partition."""
import os
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional,
                    Sequence, Set, Tuple)

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.check import InvalidPlan
from pipeloom.hf.batch import StepBatch, check_samples, weigh
from pipeloom.hf.family import Family, Sample, family_of
from pipeloom.hf.gradients import (add_up, check_same, check_whole,
                                   clip_grad_norm)
from pipeloom.hf.partition import (Partition, PartitionError, check_partition,
                                   partition_of)
from pipeloom.hf.replicas import MODES, Replicas
from pipeloom.hf.saving import raise_everywhere, save_all
from pipeloom.hf.stages import Layer, StageModule
from pipeloom.hf.weights import is_meta, load_own
from pipeloom.plan import Microbatch, Plan, SubMicrobatch, loss_weights
from pipeloom.static_schedule import static_plan
from pipeloom.torch import Executor, StepResult
from pipeloom.transport import global_ranks, has_local_groups, new_group


class Pipeline:
    """One rank's part of a model, and its steps.

    model    of a class that has a description (pipeloom.hf.supported()). It is
             taken apart: it keeps the parameters of no layer, and those of
             other ranks are dropped. Must be equal on all ranks
    job      pipeloom.Job, the path of a file of `pipeloom partition --out`, or
             a Partition
    rank     of the pipeline; its process is the rank-th of `group`
    loss_fn  (output, Work) -> the sum of the loss terms of a task, instead of
             the model's own loss; the family counts the terms
    optimizer  (parameters of this rank) -> the optimizer that steps at the
             plan's optimizer_step; without it, step one after step()
    weights  folder or file of safetensors, for a model made under
             torch.device("meta"): this rank reads the parameters of its own
             stages only, onto `device` (default: the CPU)
    replicas  the process group (or a DeviceMesh of one dimension) of the
             processes with this rank in all replicas of the pipeline, whose
             gradients are added up once at the end of each step
             (pipeloom.hf.grid makes `group` and `replicas`)
    shard    "step" or "pass": fully_shard (FSDP2) divides the parameters of
             each layer among the replicas. They are gathered when a step
             begins; with "pass" for each forward and backward, in steps in
             which all replicas run the same passes in the same order and offload
             nothing. Gradients are whole until they are added up
    More options are those of pipeloom.torch.Executor: group, device, reduce_fn,
    on_task, ... A model with values must be on the device already.

    Every process of the group must make its Pipeline at the same place.
    PartitionError: the partition is not one of this model. TypeError: there is
    no description of the model's class. WeightsError, on all ranks: a tensor is
    missing, or has another shape.
    """

    def __init__(self, model: nn.Module, job: Any, *, rank: int,
                 loss_fn: Optional[Callable[[torch.Tensor, Any],
                                            torch.Tensor]] = None,
                 group: Any = None,
                 reduce_fn: Optional[Callable[[], None]] = None,
                 optimizer: Optional[Callable[[List[nn.Parameter]],
                                              torch.optim.Optimizer]] = None,
                 weights: Optional[str] = None, replicas: Any = None,
                 shard: str = "", **options: Any) -> None:
        if shard and shard not in MODES:
            raise ValueError(f"shard is {shard!r}; it must be one of "
                             f"{', '.join(MODES)}")
        if shard and replicas is None:
            raise ValueError(
                f"shard={shard!r} needs replicas=, the group of the processes "
                "that hold the same stages (pipeloom.hf.grid makes it)")
        if replicas is not None and not has_local_groups():
            raise ValueError(f"replicas= needs torch 2.1 or later; this is "
                             f"{torch.__version__}")
        check_whole(model.named_parameters())
        self.family: Family = family_of(model)
        self.partition: Partition = partition_of(job)
        self.rank = rank
        check_partition(self.partition, self.family.chains,
                        type(model).__name__)
        size = dist.get_world_size(group)
        if self.partition.num_ranks != size or not 0 <= rank < size:
            raise PartitionError(
                f"the partition has {self.partition.num_ranks} ranks, the "
                f"group {size} processes, and this is rank {rank}: start as "
                "many processes as the job's parallel.pp")
        self._chains = {c.name: c for c in self.family.chains}
        tied = self.family.tied()
        own = {place for _, chain, position in self._layers(rank)
               for place in chain.places(position)}
        # Bytes of parameters that were read from `weights`.
        self.bytes_read = 0
        meta = is_meta(model)
        if meta or weights is not None:
            self._load(model, own, weights, meta, options.setdefault(
                "device", "cpu"), group)
        self._split(rank, own, options.get("device") if meta else None)
        self._group = group
        self._loss = loss_fn or self.family.loss
        self._replicas: Optional[Replicas] = None
        if replicas is not None:
            self._replicas = Replicas(replicas, shard, group,
                                      self.family.skeleton.device)
            self._replicas.check_equal(dict(self.named_parameters()), rank)
            if shard:
                self._untie(tied)
                self._replicas.divide(self.stages)
        self._tie(tied, size)
        self._user_reduce = reduce_fn
        self._reduced = False
        # Gradients of earlier calls, where only this step's are summed.
        self._before: Dict[nn.Parameter, torch.Tensor] = {}
        self.optimizer = optimizer(list(self.parameters())) \
            if optimizer is not None else None
        options.setdefault("device", self.family.skeleton.device)
        self._executor = Executor(
            self.stages, rank=rank, loss_fn=self._loss_of, group=group,
            replicas=None if self._replicas is None else self._replicas.group,
            reduce_fn=self._reduce, optimizer=self.optimizer, **options)

    # -- The split -------------------------------------------------------------

    def _layers(self, rank: int) -> Iterator[Tuple[int, Any, int]]:
        """Yields the rank's (stage, chain, position of layer)."""
        for s, stage in enumerate(self.partition.stages):
            if stage.rank == rank:
                chain = self._chains[self.partition.module_names[stage.module]]
                for i in range(stage.num_layers):
                    yield s, chain, stage.first_layer + i

    def _load(self, model: nn.Module, own: Set[str], weights: Optional[str],
              meta: bool, device: Any, group: Any) -> None:
        error: Optional[Exception] = None
        try:
            if not meta:
                raise ValueError(
                    "weights= is for a model on the meta device, but this "
                    f"{type(model).__name__} has values: make it under "
                    "torch.device(\"meta\"), or leave weights out")
            if weights is None:
                raise ValueError(
                    f"this {type(model).__name__} is on the meta device and "
                    "has no values: give weights=, the folder of its "
                    "safetensors files")
            self.bytes_read = load_own(
                model, lambda name: self.family.place_of(name) in {"", *own},
                os.fspath(weights), device)
        except (OSError, ValueError) as caught:
            error = caught
        # No rank goes on to the collective calls below while another raises.
        raise_everywhere(error, group)

    def _split(self, rank: int, own: Set[str], device: Any) -> None:
        self.family.take_apart(own.__contains__, device)
        layers: Dict[int, List[Layer]] = {}
        for s, chain, position in self._layers(rank):
            layers.setdefault(s, []).append(Layer(
                chain, position, self.family.skeleton.parts(
                    chain.places(position))))
        self.stages = {s: StageModule(part) for s, part in layers.items()}

    def _untie(self, tied: Optional[Tuple[str, str]]) -> None:
        """Gives both ends of a shared weight on this rank a weight of their
        own, as fully_shard divides each layer by itself."""
        if tied is None or not all(self.family.skeleton.keeps(place)
                                   for place in tied):
            return
        one, other = (self.family.skeleton.real(place) for place in tied)
        weight = one.weight
        other.weight = nn.Parameter(  # type: ignore[assignment]
            weight.detach().clone(),  # type: ignore[operator]
            requires_grad=weight.requires_grad)  # type: ignore[arg-type]

    def _tie(self, tied: Optional[Tuple[str, str]], size: int) -> None:
        """Prepares the sum of the gradients of a shared weight whose two ends
        are on different ranks, or divided."""
        # Names of a shared weight: the one that is saved, and the other.
        self._ends = None if tied is None else tuple(
            f"{place}.weight" for place in tied)
        self._tied: Optional[nn.Parameter] = None
        # That weight on the rank of its second end.
        self._tied_again: Optional[nn.Parameter] = None
        self._tied_group: Any = None
        if tied is None:
            return
        ends = []
        for place in tied:
            ends += [r for r in range(size) for _, chain, position in
                     self._layers(r) if place in chain.places(position)]
        if ends[0] == ends[1]:
            if self.rank == ends[0] and self._replicas is not None and \
                    self._replicas.shard:
                self._tied, self._tied_again = (
                    self.family.skeleton.real(place).weight  # type: ignore
                    for place in tied)
            return
        world = global_ranks(self._group, size)
        # Newer torch lets the members of a group make it without the others.
        # The names of later groups count the groups that a rank has made, so a
        # rank that is no member makes a group of itself.
        alone = has_local_groups() and self.rank not in ends
        made = new_group([world[self.rank]] if alone else
                         [world[r] for r in ends])
        for place, end in zip(tied, ends):
            if end == self.rank:
                module = self.family.skeleton.real(place)
                self._tied = module.weight  # type: ignore[assignment]
                self._tied_group = made
                if place == tied[1]:
                    self._tied_again = self._tied

    # -- What it holds ---------------------------------------------------------

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields this rank's parameters, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_parameters(self) -> Iterator[Tuple[str, nn.Parameter]]:
        """Yields them with their names in the real model."""
        seen = set()
        for stage in self.stages.values():
            names = stage.real_names()
            for name, parameter in stage.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield names[name], parameter

    def state_dict(self) -> Dict[str, torch.Tensor]:
        """Returns this rank's part of the real model's state, by the real
        names; a shared weight is at both its ends. Divided parameters are
        DTensors, as torch.distributed.checkpoint takes them."""
        result = {name: p.detach() for name, p in self.named_parameters()}
        for stage in self.stages.values():
            names = stage.real_names()
            for name, value in stage.state_dict(keep_vars=True).items():
                if not isinstance(value, nn.Parameter):
                    result[names[name]] = value.detach()
        return result

    def save(self, folder: str) -> None:
        """Writes a checkpoint that from_pretrained of the real class reads:
        from each rank a file of its own parameters, from the first the index
        and config.json. All ranks of the group must call it; with `replicas`
        those of all replicas, of which the first writes. The folder must be
        seen by all. WeightsError, on all ranks: a file cannot be written."""
        state = self.state_dict()
        if self._replicas is not None:
            writes = self._replicas.index == 0
            for name, value in state.items():
                if hasattr(value, "full_tensor"):
                    whole = value.full_tensor()
                    state[name] = whole.to("cpu") if writes else whole[:0]
            if not writes:
                return
        if self.rank == 0:  # All ranks have the buffers outside of layers.
            state.update({name: value for name, value in
                          self.family.model.state_dict().items()
                          if value.numel() > 0})
        save_all(state, self.family.model, os.fspath(folder), self._ends,
                 self.rank, self._group)

    def zero_grad(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> None:
        """Switches dropout of this rank's layers on or off. from_pretrained
        gives a model with dropout off."""
        for part in (self.family.model, *self.stages.values()):
            part.train(mode)

    def clip_grad_norm_(self, max_norm: float,
                        norm_type: float = 2.0) -> torch.Tensor:
        """Scales all gradients down to a norm of at most `max_norm` and returns
        their norm before that: of all stages, a shared weight counted once.
        torch.nn.utils.clip_grad_norm_ on a rank would see its own stages only.
        All ranks of the group must call it after step(). ValueError: norm_type
        is not positive."""
        return clip_grad_norm(
            list(self.parameters()),
            [] if self._tied_again is None else [self._tied_again], max_norm,
            norm_type, self._group, self.family.skeleton.device)

    def sizes(self, sample: Sample) -> Any:
        """Returns the pipeloom.Sample to submit for a sample."""
        return self.family.sizes(sample)

    def microbatches(self, samples: Sequence[Sample],
                     microbatch_of: Sequence[int]) -> Tuple[Microbatch, ...]:
        """Returns the trainer's microbatches, each module in one piece, for
        PlanProvider.expect and static_plan. Sample i is in microbatch
        `microbatch_of[i]`."""
        count = 1 + max(microbatch_of, default=-1)
        members = [[i for i, own in enumerate(microbatch_of) if own == m]
                   for m in range(count)]
        terms = loss_weights([sum(self.family.count(samples[i]) for i in own)
                              for own in members])
        result = []
        for own, weight in zip(members, terms):
            subs = []
            for module, name in enumerate(self.partition.module_names):
                instances = sum(self.family.instances(
                    self._chains[name], samples[i]) for i in own)
                if instances:
                    subs.append(SubMicrobatch(module, 0, 0, instances))
            result.append(Microbatch(tuple(own), weight, tuple(subs)))
        return tuple(result)

    def static_plan(self, step: int,
                    microbatches: Sequence[Microbatch]) -> Plan:
        """Returns a plan that needs no planner: the fallback of a
        PlanProvider."""
        names = list(self.partition.module_names)
        feeds = [(names.index(c.name), names.index(c.feeds))
                 for c in self.family.chains if c.feeds]
        return static_plan(list(self.partition.stages), feeds, microbatches,
                           names, step)

    @property
    def gathers_by_pass(self) -> bool:
        """Whether the last step gathered divided parameters for each pass."""
        return self._replicas is not None and self._replicas.by_pass

    # -- A step --------------------------------------------------------------

    def step(self, plan: Plan, samples: Sequence[Sample], *,
             terms: int = 0) -> StepResult:
        """Runs a step. Adds the gradients of the mean loss of all samples to
        the parameters' gradients; the result's `loss` is not 0 on the rank of
        the loss head. `samples` are those the plan was made for, in the order
        of submission; ranks that do not have the first stage of an encoder need
        no pixels. `terms`: the number of loss terms over all replicas, and over
        all calls whose gradients are added up, if there are several; without
        it the mean of each call (with `replicas`, over all of them) counts in
        full. SampleError: a sample lacks a field, or the plan is for others.
        InvalidPlan: it is for another partition."""
        replicas = self._replicas
        if replicas is None or not replicas.shard:
            check_whole(self.named_parameters())
        if replicas is None:
            self._check_step(plan, samples)
            plan = weigh(self.family, plan, samples, terms)
        else:
            plan = self._weighed_alike(replicas, plan, samples, terms)
        self._before = {}
        if self._tied is not None and self._tied.requires_grad:
            assert self._ends is not None
            check_same(self._tied, self._tied_again, self._ends,
                       self._tied_group)
            self._set_aside(p for p in (self._tied, self._tied_again)
                            if p is not None)
        if replicas is not None:
            if not replicas.shard:
                self._set_aside(self.parameters())
            replicas.begin(plan, self.rank)
        self._reduced = False
        result = self._executor.run(plan, StepBatch(self.family, plan, samples))
        if not self._reduced:
            self._reduce()
        return result

    def evaluate(self, plan: Plan, samples: Sequence[Sample], *,
                 terms: int = 0) -> StepResult:
        """Returns the mean loss of samples that are not trained, as step()
        does, by the forwards of a plan such as static_plan. No gradient and no
        parameter changes. Switch dropout off with train(False) before, and on
        after. All ranks, of all replicas, must call it."""
        replicas = self._replicas
        if replicas is None:
            self._check_step(plan, samples)
            plan = weigh(self.family, plan, samples, terms)
            return self._executor.evaluate(
                plan, StepBatch(self.family, plan, samples))
        plan = self._weighed_alike(replicas, plan, samples, terms)
        replicas.gather()
        try:
            return self._executor.evaluate(
                plan, StepBatch(self.family, plan, samples))
        finally:
            replicas.divide_again()

    def _check_step(self, plan: Plan, samples: Sequence[Sample]) -> None:
        self._check(plan)
        check_samples(self.family, plan, samples)

    def _weighed_alike(self, replicas: Replicas, plan: Plan,
                       samples: Sequence[Sample], terms: int) -> Plan:
        """Returns the plan with loss weights by the loss terms of all replicas.
        Raises on all of them if one has an error: the others would wait for
        it."""
        error: Optional[Exception] = None
        mine = 0
        try:
            self._check_step(plan, samples)
            mine = sum(self.family.count(s) for s in samples)
            if terms:
                weigh(self.family, plan, samples, terms)
        except (ValueError, RuntimeError, InvalidPlan) as caught:
            error = caught
        every = replicas.count(mine, error)
        return weigh(self.family, plan, samples, terms or every)

    def _set_aside(self, parameters: Iterable[nn.Parameter]) -> None:
        """Takes the gradients of earlier calls away until this step's are
        summed."""
        for p in parameters:
            if p.grad is not None:
                self._before[p], p.grad = p.grad, None

    def _check(self, plan: Plan) -> None:
        if plan.module_names != self.partition.module_names:
            raise InvalidPlan(
                f"the plan's modules are {list(plan.module_names)}, those of "
                f"the partition {list(self.partition.module_names)}: is it of "
                "another job?")
        backward = {(t.stage, t.microbatch, t.sub)
                    for t in plan.tasks.values() if t.kind == "B"}
        for i, t in plan.tasks.items():
            if t.rank != self.rank:
                continue
            if not t.stage < len(self.partition.stages) or \
                    self.partition.stages[t.stage].rank != t.rank or \
                    self.partition.stages[t.stage].module != t.module:
                raise InvalidPlan(
                    f"task {i} is of stage {t.stage} of "
                    f"{plan.module_names[t.module]} on rank {t.rank}; the "
                    "partition has it elsewhere: is the plan of another job?")
            if t.kind == "F" and \
                    (t.stage, t.microbatch, t.sub) not in backward and \
                    any(p.requires_grad
                        for p in self.stages[t.stage].parameters()):
                raise InvalidPlan(
                    f"the plan has no backward for stage {t.stage} of "
                    f"{plan.module_names[t.module]}, whose parameters require "
                    "gradients: freeze them (requires_grad_(False)), or take "
                    "the module out of training.frozen_modules of the job")

    def _loss_of(self, output: torch.Tensor, item: Any) -> torch.Tensor:
        """The executor multiplies this by the weight of the microbatch, which
        is its share of the step's terms."""
        batch: StepBatch = item.batch
        chain = self._chains[item.module]
        terms = batch.terms(item.microbatch)
        return self._loss(output, batch.work(chain, item)) / max(1, terms)

    def _reduce(self) -> None:
        self._reduced = True
        if self._replicas is not None:
            self._replicas.reduce(list(self.parameters()))
        # A frozen weight must not get a gradient: optimizers would decay it.
        if self._tied is not None and self._tied.requires_grad:
            add_up(self._tied, self._tied_again, self._tied_group)
        for p, before in self._before.items():
            p.grad = before if p.grad is None else p.grad.add_(before)
        self._before = {}
        if self._user_reduce is not None:
            self._user_reduce()


def pipeline(model: nn.Module, job: Any, **options: Any) -> Pipeline:
    """Returns Pipeline(model, job, ...)."""
    return Pipeline(model, job, **options)


__all__ = ["Pipeline", "PartitionError", "pipeline"]
