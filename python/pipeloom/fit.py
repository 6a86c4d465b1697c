"""Checks that a plan fits a trainer: its job, step, rank and stages."""
import math
from typing import (AbstractSet, Any, Dict, List, NamedTuple, Optional,
                    Sequence, Tuple)

from pipeloom.loss import wrong_shares
from pipeloom.plan import Microbatch, Plan
from pipeloom.static_schedule import Stage

_KINDS = ("F", "B", "W")


class BatchSize(NamedTuple):
    """The size of a replica's batch, by which a plan of another is told."""
    samples: int
    text_tokens: int


def other_share(share: Any, request: Any,
                batch: Optional[BatchSize] = None) -> Optional[str]:
    """Returns which field of a RankPlan message is not what the
    GetRankPlanRequest asked for, or None. `batch`: that of the replica, if
    known."""
    for field in ("job_id", "step", "replica", "rank", "attempt"):
        got, wanted = getattr(share, field), getattr(request, field)
        if got != wanted:
            return f"{field} is {got!r}, not {wanted!r}"
    return (_no_checksum("plan_checksum", share.plan_checksum) or
            _other_batch(share.microbatches, batch))


def other_plan(answer: Any, request: Any,
               batch: Optional[BatchSize] = None) -> Optional[str]:
    """Returns the same for a GetPlanResponse and its GetPlanRequest."""
    for field in ("step", "replica"):
        got, wanted = getattr(answer.plan, field), getattr(request, field)
        if got != wanted:
            return f"plan.{field} is {got!r}, not {wanted!r}"
    return (_no_checksum("plan.checksum", answer.plan.checksum) or
            _other_batch(answer.microbatches, batch))


def _no_checksum(field: str, checksum: Any) -> Optional[str]:
    return (None if checksum.high or checksum.low else
            f"{field} is 0, so that ranks could not compare it")


def _other_batch(microbatches: Any,
                 batch: Optional[BatchSize]) -> Optional[str]:
    if batch is None:
        return None
    samples = {s.sample for m in microbatches for s in m.samples}
    if samples != set(range(batch.samples)):
        return (f"microbatches.samples are {len(samples)} samples, not the "
                f"batch's, 0 to {batch.samples - 1}")
    tokens = sum(m.text_tokens for m in microbatches)
    if tokens != batch.text_tokens:
        return (f"microbatches.text_tokens are {tokens}, not "
                f"{batch.text_tokens} as in the batch")
    return None


def misfit(plan: Plan, *, job_id: str, step: int, replica: int,
           rank: Optional[int], stages: Sequence[Stage],
           module_names: Sequence[str],
           frozen: Optional[AbstractSet[str]] = None) -> Optional[str]:
    """Returns why the plan must not run here, or None.

    A plan that passes runs every pass of this rank's stages on every
    sub-microbatch exactly once, in an order that its own dependencies allow,
    and sends and receives the tensors that they need. A sub-microbatch has a
    backward on all stages of its module or on none, and has a loss share if its
    module has a loss. `rank`: the rank whose
    share it is; None: the plan is of all ranks. `frozen`: names of the modules
    that are not trained, all others of which must have backwards; None: not
    known.
    """
    num_ranks = 1 + max(s.rank for s in stages)
    for field, got, wanted in (("job", plan.job, job_id),
                               ("step", plan.step, step),
                               ("replica", plan.replica, replica),
                               ("num_ranks", plan.num_ranks, num_ranks),
                               ("module_names", tuple(plan.module_names),
                                tuple(module_names))):
        if got != wanted:
            return f"{field} is {got!r}, not {wanted!r}"
    own = sorted(plan.programs)
    if own != (list(range(num_ranks)) if rank is None else [rank]):
        return f"it has the programs of ranks {own}"
    if not plan.microbatches:
        return "it has no microbatches"
    return (_wrong_task(plan, stages) or _wrong_microbatches(plan) or
            _wrong_passes(plan, stages, frozen) or wrong_shares(plan, own) or
            next((w for r in own for w in [_wrong_program(plan, r)] if w),
                 None))


def cut_sample(plan: Plan) -> Optional[str]:
    """Returns which sample the plan cuts, and how to avoid it, or None."""
    for m, micro in enumerate(plan.microbatches):
        for sample in micro.cut_samples():
            return (f"sample {sample} is longer than a microbatch, so that "
                    f"microbatch {m} has a part of it only "
                    "(Microbatch.pieces); give Session cuts_samples=True if "
                    "the trainer cuts samples so, or else shorten the sample "
                    "or raise the job's limits of a microbatch, such as "
                    "training.microbatch_tokens")
    return None


def other_samples(plan: Plan, own: Sequence[Microbatch]) -> Optional[str]:
    """Returns in words where the plan has other samples in a microbatch than
    the trainer has put there, or other counts of their instances, or None."""
    if len(plan.microbatches) != len(own):
        return f"it has {len(plan.microbatches)} microbatches, not {len(own)}"
    for m, (theirs, ours) in enumerate(zip(plan.microbatches, own)):
        if sorted(theirs.samples) != sorted(ours.samples):
            return (f"microbatch {m} has the samples {theirs.samples}, not "
                    f"{ours.samples}")
        counts, wanted = _instances(theirs), _instances(ours)
        if counts.keys() != wanted.keys() or any(
                n not in (0, counts[module]) for module, n in wanted.items()):
            return (f"microbatch {m} has so many instances by module: "
                    f"{counts}, not {wanted}")
    return None


def _instances(microbatch: Microbatch) -> Dict[int, int]:
    counts: Dict[int, int] = {}
    for sub in microbatch.subs:
        counts[sub.module] = counts.get(sub.module, 0) + sub.instances
    return counts


def _wrong_task(plan: Plan, stages: Sequence[Stage]) -> Optional[str]:
    for i, t in plan.tasks.items():
        if not 0 <= t.stage < len(stages):
            return f"task {i} is of stage {t.stage}; there are {len(stages)}"
        s = stages[t.stage]
        if (t.module, t.rank) != (s.module, s.rank):
            return (f"stage {t.stage} is of module {t.module} on rank "
                    f"{t.rank}, not of module {s.module} on rank {s.rank}")
        if not 0 <= t.microbatch < len(plan.microbatches):
            return (f"task {i} is of microbatch {t.microbatch}; there are "
                    f"{len(plan.microbatches)}")
    for e, edge in plan.edges.items():
        for end in (edge.source, edge.target):
            if end not in plan.tasks:
                return f"edge {e} ends at task {end}, which is not described"
    return None


def _wrong_microbatches(plan: Plan) -> Optional[str]:
    for m, micro in enumerate(plan.microbatches):
        if not math.isfinite(micro.loss_weight) or micro.loss_weight < 0:
            return f"microbatch {m} has the weight {micro.loss_weight}"
        end: Dict[int, int] = {}
        for sub in micro.subs:
            if sub.first_instance != end.get(sub.module, 0):
                return (f"microbatch {m} has a gap before instance "
                        f"{sub.first_instance} of module {sub.module}")
            end[sub.module] = sub.first_instance + sub.instances
    return None


def _wrong_passes(plan: Plan, stages: Sequence[Stage],
                  frozen: Optional[AbstractSet[str]]) -> Optional[str]:
    """Returns which pass of an own stage is missing or repeated for a
    sub-microbatch, or None."""
    own = set(plan.programs)
    passes: Dict[Tuple[str, int, int, int], int] = {}
    for i, t in plan.tasks.items():
        if t.rank not in own:
            continue
        key = (t.kind, t.stage, t.microbatch, t.sub)
        if t.kind not in _KINDS or key in passes:
            return f"task {i} is pass {key} again"
        passes[key] = i
    wanted = set()
    for m, micro in enumerate(plan.microbatches):
        for sub in micro.subs:
            for s, stage in enumerate(stages):
                if stage.module == sub.module and stage.rank in own:
                    wanted.add((s, m, sub.index))
    got = {kind: {key[1:] for key in passes if key[0] == kind}
           for kind in _KINDS}
    wrong = _difference("F", got["F"], wanted)
    if wrong is not None:
        return wrong
    # A frozen module has backwards only where what feeds it is trained.
    with_backward = {(stages[s].module, m, j) for s, m, j in got["B"]}
    trained = set()
    for s, m, j in sorted(wanted):
        module = stages[s].module
        if (module, m, j) in with_backward:
            trained.add((s, m, j))
        elif frozen is not None and plan.module_names[module] not in frozen:
            return (f"pass B of stage {s}, microbatch {m}, sub-microbatch {j} "
                    f"is missing; {plan.module_names[module]} is not in "
                    "training.frozen_modules")
    wrong = _difference("B", got["B"], trained)
    if wrong is not None:
        return wrong
    if not got["W"] <= trained:
        return "a weight gradient is of no backward"
    return None


def _difference(kind: str, got: AbstractSet[Tuple[int, int, int]],
                wanted: AbstractSet[Tuple[int, int, int]]) -> Optional[str]:
    if got == wanted:
        return None
    stage, m, sub = sorted(got ^ wanted)[0]
    return (f"pass {kind} of stage {stage}, microbatch {m}, sub-microbatch "
            f"{sub} is "
            f"{'missing' if (stage, m, sub) in wanted else 'surplus'}")


def _wrong_program(plan: Plan, rank: int) -> Optional[str]:
    mine = {i for i, t in plan.tasks.items() if t.rank == rank}
    at: Dict[Tuple[str, int], int] = {}
    for i, (op, arg) in enumerate(plan.programs[rank]):
        if op not in ("reduce_gradients", "optimizer_step"):
            if (op, arg) in at:
                return f"rank {rank} has {op} {arg} twice"
            at[op, arg] = i
    computed = {arg for op, arg in at if op == "compute"}
    if computed != mine:
        t = sorted(computed ^ mine)[0]
        return f"rank {rank} computes task {t} never, or has no such task"
    before: List[Tuple[Tuple[str, int], Tuple[str, int]]] = []
    crossing = set()
    for e, edge in plan.edges.items():
        a, b = edge.source in mine, edge.target in mine
        if a and b:
            before.append((("compute", edge.source), ("compute", edge.target)))
        elif b:
            crossing |= {("recv", e), ("wait_recv", e)}
            before += [(("recv", e), ("wait_recv", e)),
                       (("wait_recv", e), ("compute", edge.target))]
        elif a:
            crossing |= {("send", e), ("wait_send", e)}
            before += [(("compute", edge.source), ("send", e)),
                       (("send", e), ("wait_send", e))]
    transfers = {key for key in at if key[0] in
                 ("send", "recv", "wait_recv", "wait_send")}
    if transfers != crossing:
        key = sorted(transfers ^ crossing)[0]
        return f"rank {rank}: {key[0]} of edge {key[1]} is missing or surplus"
    for op, arg in at:
        if op == "free":
            if ("recv", arg) not in at:
                return f"rank {rank} frees edge {arg}, which it never receives"
            before.append((("compute", plan.edges[arg].target), (op, arg)))
        elif op in ("offload", "fetch"):
            if arg not in mine or (op == "fetch" and
                                   ("offload", arg) not in at):
                return f"rank {rank}: {op} of task {arg} has no counterpart"
            before.append((("compute", arg) if op == "offload" else
                           ("offload", arg), (op, arg)))
    place = {(plan.tasks[i].kind, plan.tasks[i].stage,
              plan.tasks[i].microbatch, plan.tasks[i].sub): i for i in mine}
    for (kind, *rest), i in place.items():
        first = {"B": "F", "W": "B"}.get(kind)
        if first is not None:
            before.append((("compute", place[(first, *rest)]), ("compute", i)))
    for first_key, second_key in before:
        if at[first_key] > at[second_key]:
            return (f"rank {rank}: {first_key[0]} {first_key[1]} comes after "
                    f"{second_key[0]} {second_key[1]}")
    return None
