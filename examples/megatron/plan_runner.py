"""Pipeloom plans in Megatron-Core: a `forward_backward_func` that carries out a
plan by Megatron's own forward_step and backward_step.

    from megatron.core.pipeline_parallel import schedules
    install(PlanRunner(plans, schedules))

`plans(iteration, num_microbatches)` returns a pipeloom.Plan that all ranks of
the pipeline agree on (pipeloom.PlanProvider, whose `static` returns None and
whose `accept` is runner.refusal), or None, with which the stock schedule runs
on all ranks. Megatron may run an iteration twice (its rerun state machine), so
`plans` may be called twice for an iteration.

In addition to stock Megatron, it supports stages placed in a V, microbatches in
any order, fewer microbatches than ranks, tensors with different numbers of
rows, including none, weight gradients apart (weight_store.py), and modules that
take a microbatch in several sub-microbatches or not at all. With context
parallelism `rank` and `group` are those of the pipeline of this context rank.
It leaves to Megatron: the places of layers (fixed when the model is built;
`pipeloom export --to megatron-layout`), recomputation, evaluation, and CUDA
graphs.

Unequal microbatches need a loss_func with three results and
calculate_per_token_loss, else cutting a batch in another way changes its
gradient.
"""
import contextlib
import inspect
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from pipeloom.plan import Microbatch, Plan, SubMicrobatch
from pipeloom.torch import PlanStructure
from pipeloom.transport import Transport, global_ranks
from weight_store import WeightStore

PlanSource = Callable[[int, int], Optional[Plan]]


def _whole(batch: Any, sub: SubMicrobatch) -> Any:
    raise ValueError(
        f"the plan has sub-microbatches (of module {sub.module}, from instance "
        f"{sub.first_instance}): give PlanRunner take_fn(batch, sub), which "
        "returns their part of a microbatch")


def refusal(plan: Plan, microbatches: Sequence[Microbatch]) -> Optional[str]:
    """Returns why Megatron cannot run the plan, or None: PlanProvider's
    `accept` without `take_fn`."""
    if any(t.sub > 0 for t in plan.tasks.values()):
        return ("the plan has sub-microbatches, for which PlanRunner has no "
                "take_fn")
    return _other_count(plan, len(microbatches))


def _other_count(plan: Plan, count: int) -> Optional[str]:
    if plan.num_microbatches == count:
        return None
    return (f"the plan has {plan.num_microbatches} microbatches; Megatron asks "
            f"for {count}")


def _accepted(function: Callable[..., Any], wanted: Mapping[str, Any]
              ) -> Dict[str, Any]:
    """Returns the entries of `wanted` that this version of Megatron accepts."""
    known = inspect.signature(function).parameters
    return {k: v for k, v in wanted.items() if k in known}


class PlanIterators:
    """The iteration's batches of a chunk, in the order of the plan."""

    def __init__(self, iterator: Any, count: int,
                 take_fn: Callable[[Any, SubMicrobatch], Any]) -> None:
        # Read only when a batch is needed, as middle ranks may have no data.
        self._iterator = iterator
        self._count = count
        self._read: List[Any] = []
        self._take_fn = take_fn
        self.microbatch = 0
        # Set if only a part of the microbatch is wanted.
        self.sub: Optional[SubMicrobatch] = None

    def __iter__(self) -> "PlanIterators":
        return self

    def __next__(self) -> Any:
        while len(self._read) <= self.microbatch:
            if len(self._read) == self._count:
                raise StopIteration
            self._read.append(next(self._iterator))
        batch = self._read[self.microbatch]
        return batch if self.sub is None else self._take_fn(batch, self.sub)

    def finish(self) -> None:
        """Reads the batches that the plan did not use, so that the next
        iteration begins with its own."""
        while self._read and len(self._read) < self._count:
            self._read.append(next(self._iterator))


class PlanRunner:
    """`forward_backward_func` with Megatron's keyword signature.

    schedules  megatron.core.pipeline_parallel.schedules
    rank       of the pipeline; None: that of parallel_state, and its pipeline
               as `group`, when the first iteration begins
    chunk_of   the model chunk of each of this rank's stages (by default, in
               ascending order of stages)
    take_fn    (batch, SubMicrobatch) -> what the module of a sub-microbatch
               takes of a microbatch's batch: `instances` from `first_instance`
    join_fn    (list of outputs of sub-microbatches) -> the input of a module
               that takes the microbatch in one piece; by default all rows. The
               input is None for a microbatch without any
    split_fn   (output, sizes) -> list of parts with so many rows, of an output
               or of a gradient of join_fn's result; by default of rows
    """

    def __init__(self, plans: PlanSource, schedules: Any,
                 rank: Optional[int] = None, *,
                 stock: Optional[Callable[..., Any]] = None, group: Any = None,
                 chunk_of: Optional[Mapping[int, int]] = None,
                 iteration: Optional[Callable[[], int]] = None,
                 take_fn: Optional[Callable[[Any, SubMicrobatch],
                                            Any]] = None,
                 join_fn: Optional[Callable[[List[torch.Tensor]],
                                            torch.Tensor]] = None,
                 split_fn: Optional[Callable[
                     [torch.Tensor, List[int]],
                     Sequence[torch.Tensor]]] = None) -> None:
        self._plans = plans
        self.schedules = schedules
        # Kept, as install() replaces it.
        self.own_getter = getattr(schedules, "get_forward_backward_func", None)
        self.rank = rank
        self._stock = stock
        self.group = group
        self.chunk_of = chunk_of
        self._iteration = iteration
        self.takes_parts = take_fn is not None
        self.take_fn = take_fn or _whole
        self.join_fn = join_fn or torch.cat
        self.split_fn = split_fn or (lambda t, sizes: t.split(sizes))
        self.weights = WeightStore()
        self._calls = 0
        self.ran: List[str] = []  # Schedules run, for monitoring.

    def __call__(self, *, forward_step_func: Any, data_iterator: Any,
                 model: Any, num_microbatches: int, **rest: Any) -> Any:
        step = self._iteration() if self._iteration else self._calls
        self._calls += 1
        plan = None
        if not rest.get("forward_only"):
            plan = self._plans(step, num_microbatches)
        if plan is None:
            assert self._stock is not None or self.own_getter is not None
            stock = self._stock or self.own_getter()  # type: ignore[misc]
            self.ran.append("stock")
            return stock(forward_step_func=forward_step_func,
                         data_iterator=data_iterator, model=model,
                         num_microbatches=num_microbatches, **rest)
        wrong = _other_count(plan, num_microbatches)
        if wrong is not None:
            raise ValueError(wrong)
        if self.rank is None:
            from megatron.core import parallel_state
            self.rank = parallel_state.get_pipeline_model_parallel_rank()
            self.group = parallel_state.get_pipeline_model_parallel_group()
        self.ran.append(plan.schedule)
        return _Iteration(self, plan, forward_step_func, data_iterator, model,
                          rest).run()

    def refusal(self, plan: Plan,
                microbatches: Sequence[Microbatch]) -> Optional[str]:
        """Returns why this runner cannot run the plan, or None: PlanProvider's
        `accept`."""
        if self.takes_parts:
            return _other_count(plan, len(microbatches))
        return refusal(plan, microbatches)


class _Kept:
    """Tensors that a forward keeps for its backward, and the rows of each
    incoming and outgoing edge."""

    def __init__(self, given: Optional[torch.Tensor], output: torch.Tensor,
                 rows_in: Dict[int, int], rows_out: Dict[int, int]) -> None:
        self.given, self.output = given, output
        self.rows_in, self.rows_out = rows_in, rows_out
        self.later: List[Callable[[], None]] = []


class _Iteration:
    """A plan's passes on one rank."""

    def __init__(self, runner: PlanRunner, plan: Plan, forward_step_func: Any,
                 data_iterator: Any, model: Any,
                 rest: Mapping[str, Any]) -> None:
        self.x, self.plan, self.rest = runner, plan, rest
        self.schedules = runner.schedules
        self.forward_step_func = forward_step_func
        self.chunks = model if isinstance(model, list) else [model]
        self.config = getattr(self.chunks[0], "config", None) or (
            self.schedules.get_model_config(self.chunks[0]))
        iterators = (data_iterator if isinstance(data_iterator, list)
                     else [data_iterator] * len(self.chunks))
        self.feeds = [PlanIterators(i, plan.num_microbatches, runner.take_fn)
                      for i in iterators]
        self.structure = PlanStructure(plan)
        mine = [t for t in plan.tasks.values() if t.rank == runner.rank]
        self.chunk_of = runner.chunk_of or {
            s: i for i, s in enumerate(sorted({t.stage for t in mine}))}
        # Passes that add gradients, and chunks with weight gradients apart.
        self.left = [sum(t.kind in "BW" and self.chunk_of[t.stage] == c
                         for t in mine) for c in range(len(self.chunks))]
        self.apart = {self.chunk_of[t.stage] for t in mine if t.kind == "W"}
        for c in self.apart:
            runner.weights.attach(self.chunks[c])
        self.last_stage = max(t.stage for t in plan.tasks.values())
        self.loss_rank = next(t.rank for t in plan.tasks.values()
                              if t.stage == self.last_stage)
        self.device = next(self.chunks[0].parameters()).device
        size = dist.get_world_size(runner.group)
        self.transport = Transport(
            global_ranks(runner.group, size), runner.rank, runner.group,
            self.device, dist.get_backend(runner.group) == "nccl", None, {})
        self.values: Dict[int, Optional[torch.Tensor]] = {}  # By edge.
        self.kept: Dict[int, _Kept] = {}
        self.store: List[Any] = []
        self.tokens = torch.zeros((), dtype=torch.int, device=self.device)
        self.seen: set = set()
        self.contexts: Dict[int, Any] = {}
        # Chunks whose gradients are not being summed over the replicas yet. All
        # replicas begin the sums in this order: a plan may end the chunks of a
        # rank in another order than the plan of another replica does, and
        # collectives that meet in another order add up unlike gradients.
        self.to_sum = list(reversed(range(len(self.chunks))))

    def run(self) -> List[Any]:
        no_sync = getattr(self.config, "no_sync_func", None)
        if no_sync is not None:
            for c in range(len(self.chunks)):
                function = no_sync[c] if isinstance(no_sync, list) else no_sync
                self.contexts[c] = function()
                self.contexts[c].__enter__()
        self._gather()
        plan, transport = self.plan, self.transport
        for op, arg in plan.programs[self.x.rank]:
            if op == "compute":
                {"F": self._forward, "B": self._backward,
                 "W": self._weights}[plan.tasks[arg].kind](arg)
            elif op == "send":
                value = self.values.pop(arg)
                assert value is not None
                transport.send(arg, value,
                               plan.tasks[plan.edges[arg].target].rank)
            elif op == "recv":
                transport.recv(arg, plan.tasks[plan.edges[arg].source].rank)
            elif op == "wait_recv":
                transport.wait_recv(arg, self.values)  # type: ignore[arg-type]
            elif op == "wait_send":
                transport.wait_send(arg)
        transport.finish()
        while self.to_sum:
            self._sum(self.to_sum.pop(0))
        for feed in self.feeds:
            feed.finish()
        self._finalize()
        return self.store

    def _finalize(self) -> None:
        finalize = getattr(self.config, "finalize_model_grads_func", None)
        if finalize is None:
            return
        per_token = getattr(self.config, "calculate_per_token_loss", False)
        last = self.plan.num_ranks - 1
        if self.plan.num_ranks > 1 and self.loss_rank != last:
            # Megatron takes the tokens of the last rank.
            dist.all_reduce(self.tokens, group=self.x.group)
            self.tokens *= int(self.x.rank == last)
        finalize(self.chunks, self.tokens if per_token else None,
                 **_accepted(finalize, {
                     "pg_collection": self.rest.get("pg_collection"),
                     "force_all_reduce": self.rest.get("force_all_reduce",
                                                       False)}))

    def _part(self, task: Any) -> Optional[SubMicrobatch]:
        """Returns the sub-microbatch of a task. None: its module has all of the
        microbatch, and there is no take_fn."""
        if task.microbatch >= len(self.plan.microbatches):
            return None
        subs = [s for s in self.plan.microbatches[task.microbatch].subs
                if s.module == task.module]
        if len(subs) < 2 and not self.x.takes_parts:
            return None
        return next((s for s in subs if s.index == task.sub), None)

    def _forward(self, t: int) -> None:
        task, config = self.plan.tasks[t], self.config
        chunk = self.chunk_of[task.stage]
        feed = self.feeds[chunk]
        feed.microbatch, feed.sub = task.microbatch, self._part(task)
        given, rows_in = None, {}
        parts = []
        for e in self.structure.inputs.get(t, ()):
            part = self.values.pop(e)
            assert part is not None
            rows_in[e] = part.shape[0]
            parts.append(part)
        if parts:
            given = (parts[0] if len(parts) == 1 else
                     self.x.join_fn(parts)).detach()
            given.requires_grad_(given.is_floating_point())
        wanted = {
            "collect_non_loss_data": self.rest.get("collect_non_loss_data",
                                                   False),
            "is_first_microbatch": chunk not in self.seen,
            "current_microbatch": task.microbatch,
            "vp_stage": chunk if len(self.chunks) > 1 else None,
            "is_last_stage": task.stage == self.last_stage,
            "cp_group_size": getattr(config, "context_parallel_size", 1) or 1,
        }
        self.seen.add(chunk)
        step = self.schedules.forward_step
        with self._storing(chunk):
            output, num_tokens = step(
                self.forward_step_func, feed, self.chunks[chunk],
                self.plan.num_microbatches, given, self.store, config,
                **_accepted(step, wanted))
        self.tokens = self.tokens + num_tokens
        kept = _Kept(given, output, rows_in, {})
        for edges in self._by_stage(t):
            whole = output.detach()
            sizes = [whole.shape[0]] if len(edges) == 1 else [
                len(p) for p in torch.tensor_split(
                    torch.empty(whole.shape[0], 0), len(edges))]
            for e, size, part in zip(edges, sizes, [whole] if len(
                    edges) == 1 else self.x.split_fn(whole, sizes)):
                self.values[e], kept.rows_out[e] = part, size
        self.kept[t] = kept
        # Megatron's backward_step then expects the output's own data to be
        # freed; the sent tensor keeps its storage until it is sent.
        if getattr(config, "deallocate_pipeline_outputs", False):
            self.schedules.deallocate_output_tensor(output, True)

    def _by_stage(self, t: int) -> List[List[int]]:
        """Returns the outgoing edges of a forward, those to sub-microbatches of
        one stage together."""
        to: Dict[int, List[int]] = {}
        for e in self.structure.outputs.get(t, ()):
            stage = self.plan.tasks[self.plan.edges[e].target].stage
            to.setdefault(stage, []).append(e)
        return list(to.values())

    def _storing(self, chunk: int) -> Any:
        return (self.x.weights.running() if chunk in self.apart else
                contextlib.nullcontext())

    def _backward(self, t: int) -> None:
        f = self.structure.forward_of[t]
        kept = self.kept[f]
        gradient = None
        arrived = {f_edge: self.values.pop(e) for e, f_edge in
                   self.structure.gradients_in.get(t, ())}
        for edges in self._by_stage(f):
            parts = [arrived[e] for e in edges if e in arrived]
            if not parts:
                continue
            part = parts[0] if len(parts) == 1 else torch.cat(parts)
            gradient = part if gradient is None else gradient + part
        chunk = self.chunk_of[self.plan.tasks[t].stage]
        self._one_less(chunk)
        split = self.structure.is_split[f]
        step = self.schedules.backward_step
        args = [kept.given, kept.output, gradient, self.config]
        if "model_type" in inspect.signature(step).parameters:  # To 0.16.
            args.insert(3, self.schedules.get_model_type(self.chunks[chunk]))
        with self._storing(chunk), (
                self.x.weights.split(self.chunks[chunk]) if split
                else contextlib.nullcontext()) as later:
            back = step(*args)
        if split:
            kept.later = later
        else:
            del self.kept[f]
            if chunk in self.apart:
                self.x.weights.whole(self.chunks[chunk])
            self._end_of(chunk)
        self._send_back(t, kept, back)
        kept.given = kept.output = None  # type: ignore[assignment]

    def _send_back(self, t: int, kept: _Kept,
                   back: Optional[torch.Tensor]) -> None:
        edges = [f for _, f in self.structure.gradients_out.get(t, ())]
        if not edges:
            return
        if back is None:
            assert kept.given is not None
            back = torch.zeros_like(kept.given)
        every = list(kept.rows_in)
        parts = [back] if len(every) == 1 else self.x.split_fn(
            back, list(kept.rows_in.values()))
        of_edge = dict(zip(every, parts))
        for e, f_edge in self.structure.gradients_out[t]:
            self.values[e] = of_edge[f_edge]

    def _weights(self, t: int) -> None:
        kept = self.kept.pop(self.structure.forward_of[t])
        chunk = self.chunk_of[self.plan.tasks[t].stage]
        self._one_less(chunk)
        for later in kept.later:
            later()
        self._end_of(chunk)

    def _gather(self) -> None:
        """Begins the gathers of weights that forwards wait for, in the same
        order on all replicas. By itself Megatron begins those of a chunk at its
        first forward, and a microbatch without images may begin with another
        chunk than one with images does."""
        if len(self.chunks) == 1:
            return
        sync = getattr(self.config, "param_sync_func", None)
        for c, model in enumerate(self.chunks):
            ddp = getattr(model, "ddp_config", None)
            if sync is not None:
                (sync[c] if isinstance(sync, list) else sync)(
                    model.parameters())
            elif getattr(ddp, "overlap_param_gather", False) and getattr(
                    model, "remove_forward_pre_hook_handles", None):
                model.start_param_sync()

    def _one_less(self, chunk: int) -> None:
        """Before a pass that adds gradients. Lets Megatron begin the sum of a
        chunk's gradients during its last backward, if those before it have
        begun. Not if weight gradients come apart, as parameters are then ready
        in no fixed order."""
        self.left[chunk] -= 1
        if (self.left[chunk] == 0 and chunk == self.to_sum[0]
                and chunk not in self.apart
                and getattr(self.config, "grad_sync_func", None) is None):
            self._leave_no_sync(chunk)

    def _end_of(self, chunk: int) -> None:
        """After a pass that adds gradients: begins the sums of chunks that
        have all theirs, as long as it is their turn."""
        if self.left[chunk] > 0:
            return
        while self.to_sum and self.left[self.to_sum[0]] == 0:
            self._sum(self.to_sum.pop(0))

    def _leave_no_sync(self, chunk: int) -> bool:
        """Returns whether the chunk had been kept from summing."""
        context = self.contexts.pop(chunk, None)
        if context is None:
            return False
        context.__exit__(None, None, None)
        return True

    def _sum(self, chunk: int) -> None:
        """Begins the sum of all gradients of a chunk, unless Megatron has."""
        if not self._leave_no_sync(chunk) and chunk not in self.apart:
            return
        start = getattr(self.config, "grad_sync_func", None)
        model = self.chunks[chunk]
        ddp = getattr(model, "ddp_config", None)
        if start is not None:
            (start[chunk] if isinstance(start, list) else start)(
                model.parameters())
        elif ddp is not None and ddp.overlap_grad_reduce:
            model.start_grad_sync()


def install(runner: PlanRunner) -> List[str]:
    """Gives every caller of Megatron's get_forward_backward_func the runner:
    modules that are imported later, and those that have imported it by name
    (Megatron-LM, Megatron-Bridge, ms-swift and others). Returns their
    names."""
    own = runner.own_getter
    names = []
    for name, module in list(sys.modules.items()):
        if getattr(module, "__dict__", {}).get(
                "get_forward_backward_func") is own:
            setattr(module, "get_forward_backward_func",
                    lambda *_, **__: runner)
            names.append(name)
    return sorted(names)
