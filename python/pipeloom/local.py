"""Plans without a service, made from the trainer's own costs and ordered by the
`pipeloom search` command."""
import json
import os
import subprocess
import tempfile
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from pipeloom.plan import Microbatch
from pipeloom.static_schedule import (Cost, Graph, Stage, build_graph,
                                      plan_of)

__all__ = ["graph_of", "plan_of", "search_orders"]

_KINDS = {"F": "FORWARD", "B": "BACKWARD", "W": "WEIGHT_GRAD"}


def graph_of(stages: Sequence[Stage], feeds: Sequence[Tuple[int, int]],
             microbatches: Sequence[Microbatch], cost: Cost,
             split_backward: bool = False) -> Graph:
    """Returns the step's tasks, with the sub-microbatches that the
    microbatches' `subs` have."""
    subs: List[Dict[int, int]] = []
    for m in microbatches:
        counts: Dict[int, int] = {}
        for sub in m.subs:
            counts[sub.module] = max(counts.get(sub.module, 0), sub.index + 1)
        subs.append(counts)
    return build_graph(stages, feeds, subs, cost, split_backward)


def task_graph(graph: Graph, num_ranks: int,
               delay_us: float = 0.0,
               memory_limit_bytes: int = 0,
               activation_bytes: Optional[Mapping[int, int]] = None) -> str:
    """Returns the graph as the text of a TaskGraph file (docs/plan_format.md).
    A forward holds `activation_bytes`, indexed by forward task, until its
    stage's last pass on the same sub-microbatch."""
    sizes = activation_bytes or {}
    last: Dict[Tuple[int, int, int], int] = {}
    first: Dict[Tuple[int, int, int], int] = {}
    for i, t in enumerate(graph.tasks):
        place = (t.stage, t.microbatch, t.sub)
        first.setdefault(place, i)
        last[place] = i
    tasks = []
    for i, t in enumerate(graph.tasks):
        place = (t.stage, t.microbatch, t.sub)
        size = sizes.get(first[place], 0)
        tasks.append({
            "id": i, "rank": t.rank, "kind": _KINDS[t.kind],
            "stage": t.stage, "microbatch": t.microbatch,
            "sub_microbatch": t.sub, "duration_us": t.duration_ns / 1e3,
            "alloc_bytes": size if first[place] == i else 0,
            "free_bytes": size if last[place] == i else 0})
    edges = []
    for e in graph.edges:
        far = graph.tasks[e.source].rank != graph.tasks[e.target].rank
        edges.append({"from": e.source, "to": e.target,
                      "delay_us": delay_us if far else 0})
    return json.dumps({
        "name": "step",
        "ranks": [{"memory_limit_bytes": memory_limit_bytes}
                  for _ in range(num_ranks)],
        "tasks": tasks, "edges": edges})


def search_orders(binary: str, graph: Graph, num_ranks: int, *,
                  evaluations: int = 2000, delay_us: float = 0.0,
                  seed: int = 1, memory_limit_bytes: int = 0,
                  activation_bytes: Optional[Mapping[int, int]] = None
                  ) -> List[List[int]]:
    """Returns each rank's tasks in order. A rank holds `activation_bytes` of
    its forwards, as task_graph says, within the limit (0: none). RuntimeError:
    the command has failed, or nothing fits; has its error text."""
    with tempfile.TemporaryDirectory() as folder:
        problem = os.path.join(folder, "graph.json")
        with open(problem, "w", encoding="utf-8") as file:
            file.write(task_graph(graph, num_ranks, delay_us,
                                  memory_limit_bytes, activation_bytes))
        done = subprocess.run(
            [binary, "search", "--graph", problem, "--evaluations",
             str(evaluations), "--seed", str(seed), "--threads", "1",
             "--format", "json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{binary} search: {done.stderr.strip()}")
    orders: List[List[int]] = json.loads(done.stdout)["order"]
    return orders
