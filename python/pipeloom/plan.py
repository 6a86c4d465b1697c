"""A plan as plain values: the tasks, edges and programs of
docs/plan_format.md. It comes from the service, a plan file or static_plan.

The module can be called, too: `pipeloom.plan(job, samples)` is
pipeloom.planner.plan, which plans without a service."""
import dataclasses
import hashlib
import sys
import types
from typing import (Any, Dict, Iterable, List, Mapping, NamedTuple, Optional,
                    Sequence, Tuple)

from pipeloom.check import InvalidPlan, check_plan
from pipeloom.loss import LossShare, Place, resized
from pipeloom.sample import Sample

_KINDS = {1: "F", 2: "B", 3: "W"}


@dataclasses.dataclass(frozen=True)
class Task:
    """One pass (F, B or W) of a stage on a sub-microbatch. Takes `alloc_bytes`
    of its GPU's memory when it starts and gives back `free_bytes` when it
    ends."""
    rank: int
    kind: str
    module: int
    stage: int
    microbatch: int
    sub: int = 0
    duration_ns: int = 0
    recomputes: bool = False
    alloc_bytes: int = 0
    free_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Edge:
    """A dependency of task `target` on task `source`; between ranks also a
    transfer. With 0 payload bytes it only orders the tasks."""
    source: int
    target: int
    payload_bytes: int = 0
    rows: int = 0
    width: int = 0


class Instruction(NamedTuple):
    """One instruction. `op` is compute, send, recv, wait_recv, wait_send, free,
    offload, fetch, reduce_gradients or optimizer_step; `arg` is its task or
    edge."""
    op: str
    arg: int = -1


@dataclasses.dataclass(frozen=True)
class SubMicrobatch:
    """A module's slice of a microbatch. `tokens` pass through the module's
    layers, `output_tokens` go on to the module that it feeds; 0: not known."""
    module: int
    index: int = 0
    first_instance: int = 0
    instances: int = 0
    tokens: int = 0
    output_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Microbatch:
    """Samples, as indices in the submitted batch. `loss_weight` is the weight
    of the microbatch's mean loss in the step's loss.

    A sample longer than a microbatch is cut by the service, and only a part of
    it is in this microbatch. `pieces` is empty if all samples are whole; else
    pieces[k] has the sizes of the part of samples[k], or is None if that is
    whole.
    The parts of a sample take its text tokens, images, clips and recordings in
    order, and are in several microbatches (of several replicas, if their batch
    was submitted for all of them)."""
    samples: Tuple[int, ...]
    loss_weight: float = 1.0
    subs: Tuple[SubMicrobatch, ...] = ()
    pieces: Tuple[Optional[Sample], ...] = ()

    def cut_samples(self) -> Tuple[int, ...]:
        """Returns those of the samples of which a part only is here."""
        return tuple(sample for sample, piece in zip(self.samples, self.pieces)
                     if piece is not None)


@dataclasses.dataclass(frozen=True)
class RankMemory:
    """The most that a rank's GPU may hold (0: no limit), and what it holds
    throughout the step; bytes."""
    limit: int = 0
    static: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """The programs of some or all ranks for a step. `tasks` and `edges` are
    indexed by their number, programs by rank. One rank's share has the tasks of
    other ranks at the far ends of its edges, without their times. `activations`
    has the memory choice of each layer, indexed by forward task: KEEP,
    RECOMPUTE, OFFLOAD, or RECOMPUTE:norms+activations with the operator groups
    that are made again (pipeloom.recompute); tasks without one keep all.
    `periods` is the number of neighbouring, fully recomputed layers that share
    a checkpoint, indexed by forward task; 1 for tasks without one. `memory` is
    indexed by rank; `copies`, indexed by forward task, are the bytes that its
    offload and its fetch move.

    `loss_shares`, indexed by (module, microbatch, sub-microbatch), has the work
    of all sub-microbatches of modules with a loss, and `loss_totals`, indexed
    by module, their work in the step, with all replicas whose samples were
    submitted together. Without totals the microbatches' `loss_weight` are the
    trainer's own. Both are empty if it is not known which modules have a loss
    (pipeloom.loss)."""
    num_ranks: int
    module_names: Tuple[str, ...]
    tasks: Mapping[int, Task]
    edges: Mapping[int, Edge]
    programs: Mapping[int, Tuple[Instruction, ...]]
    microbatches: Tuple[Microbatch, ...] = ()
    job: str = ""
    step: int = 0
    replica: int = 0
    schedule: str = ""
    quality: str = ""
    checksum: Tuple[int, int] = (0, 0)
    predicted_step_time_ns: int = 0
    # Equal for the plans of all replicas of a step.
    step_checksum: Tuple[int, int] = (0, 0)
    # Whether PlanProvider has made sure that all ranks run it.
    agreed: bool = False
    activations: Mapping[int, Tuple[str, ...]] = dataclasses.field(
        default_factory=dict)
    periods: Mapping[int, int] = dataclasses.field(default_factory=dict)
    memory: Mapping[int, RankMemory] = dataclasses.field(default_factory=dict)
    copies: Mapping[int, int] = dataclasses.field(default_factory=dict)
    attempt: int = 0  # The training's attempt that asked for it.
    # Neighbouring replicas that wait for each other within passes, and so run
    # one order; 0: each is by itself.
    replicas_that_meet: int = 0
    loss_shares: Mapping[Place, LossShare] = dataclasses.field(
        default_factory=dict)
    loss_totals: Mapping[int, LossShare] = dataclasses.field(
        default_factory=dict)

    def with_microbatches(self, step: int,
                          microbatches: Sequence[Microbatch]) -> "Plan":
        """Returns the plan with the same order for other samples, whose losses
        are weighed by the `loss_weight` of these microbatches. ValueError: the
        number of microbatches is another, or a module with a loss has several
        sub-microbatches in one, whose sizes are not given."""
        if len(microbatches) != self.num_microbatches:
            raise ValueError(
                f"the plan has {self.num_microbatches} microbatches, not "
                f"{len(microbatches)}")
        return dataclasses.replace(
            self, step=step, microbatches=tuple(microbatches),
            loss_shares=resized(self.loss_shares, microbatches),
            loss_totals={})

    @property
    def num_microbatches(self) -> int:
        if self.microbatches:
            return len(self.microbatches)
        return 1 + max((t.microbatch for t in self.tasks.values()), default=-1)

    @property
    def shape(self) -> Tuple[Any, ...]:
        """Returns the passes of all sub-microbatches and their ranks, which are
        equal for plans that can stand in for each other."""
        return self.shape_on(range(self.num_ranks))

    def shape_on(self, ranks: Iterable[int]) -> Tuple[Any, ...]:
        """Returns the shape for some ranks only."""
        wanted = set(ranks)
        return tuple(sorted(
            (t.kind, t.stage, t.microbatch, t.sub, t.rank)
            for t in self.tasks.values() if t.rank in wanted))


def digest(plan: Plan) -> Tuple[int, int]:
    """Returns 128 bits over tasks, edges and programs, as a checksum for plans
    without one."""
    h = hashlib.sha256()
    h.update(repr(sorted(plan.tasks.items())).encode())
    h.update(repr(sorted(plan.edges.items())).encode())
    h.update(repr(sorted(plan.programs.items())).encode())
    raw = h.digest()
    return (int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:16], "big"))


def _instructions(program: Any) -> Tuple[Instruction, ...]:
    result = []
    for i in program.instructions:
        op = i.WhichOneof("instruction")
        if op in ("offload", "fetch"):
            result.append(Instruction(op, getattr(i, op).task))
        elif op in ("reduce_gradients", "optimizer_step"):
            result.append(Instruction(op))
        else:
            result.append(Instruction(op, getattr(i, op)))
    return tuple(result)


def _copies(*programs: Any) -> Dict[int, int]:
    return {i.offload.task: i.offload.payload_bytes
            for program in programs for i in program.instructions
            if i.WhichOneof("instruction") == "offload"}


def _memory(spec: Any) -> RankMemory:
    m = spec.memory
    return RankMemory(m.limit_bytes, m.weights_bytes + m.gradients_bytes +
                      m.optimizer_bytes + m.overhead_bytes)


def _task(t: Any) -> Task:
    if t.kind not in _KINDS:
        raise ValueError(f"a task's kind is {t.kind}; it must be one of "
                         f"{_KINDS}")
    return Task(t.rank, _KINDS[t.kind], t.module, t.stage, t.microbatch,
                t.sub_microbatch, t.duration_ns, t.recomputes, t.alloc_bytes,
                t.free_bytes)


def _edge(e: Any) -> Edge:
    return Edge(getattr(e, "from"), e.to, e.payload_bytes, e.rows, e.width)


def _loss(proto: Any) -> Dict[str, Any]:
    """Returns the fields of a plan that say which losses it has."""
    return {
        "loss_shares": {
            (s.module, s.microbatch, s.sub_microbatch):
            LossShare(s.tokens, s.instances) for s in proto.loss_shares},
        "loss_totals": {t.module: LossShare(t.tokens, t.instances)
                        for t in proto.loss_totals}}


def _microbatches(protos: Any) -> Tuple[Microbatch, ...]:
    return tuple(
        Microbatch(
            tuple(s.sample for s in m.samples), m.loss_weight,
            tuple(SubMicrobatch(s.module, s.index, s.first_instance,
                                s.instances, s.tokens, s.output_tokens)
                  for s in m.sub_microbatches),
            _pieces(m.samples))
        for m in protos)


def _pieces(samples: Any) -> Tuple[Optional[Sample], ...]:
    if not any(s.HasField("piece") for s in samples):
        return ()
    return tuple(_sizes(s.piece) if s.HasField("piece") else None
                 for s in samples)


def _sizes(sample: Any) -> Sample:
    return Sample(
        sample.text_tokens,
        tuple((i.width_px, i.height_px) for i in sample.images),
        tuple({field.name: value for field, value in v.ListFields()}
              for v in sample.videos),
        tuple(sample.audio_seconds))


def _enum_name(enum: str, number: int) -> str:
    # Imported here, as plans of the planner in this package need no protobuf.
    from pipeloom import messages
    return messages.enum_name(enum, number)


# Indexed by bit of ActivationChoice.operator_groups.
OPERATOR_GROUPS = ("core_attention", "norms", "activations", "moe_activations",
                   "projections")


def _layer(strategy: int, groups: int) -> str:
    name = _enum_name("MemoryStrategy", strategy)
    name = name[len("MEMORY_STRATEGY_"):]
    if groups == 0:
        return name
    if groups >> len(OPERATOR_GROUPS):
        raise ValueError(f"operator groups {groups:#x}: the service is newer "
                         "than this package")
    return name + ":" + "+".join(g for bit, g in enumerate(OPERATOR_GROUPS)
                                 if groups >> bit & 1)


def _activations(protos: Any) -> Dict[int, Tuple[str, ...]]:
    return {a.task: tuple(
        _layer(s, a.operator_groups[i] if a.operator_groups else 0)
        for i, s in enumerate(a.layers)) for a in protos}


def _periods(protos: Any) -> Dict[int, int]:
    return {a.task: a.period for a in protos if a.period > 1}


def _check_format(proto: Any) -> None:
    if proto.format != "pipeloom.plan" or proto.version != 1:
        raise ValueError(f"no plan of version 1: {proto.format!r}, version "
                         f"{proto.version}")


def from_execution_plan(proto: Any) -> Plan:
    """Returns the plan of an ExecutionPlan message, with all ranks and without
    microbatches."""
    _check_format(proto)
    return Plan(
        num_ranks=len(proto.programs),
        module_names=tuple(proto.graph.module_names),
        tasks={i: _task(t) for i, t in enumerate(proto.graph.tasks)},
        edges={i: _edge(e) for i, e in enumerate(proto.graph.edges)},
        programs={r: _instructions(p) for r, p in enumerate(proto.programs)},
        job=proto.job, step=proto.step, replica=proto.replica,
        schedule=proto.schedule,
        checksum=(proto.checksum.high, proto.checksum.low),
        predicted_step_time_ns=proto.predicted_step_time_ns,
        memory={r: _memory(spec) for r, spec in enumerate(proto.graph.ranks)},
        copies=_copies(*proto.programs), **_loss(proto))


def from_response(proto: Any) -> Plan:
    """Returns the plan of a GetPlanResponse message."""
    return dataclasses.replace(
        from_execution_plan(proto.plan),
        quality=_enum_name("PlanQuality", proto.quality),
        step_checksum=(proto.step_checksum.high, proto.step_checksum.low),
        replicas_that_meet=proto.replicas_that_meet,
        microbatches=_microbatches(proto.microbatches),
        activations=_activations(proto.activations),
        periods=_periods(proto.activations))


def from_rank_plan(proto: Any) -> Plan:
    """Returns the plan of a RankPlan message: one rank's program and tasks, and
    the tasks of other ranks that it sends to and receives from."""
    return Plan(
        num_ranks=proto.num_ranks, module_names=tuple(proto.module_names),
        tasks={t.index: _task(t.task)
               for t in (*proto.tasks, *proto.neighbours)},
        edges={e.index: _edge(e.edge) for e in proto.edges},
        programs={proto.rank: _instructions(proto.program)},
        microbatches=_microbatches(proto.microbatches), job=proto.job_id,
        step=proto.step, replica=proto.replica, schedule=proto.schedule,
        quality=_enum_name("PlanQuality", proto.quality),
        checksum=(proto.plan_checksum.high, proto.plan_checksum.low),
        step_checksum=(proto.step_checksum.high, proto.step_checksum.low),
        predicted_step_time_ns=proto.predicted_step_time_ns,
        memory={proto.rank: _memory(proto.rank_spec)},
        copies=_copies(proto.program), attempt=proto.attempt,
        replicas_that_meet=proto.replicas_that_meet,
        activations=_activations(proto.activations),
        periods=_periods(proto.activations), **_loss(proto))


def read_plan(path: str) -> Plan:
    """Reads a plan file of `pipeloom plan --out` in protobuf form. It has no
    samples: with_microbatches() gives it some, and the weights of their losses.
    InvalidPlan (pipeloom.check): it is not the plan of a step, is cut off, or
    was changed after it was written. OSError."""
    from google.protobuf.message import DecodeError
    from pipeloom import messages
    from pipeloom.plan_checksum import check_checksum
    with open(path, "rb") as file:
        data = file.read()
    try:
        proto = messages.ExecutionPlan.FromString(data)
        _check_format(proto)
        check_checksum(proto)
        plan = from_execution_plan(proto)
        check_plan(plan)
    except DecodeError:
        raise InvalidPlan(f"{path}: its {len(data)} bytes are no whole plan in "
                          "protobuf form") from None
    except ValueError as error:
        raise InvalidPlan(f"{path}: {error}") from error
    return plan


def loss_weights(sizes: Sequence[float]) -> Tuple[float, ...]:
    """Returns each size's share of their sum; equal shares if the sum is 0."""
    total = float(sum(sizes))
    if total <= 0:
        return tuple(1.0 / max(1, len(sizes)) for _ in sizes)
    return tuple(s / total for s in sizes)


def check_order(plan: Plan) -> Optional[str]:
    """Returns why the plan's ranks cannot run to the end if their sends block,
    or None if they can. REQUIRES: the plan has the programs of all ranks."""
    at = {r: 0 for r in plan.programs}
    done = set()
    reached_send = set()
    reached_recv = set()
    needs: Dict[int, List[int]] = {}
    for edge in plan.edges.values():
        needs.setdefault(edge.target, []).append(edge.source)
    progress = True
    while progress:
        progress = False
        for r, program in plan.programs.items():
            while at[r] < len(program):
                op, arg = program[at[r]]
                if op == "send":
                    if plan.edges[arg].source not in done:
                        return f"rank {r} sends edge {arg} too early"
                    reached_send.add(arg)
                    if arg not in reached_recv:
                        break
                elif op == "recv":
                    reached_recv.add(arg)
                elif op == "wait_recv":
                    if arg not in reached_send or arg not in reached_recv:
                        break
                elif op == "compute":
                    if any(t not in done for t in needs.get(arg, ())):
                        return f"rank {r} computes task {arg} too early"
                    done.add(arg)
                at[r] += 1
                progress = True
    waiting = [f"rank {r} at instruction {i}" for r, i in at.items()
               if i < len(plan.programs[r])]
    if waiting:
        return "deadlock: " + "; ".join(waiting)
    if len(done) != len(plan.tasks):
        return "some task is never computed"
    return None


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Plans steps of a job: pipeloom.planner.plan."""
        from pipeloom.planner import plan
        return plan(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
