"""One step of one rank: its program, and the passes of its stages."""
import contextlib
import dataclasses
import time
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List,
                    Optional, Sequence, Set, Tuple)

import torch

from pipeloom.check import InvalidPlan
from pipeloom.execution import failure
from pipeloom.execution.randomness import HostRandom
from pipeloom.execution.row import Choices, is_row, output_of
from pipeloom.execution.second_run import TwoRuns
from pipeloom.execution.structure import PlanStructure
from pipeloom.execution.work_item import WorkItem
from pipeloom.host_store import HostStore, saving
from pipeloom.loss import (part_of_microbatch, weigh, with_losses,
                           without_weights)
from pipeloom.plan import Microbatch, Plan, SubMicrobatch, Task
from pipeloom.recompute import rng_state, with_rng
from pipeloom.transport import Transport

if TYPE_CHECKING:
    from pipeloom.torch import Executor


@dataclasses.dataclass
class StepResult:
    """The result of a step. `loss` is the weighted sum of this rank's losses; 0
    on ranks without a loss. Times are in seconds; spans are (task, start, end)
    in nanoseconds from the start of the step, for Client.report."""
    loss: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    spans: List[Tuple[int, int, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Kept:
    """The tensors that a forward keeps for its backward."""
    item: WorkItem
    # Receive the gradients of inputs that need one; indexed by incoming edge.
    leaves: Dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    # Indexed by outgoing edge.
    outputs: Dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    # Kept if the forward runs again; indexed by incoming edge.
    inputs: Dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    host: Optional[HostStore] = None
    losses: List[Tuple[torch.Tensor, float]] = dataclasses.field(
        default_factory=list)  # Each with its weight.
    rng: Any = None  # Set if the forward runs again.
    random: Optional[HostRandom] = None  # Likewise.
    runs: Optional[TwoRuns] = None  # Likewise.
    later: List[Callable[[], None]] = dataclasses.field(default_factory=list)

    def drop_outputs(self) -> None:
        """Replaces the outputs by the points where their gradients enter."""
        for e, view in self.outputs.items():
            if view.requires_grad:
                self.outputs[e] = _Root.apply(view)


_QUESTIONS = 2  # Whether all have come so far, in each step.


def _nothing() -> torch.Tensor:
    return torch.zeros(0)


def _can_have(tensor: torch.Tensor) -> bool:
    """Whether it can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


class _Given(torch.autograd.Function):
    """Gives an input as the result of a leaf without bytes, so that the graph
    keeps the input only where an operator saves it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor,  # type: ignore[override]
                value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor  # type: ignore[override]
                 ) -> Tuple[torch.Tensor, None]:
        return gradient, None


class _Root(torch.autograd.Function):
    """The point where the gradient of an output enters: the output's shape and
    place in the graph without its bytes, which belong to its consumer."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        return output.new_zeros(1).expand(output.shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor  # type: ignore[override]
                 ) -> torch.Tensor:
        return gradient


def equal_rows(output: torch.Tensor, part: int, parts: int) -> torch.Tensor:
    return torch.tensor_split(output, parts)[part]


class Step:
    """The execution of a plan by one rank. `trains`: stages with trained
    parameters must have backwards."""

    def __init__(self, executor: "Executor", plan: Plan, batch: Any,
                 trains: bool = True) -> None:
        self.x = executor
        self.trains = trains
        self.plan = plan
        self.program = plan.programs[executor.rank]
        self.batch = batch
        self.begin = 0  # Nanoseconds.
        self.asked = 0  # How often, whether a rank has failed.
        self.over = False  # One has, and all know.
        self.kept: Dict[int, _Kept] = {}
        self.values: Dict[int, torch.Tensor] = {}  # Indexed by edge.
        # Forwards for which the plan has Offload instructions.
        self.copied = {arg for op, arg in self.program if op == "offload"}
        shape_of = executor._shape_of
        self.transport = Transport(
            executor._ranks, executor.rank, executor._group, executor.device,
            executor._ordered,
            None if shape_of is None else (lambda e: shape_of(plan, e)),
            executor._channels)
        self.result = StepResult()

    def prepare(self) -> None:
        """Looks at the plan. InvalidPlan: it is not for this rank's stages."""
        self._check_stages()
        self.structure = PlanStructure(self.plan)
        # Without losses and shares, modules whose output no other takes.
        self.by_edges = self.x._losses is None and not self.plan.loss_shares
        self.with_shares = {module for module, _, _ in self.plan.loss_shares}
        names = self._names_of_losses()
        if names is not None:
            self.plan = with_losses(self.plan, names, self.x._loss_over)
        self.weights = weigh(self.plan, self.x._loss_over)
        unknown = without_weights(self.plan, self.x._loss_over)
        if unknown is not None:
            raise InvalidPlan(unknown)

    def _names_of_losses(self) -> Optional[Set[str]]:
        """Returns the names of the modules with a loss; None: the plan says
        which these are."""
        if self.x._losses is not None:
            return set(self.x._losses)
        if self.plan.loss_totals:
            return None
        names = {self.plan.module_names[m] for m in self.with_shares}
        fed = self.x._met.feeding.intersection(self.plan.module_names)
        return None if fed <= names else names | fed

    def _check_stages(self) -> None:
        plan, stages = self.plan, self.x.stages
        trained = {(t.stage, t.microbatch, t.sub)
                   for t in plan.tasks.values() if t.kind == "B"}
        for t, task in plan.tasks.items():
            if task.rank != self.x.rank:
                continue
            if task.stage not in stages:
                raise InvalidPlan(
                    f"rank {self.x.rank}, task {t}: it is of stage "
                    f"{task.stage}; this rank's stages are {sorted(stages)}")
            place = task.stage, task.microbatch, task.sub
            if self.trains and task.kind == "F" and place not in trained and \
                    any(p.requires_grad
                        for p in stages[task.stage].parameters()):
                raise InvalidPlan(
                    f"the plan has no backward for stage {task.stage} of "
                    f"{plan.module_names[task.module]}, whose parameters "
                    "require gradients: freeze them (requires_grad_(False)), "
                    "or take the module out of training.frozen_modules of the "
                    "job")

    def run(self) -> StepResult:
        """Runs the program. StepFailed: another rank has failed. Exceptions of
        this rank's stages are raised once the other ranks know."""
        self.begin = time.perf_counter_ns()
        self.x._weights.begin_step()
        at, watch = 0, self.x._watch
        watch.begin()
        try:
            for at, (op, arg) in enumerate(self.program):
                watch.at = self.plan, self.x.rank, at
                self._execute(op, arg)
            at = len(self.program)
            watch.at = self.plan, self.x.rank, at
            self.transport.finish()
            if self.kept:
                raise RuntimeError("the plan has no backward for tasks "
                                   f"{sorted(self.kept)[:5]}")
            while self.asked < _QUESTIONS:
                self._all_have_come()
        except Exception as error:  # pylint: disable=broad-except
            self.fail(at, error)
        finally:
            watch.at = None
        self.result.seconds = (time.perf_counter_ns() - self.begin) / 1e9
        return self.result

    def _execute(self, op: str, arg: int) -> None:
        plan = self.plan
        if op == "compute":
            start = time.perf_counter_ns()
            after = (self.x._on_task(plan, arg)
                     if self.x._on_task is not None else None)
            self._compute(arg)
            if after is not None:
                after()
            if self.x.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            self.result.spans.append(
                (arg, start - self.begin, time.perf_counter_ns() - self.begin))
        elif op == "send":
            # Edges that only order tasks carry an empty tensor.
            self.transport.send(arg, self.values.pop(arg, _nothing()),
                                self._peer(op, arg))
        elif op == "recv":
            self.transport.recv(arg, self._peer(op, arg))
        elif op == "wait_recv":
            start = time.perf_counter_ns()
            self.transport.wait_recv(arg, self.values)
            self.result.waited += (time.perf_counter_ns() - start) / 1e9
        elif op == "wait_send":
            self.transport.wait_send(arg)
        elif op == "free":
            self.values.pop(arg, None)
        elif op in ("offload", "fetch"):
            host = self.kept[arg].host
            if host is not None and op == "offload":
                host.leave()
            elif host is not None:
                host.back()
        elif op == "reduce_gradients":
            # Messages of reduce_fn must not meet a rank that has failed.
            self._all_have_come()
            if self.x._tied is not None:
                self.x._tied.reduce()
            if self.x._reduce_fn is not None:
                self.x._reduce_fn()
        elif op == "optimizer_step":
            # No rank steps before all have come to this point. A rank without
            # parameters to train has no optimizer.
            self._all_have_come()
            if self.x._optimizer is not None:
                self.x._optimizer.step()

    def _peer(self, op: str, edge: int) -> int:
        ends = self.plan.edges[edge]
        return self.plan.tasks[ends.target if op == "send"
                               else ends.source].rank

    # -- Failure -------------------------------------------------------------

    def _all_have_come(self, failed: bool = False) -> None:
        """Tells the other ranks whether this one has failed: before gradients
        are reduced, and before the optimizer steps. Raises Told if another
        has."""
        self.asked += 1
        other = failure.first_failed(self.x.rank, failed, self.x._group,
                                     self.x._replicas, self.x._check_on)
        self.over = other is not None
        if other is not None and not failed:
            of = ("" if self.x._replicas is None else
                  f" of replica {other.replica}")
            raise failure.Told(f"rank {other.rank}{of} has failed in step "
                               f"{self.plan.step}; its log says why")

    def fail(self, at: int, error: Exception) -> None:
        """Ends the step on all ranks after an error at an instruction (-1:
        before the first), and raises the error, or StepFailed if it is not this
        rank's own."""
        told = isinstance(error, failure.Told)
        lost = isinstance(error, failure.Lost)
        why = str(error) if told else failure.reason(self.plan, self.x.rank, at,
                                                     error)
        if not told:
            failure.log(why)
        self.kept, self.values = {}, {}
        for i, (op, arg) in enumerate(self.program):
            if i < at or (i == at and (lost or op not in ("send",
                                                          "wait_recv"))):
                continue
            try:
                self._go_without(op, arg, why, lost)
            except Exception as another:  # pylint: disable=broad-except
                if not lost:  # From now on nothing is waited for.
                    failure.log(f"rank {self.x.rank}, after its error: "
                                f"{another}")
                lost = True
        if lost:
            self.x._undelivered = self.transport  # Reasons are on their way.
        else:
            self._end_without()
        try:
            if told or lost:
                raise failure.StepFailed(why) from (None if told else error)
            raise error
        finally:
            del error  # Its traceback has this frame, which would keep it.

    def _go_without(self, op: str, arg: int, why: str, lost: bool) -> None:
        """Does what other ranks need of an instruction after an error. `lost`:
        a rank does not answer, so that nothing is waited for."""
        if op == "send":
            self.transport.send_reason(arg, why, self._peer(op, arg))
        elif op == "recv" and not lost:
            self.transport.recv(arg, self._peer(op, arg))
        elif op == "wait_recv" and not lost:
            self.transport.drop(arg)

    def _end_without(self) -> None:
        try:
            self.transport.finish()
            if not self.over:
                self._all_have_come(failed=True)
        except failure.Lost as another:
            failure.log(f"rank {self.x.rank}, after its error: {another}")

    def _item(self, t: int) -> WorkItem:
        task = self.plan.tasks[t]
        m = Microbatch(())
        if task.microbatch < len(self.plan.microbatches):
            m = self.plan.microbatches[task.microbatch]
        sub = next((s for s in m.subs if s.module == task.module and
                    s.index == task.sub), SubMicrobatch(task.module))
        place = task.module, task.microbatch, task.sub
        weight = self.weights.get(place)
        if weight is None:
            weight = m.loss_weight * part_of_microbatch(self.plan, place)
        return WorkItem(t, self.plan.module_names[task.module], task.stage,
                        task.microbatch, task.sub, m.samples,
                        sub.first_instance, sub.instances, weight, self.batch,
                        m.pieces)

    def _compute(self, t: int) -> None:
        task = self.plan.tasks[t]
        if task.kind in ("F", "B"):
            run = self._forward if task.kind == "F" else self._backward
            with (self.x._weights.attached(self.x.stages[task.stage])
                  if self.structure.is_split[self.structure.forward_of[t]]
                  else contextlib.nullcontext()):
                run(t)
        else:
            kept = self.kept.pop(self.structure.forward_of[t])
            for later in kept.later:
                later()

    # -- Forward -------------------------------------------------------------

    def _forward(self, t: int) -> None:
        structure, plan = self.structure, self.plan
        backward = structure.has_backward[t]
        wanted = set()
        if backward:
            wanted = {f for _, f in structure.gradients_out.get(
                structure.backward_of[t], ())}
        kept = _Kept(self._item(t))
        inputs = {}
        shared = []  # With the tensor's version, to see changes in place.
        for e in structure.inputs.get(t, ()):
            inputs[e] = self.values[e].detach()
            if (plan.edges[e].source in structure.shared and
                    not inputs[e].is_inference()):
                shared.append((e, inputs[e], inputs[e]._version))
            if e in wanted:  # Ids and masks have no gradient, but zeros.
                kept.leaves[e] = inputs[e].new_zeros(1).expand(
                    inputs[e].shape).requires_grad_(_can_have(inputs[e]))
            if plan.tasks[plan.edges[e].source].rank == self.x.rank:
                del self.values[e]  # Received tensors are dropped by `free`.
        choice = plan.activations.get(t, ())
        again = backward and (
            any(what.startswith("RECOMPUTE") for what in choice) or
            plan.tasks[structure.backward_of[t]].recomputes)
        by_layer = backward and self._is_layered(t, choice)
        if not backward:
            with _no_graph():
                self._call(t, kept, inputs)
        elif again and not by_layer:
            kept.rng = rng_state(self.x.device)
            kept.random = HostRandom()
            kept.runs = TwoRuns(self.x._habits,
                                (self.x.stages[plan.tasks[t].stage],),
                                batch=self.batch)
            kept.inputs = dict(inputs)
            with _no_graph():
                self._call(t, kept, inputs)
        else:
            if "OFFLOAD" in choice:
                kept.host = HostStore(
                    self.x.device, self.x.stages[plan.tasks[t].stage]
                    .parameters())
            self._call(t, kept, inputs, choice if by_layer else ())
            if kept.host is not None and t not in self.copied:
                kept.host.leave()
        for e, tensor, version in shared:
            if tensor._version != version:
                source = plan.tasks[plan.edges[e].source]
                raise RuntimeError(
                    f"stage {plan.tasks[t].stage} of {kept.item.module} has "
                    "changed its input in place, the output of "
                    f"{plan.module_names[source.module]} that other modules "
                    "take, too: change a copy (x = x.clone())")
        del shared
        for loss, weight in kept.losses:
            self.result.loss += weight * float(loss.detach())
        for e, view in kept.outputs.items():
            self.values[e] = view.detach()
        kept.drop_outputs()
        if backward:
            if kept.rng is not None:
                kept.outputs, kept.losses = {}, []
            self.kept[t] = kept

    def _is_layered(self, t: int, choice: Sequence[str]) -> bool:
        module = self.x.stages[self.plan.tasks[t].stage]
        return (is_row(module) and len(choice) > 0 and
                len(module) == len(choice))  # type: ignore[arg-type]

    def _call(self, t: int, kept: _Kept, inputs: Dict[int, torch.Tensor],
              choice: Sequence[str] = ()) -> None:
        """Runs the stage and fills in outputs and losses. Empties `inputs`."""
        structure, plan = self.structure, self.plan
        task = plan.tasks[t]
        module = self.x.stages[task.stage]
        x: Any = None
        joined: Dict[str, List[torch.Tensor]] = {}
        for e in list(inputs):
            value = inputs.pop(e)
            if (e in kept.leaves and torch.is_grad_enabled() and
                    _can_have(value)):
                value = _Given.apply(kept.leaves[e], value)
            source = plan.tasks[plan.edges[e].source]
            if source.module == task.module:
                x = value
            else:
                joined.setdefault(plan.module_names[source.module],
                                  []).append(value)
            del value
        if x is None and joined:
            x = joined
        del joined
        # After this only the stage's own frame holds its input.
        given, x = [x], None
        kept.item.added.begin()
        if choice:
            output = Choices(
                module, choice, plan.periods.get(t, 1), habits=self.x._habits,
                batch=self.batch, device=self.x.device, host=kept.host
            ).output(given, kept.item)
        elif kept.runs is not None:
            with kept.runs.run(given.pop()) as given:
                output = output_of(module, given, kept.item)
        else:
            with saving(kept.host):
                output = output_of(module, given, kept.item)
        edges = structure.outputs.get(t, ())
        if edges and not isinstance(output, torch.Tensor):
            raise TypeError(
                f"stage {task.stage} of {kept.item.module} returned a "
                f"{type(output).__name__}; other stages take its output, which "
                "must be one tensor: join several, and take them apart in the "
                "stage that gets them")
        to: Dict[int, List[int]] = {}  # Stage -> edges, by sub-microbatch.
        for e in edges:
            to.setdefault(plan.tasks[plan.edges[e].target].stage,
                          []).append(e)
        for parts in to.values():
            for i, e in enumerate(parts):
                kept.outputs[e] = (output if len(parts) == 1 else
                                   self.x._split_fn(output, i, len(parts)))
        if self._has_loss(task, edges):
            with (contextlib.nullcontext() if kept.runs is None else
                  self.x._habits.leaving_batch("loss_fn", self.batch)):
                loss = self.x._loss_fn(output, kept.item)
            if loss is not None and not (isinstance(loss, torch.Tensor) and
                                         loss.numel() == 1):
                what = (f"a tensor of shape {tuple(loss.shape)}"
                        if isinstance(loss, torch.Tensor) else
                        f"a {type(loss).__name__}")
                raise TypeError(
                    f"loss_fn returned {what} for {kept.item.module}; it must "
                    "be a tensor with one number, the mean loss of the "
                    "sub-microbatch, or None")
            if loss is not None:
                _check_gradient(loss, output, kept.item)
                self.x._met.loss(kept.item.module, bool(edges))
                kept.losses.append((loss, kept.item.loss_weight))
        elif (self.x._losses is None and not plan.loss_totals and
              task.module not in self.with_shares and
              self._ends_module(task, edges)):
            self.x._met.none(kept.item.module)
        kept.losses += kept.item.added.end()

    def _has_loss(self, task: Task, outputs: Sequence[int]) -> bool:
        if (task.module, task.microbatch, task.sub) in self.weights:
            return self._ends_module(task, outputs)
        return self.by_edges and not outputs

    def _ends_module(self, task: Task, outputs: Sequence[int]) -> bool:
        return all(self.plan.tasks[self.plan.edges[e].target].module !=
                   task.module for e in outputs)

    # -- Backward ------------------------------------------------------------

    def _backward(self, t: int) -> None:
        structure = self.structure
        f = structure.forward_of[t]
        kept = self.kept[f]
        if kept.host is not None:
            kept.host.back()
        if kept.random is not None:
            with with_rng(kept.rng, self.x.device), kept.random.restored(), \
                    torch.enable_grad():
                self._call(f, kept, kept.inputs)
        tensors, gradients = [], []
        for e, forward_edge in structure.gradients_in.get(t, ()):
            gradient = self.values.pop(e)
            view = kept.outputs[forward_edge]
            if view.requires_grad:
                tensors.append(view)
                gradients.append(gradient.reshape(view.shape))
        scale = 1.0 if self.x._scaler is None else self.x._scaler.scale
        for loss, weight in kept.losses:
            if loss.requires_grad:
                tensors.append(loss)
                gradients.append(torch.full_like(loss, weight * scale))
        split = structure.is_split[f]
        if tensors:
            if split:
                with self.x._weights.collect() as later:
                    torch.autograd.backward(tensors, gradients)
                kept.later = list(later)
            else:
                torch.autograd.backward(tensors, gradients)
        for e, forward_edge in structure.gradients_out.get(t, ()):
            leaf = kept.leaves[forward_edge]
            self.values[e] = (leaf.grad if leaf.grad is not None
                              else torch.zeros_like(leaf))
            leaf.grad = None  # The graph of a later W still holds the leaf.
        kept.leaves, kept.outputs, kept.losses = {}, {}, []
        if not split:
            del self.kept[f]


def _check_gradient(loss: torch.Tensor, output: Any, item: WorkItem) -> None:
    """RuntimeError: a loss would train nothing. A zero may stand for no loss."""
    if (torch.is_grad_enabled() and getattr(output, "requires_grad", False) and
            not loss.requires_grad and float(loss) != 0.0):
        raise RuntimeError(
            f"loss_fn returned a loss of {item.module} that requires no "
            "gradient, although the output of the module does, so that it "
            "would train nothing: compute it without torch.no_grad(), "
            "detach() and item(), or return None")


@contextlib.contextmanager
def _no_graph() -> Iterator[None]:
    """torch.no_grad(). Autocast of older versions keeps the casts of parameters
    that it makes inside, without their graph, for later forwards with one."""
    try:
        with torch.no_grad():
            yield
    finally:
        torch.clear_autocast_cache()
