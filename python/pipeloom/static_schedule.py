"""Plans made without a planner, as a fallback that is always there.

The schedule is Megatron's: 1F1B if every rank has one segment of stages,
interleaved 1F1B if it has several. It is made from the trainer's own
microbatches, so every rank that knows them makes the same plan.
"""
import dataclasses
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from pipeloom.loss import final_shares
from pipeloom.plan import (Edge, Instruction, Microbatch, Plan, Task,
                           check_order, digest)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Consecutive layers of one module on one rank."""
    module: int
    first_layer: int
    num_layers: int
    rank: int
    segment: int = 0


# Returns the nanoseconds of a task: (kind, stage, microbatch, sub) -> ns.
Cost = Callable[[str, int, int, int], int]


@dataclasses.dataclass(frozen=True)
class Graph:
    """Tasks in a topological order, and their dependencies."""
    tasks: Tuple[Task, ...]
    edges: Tuple[Edge, ...]


def build_graph(stages: Sequence[Stage], feeds: Sequence[Tuple[int, int]],
                subs: Sequence[Mapping[int, int]],
                cost: Cost = lambda *_: 0, split_backward: bool = False,
                delay_payload: int = 1) -> Graph:
    """Returns the step's tasks. `feeds` are pairs (module, module that it
    feeds). `subs` has for each microbatch the number of sub-microbatches of
    each module, without modules that have no work."""
    of_module: Dict[int, List[int]] = {}
    for s, stage in enumerate(stages):
        of_module.setdefault(stage.module, []).append(s)
    tasks: List[Task] = []
    edges: List[Edge] = []

    def add(kind: str, s: int, m: int, j: int) -> int:
        tasks.append(Task(stages[s].rank, kind, stages[s].module, s, m, j,
                          cost(kind, s, m, j)))
        return len(tasks) - 1

    def connect(a: int, b: int) -> None:
        far = tasks[a].rank != tasks[b].rank
        edges.append(Edge(a, b, delay_payload if far else 0))

    for m, present in enumerate(subs):
        forward: Dict[Tuple[int, int], int] = {}
        backward: Dict[Tuple[int, int], int] = {}
        order = [(module, j) for module in of_module
                 for j in range(present.get(module, 0))]
        for module, j in order:
            for k, s in enumerate(of_module[module]):
                forward[s, j] = add("F", s, m, j)
                if k > 0:
                    connect(forward[of_module[module][k - 1], j],
                            forward[s, j])
                    continue
                for a, b in feeds:
                    if b == module:
                        for i in range(present.get(a, 0)):
                            connect(forward[of_module[a][-1], i],
                                    forward[s, j])
        for module, j in reversed(order):
            own = of_module[module]
            for k in range(len(own) - 1, -1, -1):
                s = own[k]
                backward[s, j] = add("B", s, m, j)
                connect(forward[s, j], backward[s, j])
                if k + 1 < len(own):
                    connect(backward[own[k + 1], j], backward[s, j])
                else:
                    for a, b in feeds:
                        if a == module:
                            for i in range(present.get(b, 0)):
                                connect(backward[of_module[b][0], i],
                                        backward[s, j])
                if split_backward:
                    w = add("W", s, m, j)
                    connect(backward[s, j], w)
    return Graph(tuple(tasks), tuple(edges))


def megatron_orders(graph: Graph, stages: Sequence[Stage],
                    num_ranks: int) -> List[List[int]]:
    """Returns the orders of 1F1B or interleaved 1F1B, for any number of
    microbatches: the last group is filled up with empty microbatches."""
    segments = 1 + max(s.segment for s in stages)
    cells: Dict[Tuple[int, int, int, bool], List[int]] = {}
    microbatches = 0
    for i, t in enumerate(graph.tasks):
        microbatches = max(microbatches, t.microbatch + 1)
        key = (t.rank, stages[t.stage].segment, t.microbatch, t.kind == "F")
        cells.setdefault(key, []).append(i)
    padded = microbatches
    if segments > 1:
        padded = -(-microbatches // num_ranks) * num_ranks
    forward = [(m, c) for first in range(0, padded, num_ranks)
               for c in range(segments)
               for m in range(first, min(padded, first + num_ranks))]
    orders: List[List[int]] = []
    for r in range(num_ranks):
        warmup = num_ranks - r - 1
        if segments > 1:
            warmup = 2 * warmup + (segments - 1) * num_ranks
        warmup = min(warmup, len(forward))
        order: List[int] = []
        for i in range(len(forward) + warmup):
            if i < len(forward):
                m, c = forward[i]
                order += cells.get((r, c, m, True), [])
            if i >= warmup:
                m, c = forward[i - warmup]
                order += cells.get((r, segments - 1 - c, m, False), [])
        orders.append(order)
    return orders


def gpipe_orders(graph: Graph, num_ranks: int) -> List[List[int]]:
    """Returns the orders of GPipe, all forwards before all backwards, which are
    always legal."""
    orders: List[List[int]] = [[] for _ in range(num_ranks)]
    for forward in (True, False):
        for i, t in enumerate(graph.tasks):
            if (t.kind == "F") == forward:
                orders[t.rank].append(i)
    return orders


def lower(graph: Graph, orders: Sequence[Sequence[int]],
          epilogue: bool = True) -> Dict[int, Tuple[Instruction, ...]]:
    """Returns programs with these orders. Send and receive of an edge are
    listed at the same moment of one walk over all ranks, so channels match and
    even blocking sends cannot deadlock. A send is waited for before the first
    task of its rank that comes, in that walk, after its consumer. ValueError:
    the orders contradict the edges."""
    incoming: Dict[int, List[int]] = {}
    outgoing: Dict[int, List[int]] = {}
    for e, edge in enumerate(graph.edges):
        incoming.setdefault(edge.target, []).append(e)
        outgoing.setdefault(edge.source, []).append(e)

    def crosses(e: int) -> bool:
        edge = graph.edges[e]
        return graph.tasks[edge.source].rank != graph.tasks[edge.target].rank

    programs: List[List[Instruction]] = [[] for _ in orders]
    sent: List[List[int]] = [[] for _ in orders]
    at = [0] * len(orders)
    done = set()
    progress = True
    while progress:
        progress = False
        for r, order in enumerate(orders):
            if at[r] == len(order):
                continue
            t = order[at[r]]
            if any(graph.edges[e].source not in done
                   for e in incoming.get(t, ())):
                continue
            over = [e for e in sent[r] if graph.edges[e].target in done]
            programs[r] += [Instruction("wait_send", e) for e in over]
            sent[r] = [e for e in sent[r] if e not in over]
            far = [e for e in incoming.get(t, ()) if crosses(e)]
            programs[r] += [Instruction("wait_recv", e) for e in far]
            programs[r].append(Instruction("compute", t))
            programs[r] += [Instruction("free", e) for e in far]
            for e in outgoing.get(t, ()):
                if crosses(e):
                    programs[r].append(Instruction("send", e))
                    sent[r].append(e)
                    peer = graph.tasks[graph.edges[e].target].rank
                    programs[peer].append(Instruction("recv", e))
            done.add(t)
            at[r] += 1
            progress = True
    if len(done) != len(graph.tasks):
        stuck = ", ".join(f"rank {r} at {at[r]}" for r, o in enumerate(orders)
                          if at[r] < len(o))
        raise ValueError(f"the orders contradict the dependencies: {stuck}")
    for r, program in enumerate(programs):
        if epilogue:
            program += [Instruction("reduce_gradients"),
                        Instruction("optimizer_step")]
        program += [Instruction("wait_send", e) for e in sent[r]]
    return {r: tuple(p) for r, p in enumerate(programs)}


def makespan_ns(graph: Graph, orders: Sequence[Sequence[int]]) -> int:
    """Returns when the last task ends if transfers take no time; nanoseconds
    from the start of the step. REQUIRES: the orders are legal."""
    sources: Dict[int, List[int]] = {}
    for edge in graph.edges:
        sources.setdefault(edge.target, []).append(edge.source)
    end: Dict[int, int] = {}
    free = [0] * len(orders)  # When the rank has ended its tasks so far.
    at = [0] * len(orders)
    while len(end) < len(graph.tasks):
        for r, order in enumerate(orders):
            while at[r] < len(order) and all(
                    t in end for t in sources.get(order[at[r]], ())):
                task = order[at[r]]
                begin = max([free[r], *(end[t] for t in
                                        sources.get(task, ()))])
                free[r] = end[task] = begin + graph.tasks[task].duration_ns
                at[r] += 1
    return max(free, default=0)


def plan_of(graph: Graph, orders: Sequence[Sequence[int]],
            module_names: Sequence[str], microbatches: Sequence[Microbatch],
            schedule: str, step: int = 0, job: str = "") -> Plan:
    """Returns the plan that runs the graph's tasks in these orders, one a rank.
    Its predicted time is that of the tasks, without transfers; 0 if their
    durations are not known. ValueError: the orders contradict the edges."""
    plan = Plan(num_ranks=len(orders), module_names=tuple(module_names),
                tasks=dict(enumerate(graph.tasks)),
                edges=dict(enumerate(graph.edges)),
                programs=lower(graph, orders),
                microbatches=tuple(microbatches), job=job, step=step,
                schedule=schedule)
    wrong = check_order(plan)
    if wrong:
        raise ValueError(wrong)
    return dataclasses.replace(
        plan, checksum=digest(plan),
        predicted_step_time_ns=makespan_ns(graph, orders))


def static_plan(stages: Sequence[Stage], feeds: Sequence[Tuple[int, int]],
                microbatches: Sequence[Microbatch],
                module_names: Sequence[str], step: int = 0, job: str = "",
                cost: Cost = lambda *_: 0) -> Plan:
    """Returns the plan of Megatron's schedule, or of GPipe's if the former is
    not legal. Only modules in a microbatch's `subs` have tasks in it. If a
    module that feeds no other has several sub-microbatches of known sizes, the
    plan has the loss_shares of such modules."""
    num_ranks = 1 + max(s.rank for s in stages)
    subs: List[Dict[int, int]] = []
    for m in microbatches:
        counts: Dict[int, int] = {}
        for sub in m.subs:
            counts[sub.module] = max(counts.get(sub.module, 0), sub.index + 1)
        subs.append(counts)
    graph = build_graph(stages, feeds, subs, cost)
    try:
        plan = plan_of(graph, megatron_orders(graph, stages, num_ranks),
                       module_names, microbatches, "static-1f1b", step, job)
    except ValueError:
        plan = plan_of(graph, gpipe_orders(graph, num_ranks), module_names,
                       microbatches, "static-gpipe", step, job)
    return dataclasses.replace(plan,
                               loss_shares=final_shares(feeds, microbatches))
