"""The forwards of a plan without its backwards."""
import dataclasses
from typing import List, Set, Tuple

from pipeloom.plan import Instruction, Plan

_ON_EDGES = frozenset(("send", "recv", "wait_send", "wait_recv", "free"))


def forwards_of(plan: Plan) -> Plan:
    """Returns the plan with its forwards and the transfers between them alone:
    no backwards, no memory choices, no sum of gradients and no optimizer. The
    order of what stays is the same on both ends of every transfer, so that the
    ranks still match."""
    tasks = {i: t for i, t in plan.tasks.items() if t.kind == "F"}
    edges = {i: e for i, e in plan.edges.items()
             if e.source in tasks and e.target in tasks}
    return dataclasses.replace(
        plan, tasks=tasks, edges=edges, activations={}, periods={}, copies={},
        programs={rank: _without_backwards(program, set(tasks), set(edges))
                  for rank, program in plan.programs.items()})


def _without_backwards(program: Tuple[Instruction, ...], tasks: Set[int],
                       edges: Set[int]) -> Tuple[Instruction, ...]:
    kept: List[Instruction] = []
    for instruction in program:
        op, arg = instruction
        if (op == "compute" and arg in tasks) or (op in _ON_EDGES and
                                                  arg in edges):
            kept.append(instruction)
    return tuple(kept)
