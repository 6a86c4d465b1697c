"""Execution of plans in a PyTorch trainer, with torch.distributed.

    executor = Executor({stage: module, ...}, rank=rank, loss_fn=loss_fn)
    result = executor.run(plan, batch)   # Gradients are in the parameters.

A stage's module is called as `module(x, item)`:

- `item` (WorkItem) has the samples and instances, and the batch;
- `x` is None in the first stage of a module that no other feeds; the tensor of
  the module's stage before; or, in the first stage of a module that others
  feed, a dict from the feeding module's name to the list of its outputs,
  indexed by sub-microbatch, without modules that the microbatch does not have
  (None if it has none of them).

It returns one tensor. `loss_fn(output, item)` returns the mean loss of the
sub-microbatch. It is called on the last stage of each module with a loss (the
Executor's `losses`; else those of Plan.loss_shares; in a plan without them,
modules whose output no other takes), and returns None for a module without one
in this training. The loss is multiplied by `item.loss_weight`, the share of the
sub-microbatch in the work of its module in the step (in a plan without
loss_shares, the microbatch's weight), so that the step's gradients are those of
the whole batch, however it was cut. Any stage may add further losses, such as
the balance of its experts, by `item.add_loss(loss)`.
`loss_over` says what the means are over. A trainer that leaves other tokens out
of its loss puts its own counts into the plan:

    share = pipeloom.LossShare(tokens=labels)
    plan = dataclasses.replace(plan, loss_shares={(module, m, sub): share, ...},
                               loss_totals={module: of_the_step})

A weight with ends on several ranks, such as a tied embedding, is a parameter on
each of them: name it in `tied`.

Rank r of the plan is the r-th process of `group`. Works with torch 1.13 to the
newest; gloo on CPUs, nccl on GPUs.
"""
from typing import (Any, Callable, Collection, Dict, List, Mapping, Optional,
                    Tuple)

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.agreement import identity_of
from pipeloom.check import InvalidPlan, check_plan
from pipeloom.execution.evaluation import forwards_of
from pipeloom.execution.failure import StepFailed, first_failed
from pipeloom.execution.gradients import clip_grad_norm
from pipeloom.execution.loss_scaler import LossScaler
from pipeloom.execution.met_losses import MetLosses
from pipeloom.execution.second_run import Habits
from pipeloom.execution.step import Step, StepResult, equal_rows
from pipeloom.execution.structure import PlanStructure
from pipeloom.execution.tied import TiedWeights
from pipeloom.execution.watch import Watch
from pipeloom.execution.work_item import WorkItem
from pipeloom.execution.wrappers import check_wrappers
from pipeloom.loss import LossOver, check_over
from pipeloom.plan import Plan
from pipeloom.torch_agreement import (Agreement, agreement, of_first_rank,
                                      same_everywhere)
from pipeloom.transport import global_ranks, pair_groups
from pipeloom.weight_gradients import WeightGradients

__all__ = ["Agreement", "Executor", "InvalidPlan", "LossScaler",
           "PlanMismatch", "PlanStructure", "StepFailed", "StepResult",
           "WorkItem", "agreement",
           "of_first_rank"]


class PlanMismatch(RuntimeError):
    """The ranks do not all hold the same plan. Nothing was sent."""


class Executor:
    """Executes the tasks of one pipeline rank. `run` may get another plan every
    step.

    loss_fn    returns the mean loss of a sub-microbatch, on the last stage of
               a module with a loss; an nn.Module if it has parameters to train
    loss_over  what the means of loss_fn are over: "text" (the text tokens that
               Microbatch.loss_weight counts), "tokens" (all that the module
               works on, images and text alike) or "instances"; a dict: by the
               name of the module. Weights that are the trainer's own are kept
               (PlanProvider.expect with microbatch_of)
    losses     the names of all modules with a loss; needed if one of them feeds
               another module and has no loss head in the job's model, or if
               plans without loss_shares run, too. Without it, the plan says
    scaler     scales losses for fp16 (LossScaler)
    tied       the weights that ranks share, such as a tied embedding: a name,
               alike on all ranks, -> the parameter here. All ranks give it, {}
               if they have none. A step's gradients of all ends are summed
               before reduce_fn, and clip_grad_norm_ counts them once. Ends that
               differ are an error; give them the same options in the optimizer
    group      the pipeline's processes, in the order of ranks; None: all
    replicas   the group of the processes with this rank in all replicas of the
               pipeline: a step that fails in one replica then fails in all,
               instead of leaving the others in reduce_fn to wait for it (an
               error within reduce_fn comes too late for those that wait in its
               collective calls). All replicas make the same calls of run and
               evaluate
    shape_of   (plan, edge) -> (shape, dtype) of the tensor that crosses;
               without it every tensor is announced by a header of 72 bytes, and
               a sent tensor stays in memory until its receiver has sent one
               after it has come: longer than the plan accounts for
    split_fn   (output, part, parts) -> the part of a module's output that one
               of several sub-microbatches gets; by default equal rows
    reduce_fn  called at reduce_gradients, behind all passes: combines gradients
               over the replicas (of several runs whose gradients are added up,
               in the last alone). By their sum if the samples of all replicas
               are submitted together (Session.expect with `whole`), as losses
               are then shares of the step of all replicas; by their mean if
               each replica submits its own, as the weights of each add up to
               1. The optimizer steps at optimizer_step, when all ranks have
               come that far without an error
    on_task    called with (plan, task) before each task; if it returns a
               function, that is called after the task
    ordered    match tensors by order, not by tag; nccl always does

    With separate weight gradients (W tasks), those of nn.Linear layers wait for
    W (pipeloom.weight_gradients names exceptions); all others are computed with
    B, which is as exact and costs no more memory. If a stage is an
    nn.Sequential of as many layers as the plan has, without a forward of its
    own, each called as `layer(x, item)`, recomputation and offloading work by
    layer: checkpoints every so many layers; operator groups that the layers
    make apart (pipeloom.recompute; a layer without `operator_groups` is fully
    recomputed instead, which holds less and takes longer); and saved tensors in
    (pinned) host memory, with the plan's Offload and Fetch or from the
    forward's end to the backward's begin. If a stage is any other module, it
    runs again or is offloaded as a whole if the plan does that with any of its
    layers; when it runs again, its backward needs as much memory at once as if
    all were kept, which is more than the plan accounts for. What runs again
    finds random numbers (of torch, Python and NumPy, and of generators that are
    attributes of a module) and buffers as they were, and counts in buffers
    (batch norm) once; it must not change the batch in place, which is an error
    where it is seen. loss_fn may run again, too.
    """

    def __init__(self, stages: Mapping[int, nn.Module], *, rank: int,
                 loss_fn: Callable[[torch.Tensor, WorkItem],
                                   Optional[torch.Tensor]],
                 group: Any = None, replicas: Any = None, device: Any = "cpu",
                 shape_of: Optional[Callable[[Plan, int], Any]] = None,
                 split_fn: Optional[Callable[[torch.Tensor, int, int],
                                             torch.Tensor]] = None,
                 reduce_fn: Optional[Callable[[], None]] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None,
                 on_task: Optional[Callable[[Plan, int], Any]] = None,
                 check_agreement: bool = True,
                 ordered: Optional[bool] = None,
                 loss_over: LossOver = "text",
                 losses: Optional[Collection[str]] = None,
                 scaler: Optional[LossScaler] = None,
                 tied: Optional[Mapping[str, nn.Parameter]] = None) -> None:
        check_over(loss_over)
        if isinstance(losses, str):
            raise ValueError(f"losses is {losses!r}; it must be a collection "
                             f"of names of modules, such as [{losses!r}]")
        check_wrappers(stages)
        self.stages = dict(stages)
        self.rank = rank
        self.device = torch.device(device)
        self._loss_fn = loss_fn
        self._loss_over = loss_over
        self._losses = None if losses is None else frozenset(losses)
        self._met = MetLosses()
        self._scaler = scaler
        self._group = group
        self._replicas = replicas
        self._shape_of = shape_of
        self._split_fn = split_fn or equal_rows
        self._reduce_fn = reduce_fn
        self._optimizer = optimizer
        self._on_task = on_task
        size = dist.get_world_size(group)
        self._ranks = global_ranks(group, size)
        nccl = dist.get_backend(group) == "nccl"
        self._ordered = nccl or bool(ordered)
        # Every process must call this.
        self._channels: Dict[Tuple[int, int], Any] = (
            pair_groups(self._ranks, rank) if self._ordered else {})
        self._check_on = "cuda" if nccl else "cpu"
        self._check = check_agreement
        self._weights = WeightGradients()
        self._habits = Habits()
        self._watch = Watch()
        # Reasons of a failed step that may not have arrived.
        self._undelivered: Any = None
        if scaler is not None:
            scaler.bind(self)
        self._tied = (None if tied is None else
                      TiedWeights(tied, rank, self._ranks, group,
                                  self._check_on))

    def run(self, plan: Plan, batch: Any = None) -> StepResult:
        """Runs one step. Adds gradients to those that the parameters hold.
        PlanMismatch, before anything is sent: the ranks' plans, or the samples
        in their microbatches, differ; this is not checked if PlanProvider has
        done so (Plan.agreed). InvalidPlan, likewise: this rank's part of the
        plan is not that of a step, or not for the stages of this executor.
        An error of a stage or of loss_fn is raised on its rank, and StepFailed
        on the others of the pipeline, whose gradients then have parts of the
        step; the next step may follow. Without `replicas`, other replicas know
        nothing of it.
        StepFailed, too: a rank is gone, or silent for the group's timeout."""
        # All ends of tied weights make this call, whatever their plans are.
        drift = None if self._tied is None else self._tied.begin()
        try:
            result = self._run(plan, batch, trains=True, drift=drift)
            if self._tied is not None:
                self._tied.reduce()
            return result
        finally:
            if self._tied is not None:
                self._tied.end()

    def evaluate(self, plan: Plan, batch: Any = None) -> StepResult:
        """Runs the forwards of a plan alone, for the loss of samples that are
        not trained. Neither gradients nor the optimizer change, and no
        activation is kept; the result has the losses weighed as in run().
        Modules are called as they are: switch them to evaluation with
        module.eval() before, and back after. A plan for other samples than
        those of a step is made by static_plan or asked of the planner. Errors
        are those of run()."""
        return self._run(plan, batch, trains=False)

    def _run(self, plan: Plan, batch: Any, trains: bool,
             drift: Optional[Exception] = None) -> StepResult:
        """`drift`: why this rank cannot run, whatever the plan is."""
        error: Optional[Exception] = None
        step = None
        try:
            check_plan(plan, (self.rank,))
            step = Step(self, plan if trains else forwards_of(plan), batch,
                        trains)
            if trains and not torch.is_grad_enabled():
                raise RuntimeError(
                    "run() is called without gradients (torch.no_grad() or "
                    "inference_mode()), which a step of training needs: call "
                    "evaluate() for the loss alone")
            if trains and self._scaler is not None:
                self._scaler.check_scaled()
            if drift is not None:
                raise drift
            step.prepare()
        except Exception as caught:  # pylint: disable=broad-except
            error = caught
        if self._check and not plan.agreed:
            refusal = self._refusal(plan, error)
            if refusal is not None and self._replicas is not None:
                first_failed(self.rank, True, self._group, self._replicas,
                             self._check_on)
            if refusal is not None:
                raise refusal from (None if refusal is error else error)
        elif error is not None and step is not None:
            step.fail(-1, error)
        if error is not None:
            raise error
        assert step is not None
        return step.run()

    def parameters(self) -> List[nn.Parameter]:
        """Returns those of this rank's stages, and of loss_fn if that is a
        module, each once."""
        modules = [*self.stages.values()]
        if isinstance(self._loss_fn, nn.Module):
            modules.append(self._loss_fn)
        return list(dict.fromkeys(
            p for module in modules for p in module.parameters()))

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, *,
                        counted_elsewhere: Collection[nn.Parameter] = ()
                        ) -> torch.Tensor:
        """Scales gradients down to a norm of at most `max_norm` over the
        parameters() of all ranks, and returns the norm before that;
        torch.nn.utils.clip_grad_norm_ would see those of one rank. All ranks of
        the group must call it, after run() or in reduce_fn, when gradients are
        whole. `counted_elsewhere`: parameters that another rank has as well,
        and counts, in addition to those of `tied`. ValueError: norm_type is
        not positive."""
        elsewhere = list(counted_elsewhere)
        if self._tied is not None:
            elsewhere += self._tied.elsewhere
        return clip_grad_norm(
            self.parameters(), elsewhere, max_norm, norm_type, self._group,
            self.device)

    def _refusal(self, plan: Plan,
                 error: Optional[Exception]) -> Optional[Exception]:
        """Returns why no rank of the pipeline runs the plan, on all of them if
        one has an error or another plan; or None."""
        same, refusing = same_everywhere(
            identity_of(plan), error is not None, self._group, self._check_on)
        if not same:
            return PlanMismatch(
                "the ranks do not all hold the same plan, or not with the same "
                "samples in its microbatches")
        if refusing and error is None:
            return StepFailed(f"ranks {refusing} refuse the plan of step "
                              f"{plan.step}; their errors say why")
        return error
