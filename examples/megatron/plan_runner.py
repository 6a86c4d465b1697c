"""Pipeloom plans in Megatron-Core: a `forward_backward_func` that carries out a
plan by Megatron's own forward_step and backward_step.

    from megatron.core.pipeline_parallel import schedules
    runner = PlanRunner(plans, schedules, rank, layout)
    training.get_forward_backward_func = lambda *_, **__: runner   # install()

`plans(iteration, num_microbatches)` returns a pipeloom.Plan that all ranks of
the pipeline agree on (pipeloom.PlanProvider, whose `static` returns None and
whose `accept` is refusal), or None, with which the stock schedule runs on all
ranks. Megatron may run an iteration twice (its rerun state machine), so `plans`
may be called twice for an iteration.

In addition to stock Megatron, it supports stages placed in a V, microbatches in
any order, fewer microbatches than ranks, and tensors with different numbers of
rows, including none. It leaves to Megatron: the places of layers (fixed when
the model is built; `pipeloom export --to megatron-layout`), evaluation, CUDA
graphs, and separate weight gradients (only with layers that have `backward_dw`;
a plan with W tasks is refused).

Unequal microbatches need a loss_func with three results and
calculate_per_token_loss, else cutting a batch in another way changes its
gradient.
"""
import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
import torch.distributed as dist

from pipeloom.plan import Microbatch, Plan
from pipeloom.torch import PlanStructure
from pipeloom.transport import Transport, global_ranks

PlanSource = Callable[[int, int], Optional[Plan]]


def refusal(plan: Plan, microbatches: Sequence[Microbatch]) -> Optional[str]:
    """Returns why Megatron cannot run the plan, or None: PlanProvider's
    `accept`."""
    if any(t.kind == "W" for t in plan.tasks.values()):
        return ("Megatron-Core has no weight gradients apart: plan with whole "
                "backwards")
    if plan.num_microbatches != len(microbatches):
        return (f"the plan has {plan.num_microbatches} microbatches; Megatron "
                f"asks for {len(microbatches)}")
    return None


def _accepted(function: Callable[..., Any], wanted: Mapping[str, Any]
              ) -> Dict[str, Any]:
    """Returns the entries of `wanted` that this version of Megatron accepts."""
    known = inspect.signature(function).parameters
    return {k: v for k, v in wanted.items() if k in known}


class PlanIterators:
    """The iteration's batches of a chunk, in the order of the plan."""

    def __init__(self, iterator: Any, count: int) -> None:
        # Read only when a batch is needed, as middle ranks may have no data.
        self._iterator = iterator
        self._count = count
        self._read: List[Any] = []
        self.microbatch = 0

    def __iter__(self) -> "PlanIterators":
        return self

    def __next__(self) -> Any:
        while len(self._read) <= self.microbatch:
            if len(self._read) == self._count:
                raise StopIteration
            self._read.append(next(self._iterator))
        return self._read[self.microbatch]

    def finish(self) -> None:
        """Reads the batches that the plan did not use, so that the next
        iteration begins with its own."""
        while self._read and len(self._read) < self._count:
            self._read.append(next(self._iterator))


class PlanRunner:
    """`forward_backward_func` with Megatron's keyword signature.

    `schedules` is megatron.core.pipeline_parallel.schedules; `chunk_of` is the
    model chunk of each of this rank's stages (by default, in ascending order of
    stages)."""

    def __init__(self, plans: PlanSource, schedules: Any, rank: int, *,
                 stock: Optional[Callable[..., Any]] = None, group: Any = None,
                 chunk_of: Optional[Mapping[int, int]] = None,
                 iteration: Optional[Callable[[], int]] = None) -> None:
        self._plans = plans
        self._schedules = schedules
        self._rank = rank
        self._stock = stock
        self._group = group
        self._chunk_of = chunk_of
        self._iteration = iteration
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
            stock = self._stock or self._schedules.get_forward_backward_func()
            self.ran.append("stock")
            return stock(forward_step_func=forward_step_func,
                         data_iterator=data_iterator, model=model,
                         num_microbatches=num_microbatches, **rest)
        if any(t.kind == "W" for t in plan.tasks.values()):
            raise ValueError("Megatron-Core has no weight gradients apart: "
                             "plan with whole backwards")
        if plan.num_microbatches != num_microbatches:
            raise ValueError(
                f"the plan has {plan.num_microbatches} microbatches; Megatron "
                f"asks for {num_microbatches}")
        self.ran.append(plan.schedule)
        return self._run(plan, forward_step_func, data_iterator, model, rest)

    def _run(self, plan: Plan, forward_step_func: Any, data_iterator: Any,
             model: Any, rest: Mapping[str, Any]) -> List[Any]:
        chunks = model if isinstance(model, list) else [model]
        config = getattr(chunks[0], "config", None) or (
            self._schedules.get_model_config(chunks[0]))
        iterators = (data_iterator if isinstance(data_iterator, list)
                     else [data_iterator] * len(chunks))
        count = plan.num_microbatches
        feeds = [PlanIterators(i, count) for i in iterators]
        structure = PlanStructure(plan)
        mine = sorted({t.stage for t in plan.tasks.values()
                       if t.rank == self._rank})
        chunk_of = self._chunk_of or {s: i for i, s in enumerate(mine)}
        left = {c: sum(t.kind == "B" and t.rank == self._rank and
                       chunk_of[t.stage] == c for t in plan.tasks.values())
                for c in range(len(chunks))}
        last_stage = max(t.stage for t in plan.tasks.values())
        device = next(chunks[0].parameters()).device
        size = dist.get_world_size(self._group)
        transport = Transport(global_ranks(self._group, size), self._rank,
                               self._group, device,
                               dist.get_backend(self._group) == "nccl", None,
                               {})
        values: Dict[int, Optional[torch.Tensor]] = {}
        kept: Dict[int, Any] = {}
        store: List[Any] = []
        tokens = torch.zeros((), dtype=torch.int, device=device)
        seen: set = set()

        no_sync = getattr(config, "no_sync_func", None)
        contexts = {}
        if no_sync is not None:
            functions = (no_sync if isinstance(no_sync, list)
                         else [no_sync] * len(chunks))
            for c in range(len(chunks)):
                contexts[c] = functions[c]()
                contexts[c].__enter__()

        def forward(t: int) -> None:
            nonlocal tokens
            task = plan.tasks[t]
            chunk = chunk_of[task.stage]
            feeds[chunk].microbatch = task.microbatch
            source = structure.inputs.get(t, [])
            given = values.pop(source[0]) if source else None
            if given is not None:
                given = given.detach().requires_grad_(
                    given.is_floating_point())
            wanted = {
                "collect_non_loss_data": rest.get("collect_non_loss_data",
                                                  False),
                "is_first_microbatch": chunk not in seen,
                "current_microbatch": task.microbatch,
                "vp_stage": chunk if len(chunks) > 1 else None,
                "is_last_stage": task.stage == last_stage,
                "cp_group_size": 1,
            }
            seen.add(chunk)
            step = self._schedules.forward_step
            output, num_tokens = step(
                forward_step_func, feeds[chunk], chunks[chunk], count, given,
                store, config, **_accepted(step, wanted))
            tokens = tokens + num_tokens
            kept[t] = (given, output)
            for e in structure.outputs.get(t, ()):
                values[e] = output.detach()
            # Megatron's backward_step then expects the output's own data to be
            # freed; the sent tensor keeps its storage until it is sent.
            if getattr(config, "deallocate_pipeline_outputs", False):
                self._schedules.deallocate_output_tensor(output, True)

        def backward(t: int) -> None:
            f = structure.forward_of[t]
            given, output = kept.pop(f)
            gradient = None
            for e, _ in structure.gradients_in.get(t, ()):
                gradient = values.pop(e)
            chunk = chunk_of[plan.tasks[t].stage]
            left[chunk] -= 1
            if left[chunk] == 0 and chunk in contexts:
                contexts.pop(chunk).__exit__(None, None, None)
            step = self._schedules.backward_step
            if "model_type" in inspect.signature(step).parameters:  # 0.15.
                model_type = self._schedules.get_model_type(chunks[chunk])
                back = step(given, output, gradient, model_type, config)
            else:
                back = step(given, output, gradient, config)
            for e, _ in structure.gradients_out.get(t, ()):
                values[e] = (back if back is not None
                             else torch.zeros_like(given))

        for op, arg in plan.programs[self._rank]:
            if op == "compute":
                (forward if plan.tasks[arg].kind == "F" else backward)(arg)
            elif op == "send":
                value = values.pop(arg)
                assert value is not None
                transport.send(arg, value,
                               plan.tasks[plan.edges[arg].target].rank)
            elif op == "recv":
                transport.recv(arg, plan.tasks[plan.edges[arg].source].rank)
            elif op == "wait_recv":
                transport.wait_recv(arg, values)  # type: ignore[arg-type]
            elif op == "wait_send":
                transport.wait_send(arg)
        transport.finish()
        for context in contexts.values():
            context.__exit__(None, None, None)
        for feed in feeds:
            feed.finish()
        finalize = getattr(config, "finalize_model_grads_func", None)
        if finalize is not None:
            per_token = getattr(config, "calculate_per_token_loss", False)
            finalize(chunks, tokens if per_token else None,
                     **_accepted(finalize, {
                         "pg_collection": rest.get("pg_collection"),
                         "force_all_reduce": rest.get("force_all_reduce",
                                                      False)}))
        return store


def install(runner: PlanRunner) -> None:
    """Replaces the getter where Megatron's and Bridge's loops look it up."""
    import importlib
    for name in ("megatron.training.training",
                 "megatron.bridge.training.train"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "get_forward_backward_func"):
            if runner._stock is None:
                runner._stock = module.get_forward_backward_func()
            module.get_forward_backward_func = lambda *_, **__: runner
