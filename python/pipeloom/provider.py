"""Which plan a step runs: the service's if it is there in time, else one that
is there already."""
import collections
import concurrent.futures
import logging
import time
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from pipeloom.client import Client, PlannerError
from pipeloom.plan import Microbatch, Plan

_log = logging.getLogger("pipeloom")

# All ranks call it with the checksum of what they got, or None; it answers
# whether all got the same plan.
Agree = Callable[[Optional[Tuple[int, int]]], bool]


class PlanProvider:
    """Never late: `get` returns within `wait` seconds.

    The order of choice: the plan of this step; the last good plan of the same
    shape, with this step's microbatches in it; `static`, which cannot fail.
    The ranks of a pipeline must run the same plan, so with `agree` (a
    collective, see pipeloom.torch.agreement) all fall back when one has to,
    and what counts as the last good plan is the same everywhere.

    With `rank`, that rank's share is fetched instead of the whole plan: all
    that pipeloom.torch.Executor needs.

    `counts` has how many steps ran "planned", "last_good" and "static". One
    line is logged when a run of fallbacks begins, and one when it ends.
    """

    def __init__(self, client: Optional[Client], job_id: str,
                 static: Callable[[int, Sequence[Microbatch]], Plan], *,
                 replica: int = 0, wait: float = 1.0,
                 agree: Optional[Agree] = None, keep: int = 64,
                 rank: Optional[int] = None) -> None:
        self._client = client
        self._job_id = job_id
        self._static = static
        self._replica = replica
        self._wait = wait
        self._agree = agree
        self._keep = keep
        self._rank = rank
        self._good: "collections.OrderedDict[Any, Plan]" = (
            collections.OrderedDict())
        self._falling_back = False
        self.counts: Dict[str, int] = {"planned": 0, "last_good": 0,
                                       "static": 0}

    def get(self, step: int, microbatches: Sequence[Microbatch],
            shape: Any = None) -> Plan:
        """`microbatches` are the trainer's own; a plan of the service keeps
        its own list if it has one. `shape`: equal where a plan can stand in
        for another; by default that of the static plan."""
        plan, why = self._fetch(step)
        agreed = plan is not None
        if self._agree is not None:
            agreed = self._agree(plan.checksum if plan is not None else None)
            if plan is not None and not agreed:
                why = "another rank has no plan, or another one"
        if plan is not None and agreed:
            if not plan.microbatches:
                plan = plan.with_microbatches(step, microbatches)
            key = self._shape_of(plan) if shape is None else shape
            self._good[key] = plan
            self._good.move_to_end(key)
            while len(self._good) > self._keep:
                self._good.popitem(last=False)
            self.counts["planned"] += 1
            if self._falling_back:
                _log.warning("pipeloom: step %d is planned again", step)
                self._falling_back = False
            return plan
        if not self._falling_back:
            _log.warning("pipeloom: step %d falls back: %s", step, why)
            self._falling_back = True
        static = self._static(step, microbatches)
        last = self._good.get(self._shape_of(static) if shape is None
                              else shape)
        if last is not None and last.num_microbatches == len(microbatches):
            self.counts["last_good"] += 1
            return last.with_microbatches(step, microbatches)
        self.counts["static"] += 1
        return static

    def _shape_of(self, plan: Plan) -> Any:
        return (plan.shape if self._rank is None
                else plan.shape_on([self._rank]))

    def _fetch(self, step: int) -> Tuple[Optional[Plan], str]:
        if self._client is None:
            return None, "there is no service"
        end = time.monotonic() + self._wait
        try:
            future = self._client.prefetch(self._job_id, step, self._replica,
                                           rank=self._rank)
            plan = future.result(timeout=max(0.0, end - time.monotonic()))
            if plan.step != step:
                return None, f"the service answered with step {plan.step}"
            return plan, ""
        except concurrent.futures.TimeoutError:
            return None, f"no plan within {self._wait:g} s"
        except concurrent.futures.CancelledError:
            return None, "the request was cancelled"
        except PlannerError as error:
            return None, str(error)
        except Exception as error:  # pylint: disable=broad-except
            # Garbage from the other end must not stop a training.
            return None, f"{type(error).__name__}: {error}"
