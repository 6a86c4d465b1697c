"""A plan's tasks and edges by what they are for."""
from typing import Dict, List, Tuple

from pipeloom.plan import Plan


class PlanStructure:
    """A plan's tasks grouped by forward, and the edges between them."""

    def __init__(self, plan: Plan) -> None:
        # Only tasks of ranks whose programs the plan has; a task of another
        # rank that a share names may be without its forward.
        own = set(plan.programs)
        key = {}
        for i, t in plan.tasks.items():
            key[t.kind, t.stage, t.microbatch, t.sub] = i
        self.forward_of: Dict[int, int] = {}
        self.has_backward: Dict[int, bool] = {}
        self.is_split: Dict[int, bool] = {}
        self.backward_of: Dict[int, int] = {}
        for i, t in plan.tasks.items():
            place = (t.stage, t.microbatch, t.sub)
            forward = key.get(("F",) + place)
            if forward is None:
                if t.rank not in own:
                    continue
                raise ValueError(f"task {i} has no forward in the plan")
            self.forward_of[i] = forward
            if t.kind == "F":
                backward = key.get(("B",) + place)
                self.has_backward[i] = backward is not None
                if backward is not None:
                    self.backward_of[i] = backward
                self.is_split[i] = ("W",) + place in key
        # Edges between forwards. Edges of gradients are listed with the forward
        # edge whose tensor they are the gradient of.
        self.inputs: Dict[int, List[int]] = {}
        self.outputs: Dict[int, List[int]] = {}
        self.gradients_in: Dict[int, List[Tuple[int, int]]] = {}
        self.gradients_out: Dict[int, List[Tuple[int, int]]] = {}
        between = {}
        for e, edge in plan.edges.items():
            missing = [t for t in (edge.source, edge.target)
                       if t not in plan.tasks]
            if missing:
                raise ValueError(
                    f"edge {e} ends at task {missing[0]}, which the plan does "
                    "not describe: its service is older than this package")
            a, b = plan.tasks[edge.source], plan.tasks[edge.target]
            if a.kind == "F" and b.kind == "F":
                self.inputs.setdefault(edge.target, []).append(e)
                self.outputs.setdefault(edge.source, []).append(e)
                between[edge.source, edge.target] = e
        for e, edge in plan.edges.items():
            a, b = plan.tasks[edge.source], plan.tasks[edge.target]
            if a.kind != "B" or b.kind != "B":
                continue
            pair = (self.forward_of.get(edge.target, -1),
                    self.forward_of.get(edge.source, -1))
            if pair in between:
                self.gradients_out.setdefault(edge.source, []).append(
                    (e, between[pair]))
                self.gradients_in.setdefault(edge.target, []).append(
                    (e, between[pair]))
        # Forwards whose outputs stages of several modules take.
        self.shared = {t for t, edges in self.outputs.items() if len(
            {plan.tasks[plan.edges[e].target].stage for e in edges}) > 1}
        for edges in list(self.inputs.values()) + list(self.outputs.values()):
            edges.sort(key=lambda e: (
                plan.edges[e].source, plan.edges[e].target))
