"""The check of a plan before it is carried out: its tasks are the passes of a
step, each once, and its programs compute them in an order in which their inputs
exist."""
from __future__ import annotations

from typing import (TYPE_CHECKING, Dict, Iterable, List, Optional, Set, Tuple)

from pipeloom.loss import wrong_shares

if TYPE_CHECKING:
    from pipeloom.plan import Plan, Task

_NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}
_BEFORE = {"B": "F", "W": "B"}

Place = Tuple[int, int, int]


class InvalidPlan(ValueError):
    """The plan breaks a rule; the message names rank, task or instruction and
    what would be right."""


def _place(task: Task) -> Place:
    return (task.stage, task.microbatch, task.sub)


def _describe(plan: Plan, t: int) -> str:
    task = plan.tasks[t]
    return (f"rank {task.rank}, task {t} ({task.kind} stage {task.stage} "
            f"microbatch {task.microbatch} sub-microbatch {task.sub})")


def check_plan(plan: Plan, ranks: Optional[Iterable[int]] = None) -> None:
    """Checks what the plan says of `ranks`, by default of all whose programs it
    has. InvalidPlan: a pass is there twice, missing, on another rank, or of
    another stage, module or kind than its place in the step says; a module with
    a loss is without a loss share; or a program runs a pass before what it
    depends on. O(tasks + edges + instructions)."""
    own = set(plan.programs if ranks is None else ranks)
    missing = own - set(plan.programs)
    if missing:
        raise InvalidPlan(f"the plan has no program of rank {min(missing)}; it "
                          f"has those of {sorted(plan.programs)}")
    _check_tasks(plan, own)
    wrong = wrong_shares(plan, own)
    if wrong is not None:
        raise InvalidPlan(wrong)
    incoming = _check_edges(plan, own)
    if len(own) == plan.num_ranks:
        _check_trained(plan, incoming)
    for rank in sorted(own):
        _Program(plan, rank, incoming).check()


def _check_tasks(plan: Plan, own: Set[int]) -> None:
    seen: Dict[Tuple[str, int, int, int], int] = {}
    stages: Dict[int, Tuple[int, int, int]] = {}
    for t, task in plan.tasks.items():
        if task.kind not in _NAMES:
            raise InvalidPlan(f"{_describe(plan, t)}: its kind is "
                              f"{task.kind!r}; it must be F, B or W")
        if not 0 <= task.module < len(plan.module_names):
            raise InvalidPlan(
                f"{_describe(plan, t)}: module {task.module} does not exist; "
                f"there are {len(plan.module_names)}")
        if min(task.stage, task.microbatch, task.sub) < 0:
            raise InvalidPlan(f"{_describe(plan, t)}: stage, microbatch and "
                              "sub-microbatch must be >= 0")
        key = (task.kind,) + _place(task)
        other = seen.setdefault(key, t)
        if other != t:
            raise InvalidPlan(f"{_describe(plan, t)}: task {other} is the same "
                              "pass already")
        module, rank, first = stages.setdefault(
            task.stage, (task.module, task.rank, t))
        if (module, rank) != (task.module, task.rank):
            raise InvalidPlan(
                f"{_describe(plan, t)}: its stage is of module {module} and on "
                f"rank {rank} by task {first}, not of module {task.module} and "
                f"on rank {task.rank}")
    _check_complete(plan, own, seen)


def _check_complete(plan: Plan, own: Set[int],
                    seen: Dict[Tuple[str, int, int, int], int]) -> None:
    # The stages of a module, and by sub-microbatch the number of forwards and
    # backwards on them, of the own ranks.
    stages: Dict[int, Set[int]] = {}
    passes: Dict[Tuple[int, int, int], List[int]] = {}
    for t, task in plan.tasks.items():
        if task.rank not in own:
            continue
        before = _BEFORE.get(task.kind)
        if before and (before,) + _place(task) not in seen:
            raise InvalidPlan(f"{_describe(plan, t)}: there is no "
                              f"{_NAMES[before]} of this stage, microbatch and "
                              "sub-microbatch")
        stages.setdefault(task.module, set()).add(task.stage)
        count = passes.setdefault((task.module, task.microbatch, task.sub),
                                  [0, 0])
        if task.kind != "W":
            count[task.kind == "B"] += 1
    # Samples that the trainer gives the plan; a plan file has none.
    for m, micro in enumerate(plan.microbatches):
        for listed in micro.subs:
            if listed.module in stages and (
                    (listed.module, m, listed.index) not in passes):
                raise InvalidPlan(
                    f"microbatch {m} has a sub-microbatch {listed.index} of "
                    f"module {plan.module_names[listed.module]}, for which "
                    f"ranks {sorted(own)} have no forward")
    for (module, microbatch, sub), (forwards, backwards) in passes.items():
        if sub > 0 and (module, microbatch, sub - 1) not in passes:
            raise InvalidPlan(
                f"module {plan.module_names[module]}, microbatch {microbatch}: "
                f"it has a sub-microbatch {sub} and no {sub - 1}; they are "
                "numbered from 0")
        want = len(stages[module])
        if forwards == want and backwards in (0, want):
            continue
        name = "forwards" if forwards != want else "backwards"
        raise InvalidPlan(
            f"module {plan.module_names[module]}, microbatch {microbatch}, "
            f"sub-microbatch {sub}: it has "
            f"{forwards if forwards != want else backwards} {name} on "
            f"rank{'' if len(own) == 1 else 's'} {sorted(own)}; its module has "
            f"{want} stages there")


def _check_edges(plan: Plan, own: Set[int]) -> Dict[int, List[int]]:
    """Returns the edges into each task."""
    incoming: Dict[int, List[int]] = {}
    takers: Dict[int, List[int]] = {}  # Forwards that take a forward's output.
    for e, edge in plan.edges.items():
        incoming.setdefault(edge.target, []).append(e)
        for t in (edge.source, edge.target):
            if t not in plan.tasks:
                raise InvalidPlan(
                    f"edge {e} ends at task {t}, which the plan does not "
                    "describe: its service is older than this package")
        a, b = plan.tasks[edge.source], plan.tasks[edge.target]
        if a.kind != "F" or b.kind != "F":
            continue
        takers.setdefault(edge.source, []).append(edge.target)
        if a.microbatch != b.microbatch or (a.module == b.module and
                                            a.sub != b.sub):
            raise InvalidPlan(
                f"edge {e} hands the output of {_describe(plan, edge.source)} "
                f"to {_describe(plan, edge.target)}, of another microbatch or "
                "sub-microbatch")
    stage_before: Dict[int, Tuple[List[int], int]] = {}
    forward_of: Dict[Place, int] = {}
    for t, task in plan.tasks.items():
        if task.kind != "F":
            continue
        forward_of[_place(task)] = t
        if task.rank not in own:
            continue
        sources = [plan.tasks[plan.edges[e].source]
                   for e in incoming.get(t, ())]
        before = [a.stage for a in sources
                  if a.kind == "F" and a.module == task.module]
        usual, first = stage_before.setdefault(task.stage, (before, t))
        if before != usual:
            raise InvalidPlan(
                f"{_describe(plan, t)}: it takes the output of stages "
                f"{before} of its module; task {first} of the same stage "
                f"that of {usual}")
    for t, task in plan.tasks.items():
        if task.rank not in own or task.kind != "B":
            continue
        given = {_place(plan.tasks[plan.edges[e].source])
                 for e in incoming.get(t, ())
                 if plan.tasks[plan.edges[e].source].kind == "B"}
        for taker in takers.get(forward_of[_place(task)], ()):
            if _place(plan.tasks[taker]) not in given:
                raise InvalidPlan(
                    f"{_describe(plan, t)}: no edge makes it depend on the "
                    f"backward of task {taker}, to which its forward hands its "
                    "output")
    return incoming


def _check_trained(plan: Plan, incoming: Dict[int, List[int]]) -> None:
    """Checks in which microbatches modules have backwards. Needs all ranks."""
    have = {_place(task) for task in plan.tasks.values() if task.kind == "B"}
    fed: Set[Tuple[int, int]] = set()  # Module and microbatch.
    for t, edges in incoming.items():
        task = plan.tasks[t]
        for e in edges if task.kind == "F" else ():
            source = plan.tasks[plan.edges[e].source]
            if source.kind == "F" and source.module != task.module and (
                    _place(source) in have):
                fed.add((task.module, task.microbatch))
    trained: Dict[int, Tuple[bool, int]] = {}
    for t, task in plan.tasks.items():
        if task.kind != "F":
            continue
        has = _place(task) in have
        if (task.module, task.microbatch) in fed:
            if not has:
                raise InvalidPlan(f"{_describe(plan, t)}: it has no backward, "
                                  "but what feeds it has")
            continue
        usual, first = trained.setdefault(task.module, (has, t))
        if has != usual:
            raise InvalidPlan(
                f"{_describe(plan, t)}: it has {'a' if has else 'no'} "
                f"backward; task {first} of its module has "
                f"{'one' if usual else 'none'}")


class _Program:
    """The check of one rank's program."""

    def __init__(self, plan: Plan, rank: int,
                 incoming: Dict[int, List[int]]) -> None:
        self.plan = plan
        self.rank = rank
        self.incoming = incoming
        self.computed: Set[int] = set()
        self.done: Set[Tuple[str, int, int, int]] = set()
        self.sent: Set[int] = set()
        self.waited: Set[int] = set()  # Sends.
        # Received edges: "posted", "arrived" or "freed".
        self.received: Dict[int, str] = {}
        self.copies: Dict[int, str] = {}  # Last copy, by task.
        self.at = 0

    def fail(self, what: str) -> None:
        op, arg = self.plan.programs[self.rank][self.at]
        raise InvalidPlan(f"rank {self.rank}, instruction {self.at} ({op} "
                          f"{arg}): {what}")

    def check(self) -> None:
        plan = self.plan
        for self.at, (op, arg) in enumerate(plan.programs[self.rank]):
            if op == "compute":
                self.compute(arg)
            elif op in ("send", "wait_send"):
                self.send(op, arg)
            elif op in ("recv", "wait_recv", "free"):
                self.receive(op, arg)
            elif op in ("offload", "fetch"):
                self.copy(op, arg)
        for t, task in plan.tasks.items():
            if task.rank == self.rank and t not in self.computed:
                raise InvalidPlan(f"{_describe(plan, t)} is never computed")
        for e, edge in plan.edges.items():
            a, b = plan.tasks[edge.source], plan.tasks[edge.target]
            if a.rank == b.rank:
                continue
            if a.rank == self.rank and e not in self.sent:
                raise InvalidPlan(f"rank {self.rank}: edge {e} to rank "
                                  f"{b.rank} is never sent")
            if b.rank == self.rank and self.received.get(e) != "freed":
                raise InvalidPlan(
                    f"rank {self.rank}: edge {e} from rank {a.rank} is "
                    f"{self.received.get(e, 'never received')}, and not freed "
                    "at the end")

    def compute(self, t: int) -> None:
        tasks = self.plan.tasks
        if t not in tasks or tasks[t].rank != self.rank:
            self.fail("there is no such task on this rank")
        if t in self.computed:
            self.fail("it is computed twice")
        for e in self.incoming.get(t, ()):
            source = self.plan.edges[e].source
            if tasks[source].rank != self.rank:
                if self.received.get(e) != "arrived":
                    self.fail(f"its input edge {e} has not been waited for or "
                              "is freed already")
            elif source not in self.computed:
                self.fail(f"it depends on {_describe(self.plan, source)}, "
                          "which comes later")
            elif (self.copies.get(source) == "offload" and
                  tasks[t].kind != "F"):
                self.fail(f"what task {source} keeps is offloaded and not "
                          "fetched back")
        self.computed.add(t)
        task = tasks[t]
        place = _place(task)
        before = _BEFORE.get(task.kind)
        if before and (before,) + place not in self.done:
            self.fail(f"{_describe(self.plan, t)} comes before its own "
                      f"{_NAMES[before]}")
        self.done.add((task.kind,) + place)

    def own_edge(self, e: int, sends: bool) -> None:
        edge = self.plan.edges.get(e)
        if edge is None:
            self.fail("there is no such edge")
            return
        a = self.plan.tasks[edge.source].rank
        b = self.plan.tasks[edge.target].rank
        if a == b or (a if sends else b) != self.rank:
            self.fail(f"the edge goes from rank {a} to rank {b}")

    def send(self, op: str, e: int) -> None:
        self.own_edge(e, sends=True)
        if op == "wait_send":
            if e not in self.sent or e in self.waited:
                self.fail("it needs one send before it")
            self.waited.add(e)
            return
        if e in self.sent:
            self.fail("it is sent twice")
        if self.plan.edges[e].source not in self.computed:
            self.fail(f"its producer, task {self.plan.edges[e].source}, comes "
                      "later")
        self.sent.add(e)

    def receive(self, op: str, e: int) -> None:
        self.own_edge(e, sends=False)
        before, after = {"recv": (None, "posted"),
                         "wait_recv": ("posted", "arrived"),
                         "free": ("arrived", "freed")}[op]
        if self.received.get(e) != before:
            self.fail(f"the edge is {self.received.get(e, 'not received')}; "
                      f"it must be {before or 'not received'}")
        if op == "free" and self.plan.edges[e].target not in self.computed:
            self.fail(f"its consumer, task {self.plan.edges[e].target}, comes "
                      "later")
        self.received[e] = after

    def copy(self, op: str, t: int) -> None:
        if t not in self.computed or self.plan.tasks[t].kind != "F":
            self.fail("only a forward that is computed before is copied")
        if self.copies.get(t) != {"offload": None, "fetch": "offload"}[op]:
            self.fail("it needs one offload before it" if op == "fetch" else
                      "it is offloaded twice")
        self.copies[t] = op
