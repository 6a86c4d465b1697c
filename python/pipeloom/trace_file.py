"""The measured steps of a training as files that `pipeloom trace` reads, and
that Perfetto opens."""
import json
import time
from typing import Any, Dict, List

from pipeloom.plan import Plan

_PASSES = {"F": "forward", "B": "backward", "W": "weight_grad"}


class TraceFile:
    """The trace of one rank, a file of its own:

        with pipeloom.TraceFile(f"traces/rank{rank}.json", rank) as trace:
            for step, batch in ...:
                plan = provider.get(step)
                trace.add(plan, executor.run(plan, batch))

    `pipeloom trace traces` then replays the last step of all ranks, whose
    clocks it brings together. The file is written when the trace is closed."""

    def __init__(self, path: str, rank: int) -> None:
        self._path = path
        self._rank = rank
        self._origin = time.perf_counter_ns()
        self._events: List[Dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": rank, "tid": 0,
             "args": {"name": f"rank {rank}"}}]

    def add(self, plan: Plan, result: Any) -> None:
        """Adds a step that has just ended, with its StepResult. ValueError: the
        spans are not those of the rank's tasks in the plan."""
        own = {t for t, task in plan.tasks.items() if task.rank == self._rank}
        if {t for t, _, _ in result.spans} != own:
            raise ValueError(
                f"step {plan.step}: the result has {len(result.spans)} tasks "
                f"and the plan {len(own)} of rank {self._rank}, or others")
        begin = (time.perf_counter_ns() - self._origin -
                 round(result.seconds * 1e9))
        inputs: Dict[int, List[int]] = {}
        for edge in plan.edges.values():
            inputs.setdefault(edge.target, []).append(edge.source)
        for t, start, end in result.spans:
            task = plan.tasks[t]
            module = plan.module_names[task.module]
            args: Dict[str, Any] = {"pass": _PASSES[task.kind], "module": module,
                    "stage": task.stage, "microbatch": task.microbatch,
                    "sub_microbatch": task.sub, "task": t,
                    "inputs": ",".join(map(str, inputs.get(t, ()))),
                    "rank": self._rank, "step": plan.step}
            if plan.replica:
                args["replica"] = plan.replica
            if task.recomputes:
                args["recomputes"] = True
            self._events.append({
                "name": f"{task.kind}{task.microbatch} {module}", "ph": "X",
                "pid": self._rank, "tid": 0, "cat": "task",
                "ts": (begin + start) / 1e3, "dur": (end - start) / 1e3,
                "args": args})

    def close(self) -> None:
        """Writes the file. OSError."""
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": self._events,
                       "distributedInfo": {"rank": self._rank},
                       "displayTimeUnit": "ms"}, file)

    def __enter__(self) -> "TraceFile":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
