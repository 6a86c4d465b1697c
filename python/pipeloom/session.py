"""A training's communication with the planner, in the background: it never
raises into a training step, waits for an answer, or gives up.

    job = client.open_job(...)             # Before the training; may raise.
    session = Session(client, job, rank=rank)
    session.expect(step, samples)          # A few steps ahead.
    plan = session.ready(step)             # The plan if it is there, or None.

A thread keeps a list of calls: batches to submit, plans to fetch, traces to
report. A call that fails is tried again after growing pauses, until it succeeds
or the step is over. A step whose plan does not fit this trainer twice in a row,
for the same reason, is refused with that reason (`refusal`). No call waits for
those of other steps: the first try of each goes out at once. After a lost
connection, the service that answers next may not know the job: one call opens
it again, with the same id and partition, and then what failed is tried again,
and all batches of coming steps are sent again. The service says so if it has
them already.
"""
import dataclasses
import logging
import random
import threading
import time
from typing import (Any, Callable, Dict, Iterable, List, Optional, Sequence,
                    Tuple)

import grpc

from pipeloom import fit, messages, plan as plans
from pipeloom.client import (Client, Job, MisfitError, PlannerError, Sample,
                             frozen_modules, note, parsed, report_request,
                             retry_after, stages_of, submit_request)
from pipeloom.trouble import Trouble

_log = logging.getLogger("pipeloom")
_MAX_REPORTS = 64  # Most reports that wait to be sent.
_MAX_STEPS = 1024  # Most steps that are kept, up to the newest.
_CLOSE_SECONDS = 2.0
# Errors of one step that a retry cannot change.
_FINAL = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS,
          grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.OUT_OF_RANGE)
# Errors of the connection: another service may answer next that does not know
# the job.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@dataclasses.dataclass(eq=False)
class _Call:
    kind: str  # open, submit, fetch, report, close.
    step: int
    request: Any
    due: float = 0.0
    pause: float = 0.0
    begun: float = 0.0  # Time of the latest try; 0: none yet.
    future: Any = None
    done: bool = False
    wanted: bool = True  # False: a submission that other ranks make, too.
    not_found: bool = False  # Whether the service did not know job or step.
    # Why the latest answer did not fit; empty if it was another failure.
    misfit: str = ""


class Session:
    """Fetches the plans of one rank (or, without `rank`, of one replica) in the
    background.

    Methods return at once and raise nothing, unless `strict`: then `expect`
    raises the PlannerError with which the service refused a batch, and `ready`
    that of a step for which it has no plan; for tests and for debugging.

    `submits`: whether this process sends the batches that it knows; by default
    rank 0 does, and other ranks only after they have lost a connection, since
    the service may have lost the batches, too. `attempt`: that of the job, and
    one more whenever the training goes back. `cuts_samples`: whether the
    trainer cuts samples that are longer than a microbatch as Microbatch.pieces
    says; if not, the session refuses steps with such a sample. `counts`:
    numbers of successes and failures by kind. Threads: any.
    """

    def __init__(self, client: Client, job: Job, *, rank: Optional[int] = None,
                 replica: int = 0, submits: Optional[bool] = None,
                 strict: bool = False, cuts_samples: bool = False,
                 plan_timeout: float = 60.0,
                 call_timeout: float = 5.0,
                 pauses: Tuple[float, float] = (0.05, 1.0)) -> None:
        self.client = client
        self.job = job
        self.rank = rank
        self.replica = replica
        self.strict = strict
        self._cuts_samples = cuts_samples
        self.attempt = job.attempt
        self._frozen = frozen_modules(job)
        self._submits = (rank in (None, 0)) if submits is None else submits
        self._plan_timeout = plan_timeout
        self._call_timeout = call_timeout
        self._pauses = pauses
        self._cond = threading.Condition()
        self._calls: List[_Call] = []
        self._batches: Dict[int, fit.BatchSize] = {}  # By step.
        self._plans: Dict[int, plans.Plan] = {}
        self._refused: Dict[int, PlannerError] = {}
        self._first = -1  # Steps before it are over.
        self._resume_at = 0.0
        self._pause = 0.0
        self._open: Optional[_Call] = None
        self._opened_at = 0.0
        self._watchers: List[Callable[[], None]] = []
        self._failing_since: Optional[float] = None
        self.answered_at = 0.0  # time.monotonic() of the last good answer.
        self._closing = False
        self.trouble = Trouble(
            logging.WARNING if self._submits else logging.INFO)
        self.counts = {"submitted": 0, "fetched": 0, "reported": 0,
                       "reopened": 0, "reconnected": 0, "failures": 0,
                       "refused": 0, "misfits": 0, "dropped_reports": 0}
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="pipeloom-session")
        self._thread.start()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -- Calls of the trainer --------------------------------------------------

    def expect(self, step: int, samples: Optional[Iterable[Sample]] = None,
               microbatch_of: Iterable[int] = (), *,
               whole: bool = False) -> None:
        """Submits the step's batch, if `samples` are given, and fetches its
        plan, both in the background. `whole`: the samples are those of all
        replicas, whose loss weights add up to 1; without it, those of each
        replica do. A batch that is no batch is refused (`refusal`) and logged."""
        invalid = ""
        with self._cond:
            refused = self._refused.get(step)
            if self._closing or step < self._first:
                return
            if step - self._first >= _MAX_STEPS:  # Nobody called forget().
                self._forget(step - _MAX_STEPS + 1)
            known = {c.kind for c in self._calls if c.step == step}
            if samples is not None and "submit" not in known:
                try:
                    batch = list(samples)
                    request = submit_request(
                        self.job.job_id, step, batch,
                        replica=None if whole else self.replica,
                        microbatch_of=list(microbatch_of),
                        attempt=self.attempt)
                    size = fit.BatchSize(len(batch),
                                         sum(s.text_tokens for s in batch))
                except Exception as error:  # pylint: disable=broad-except
                    invalid = f"batch: {error}"
                    refused = PlannerError(grpc.StatusCode.INVALID_ARGUMENT,
                                           invalid)
                    self._refused[step] = refused
                    self.counts["refused"] += 1
                else:
                    if not whole:
                        self._batches[step] = size
                    self._calls.append(_Call("submit", step, request,
                                             wanted=self._submits))
            if ("fetch" not in known and step not in self._plans and
                    step not in self._refused):
                self._calls.append(_Call("fetch", step,
                                         self._fetch_request(step)))
            self._cond.notify_all()
        if invalid:
            self.trouble.begin("service", f"step {step} cannot be submitted: "
                               f"{invalid}")
        if self.strict and refused is not None:
            raise refused

    def ready(self, step: int) -> Optional[plans.Plan]:
        """Returns the step's plan if it has come, else None."""
        with self._cond:
            plan, refused = self._plans.get(step), self._refused.get(step)
        if plan is None and refused is not None and self.strict:
            raise refused
        return plan

    def wait(self, step: int, timeout: float) -> Optional[plans.Plan]:
        """Waits for the step's plan and returns it, or None after `timeout`
        seconds. Other ranks may get another result, unless they agree by a
        PlanProvider."""
        end = time.monotonic() + timeout
        with self._cond:
            while (step not in self._plans and step not in self._refused and
                   time.monotonic() < end and not self._closing):
                self._cond.wait(max(0.0, end - time.monotonic()))
        return self.ready(step)

    def refusal(self, step: int) -> str:
        """Returns why no plan of the step will come; empty if one may."""
        with self._cond:
            error = self._refused.get(step)
        return "" if error is None else str(error)

    def forget(self, before_step: int) -> None:
        """Drops steps that are over, with their calls."""
        with self._cond:
            self._forget(before_step)

    def go_back(self, step: int) -> None:
        """Says that the training goes back to a step: begins a new attempt,
        for which all batches are submitted and all plans fetched anew."""
        with self._cond:
            self._first = step
            self.attempt += 1
            self._drop(lambda _: True)

    def _forget(self, before_step: int) -> None:
        self._first = before_step
        self._drop(lambda step: step < before_step)

    def _drop(self, over: Callable[[int], bool]) -> None:
        for call in self._calls:
            if call.kind in ("submit", "fetch") and over(call.step):
                call.done = True
                if call.future is not None:
                    call.future.cancel()
        # Batches are dropped, too, so that a step that comes again is sent
        # again.
        self._calls = [c for c in self._calls
                       if c.kind not in ("submit", "fetch") or
                       not over(c.step)]
        self._sweep()
        for kept in (self._plans, self._batches, self._refused):
            for step in [s for s in kept if over(s)]:
                del kept[step]  # type: ignore[attr-defined]

    def report(self, step: int, checksum: Tuple[int, int],
               spans: Iterable[Tuple[int, int, int]]) -> None:
        """Sends the times of this rank's tasks: (task, start_ns, end_ns), as in
        StepResult.spans. A report is sent again after a lost connection, as the
        service ignores repetitions. It is dropped if the service refuses it, or
        if 64 newer ones wait, as an old trace is worth little."""
        rank = self.rank or 0
        with self._cond:
            plan = self._plans.get(step)
            try:
                request = report_request(
                    self.job.job_id, step, self.replica, checksum,
                    ((rank, *span) for span in spans), self.job.num_ranks,
                    self.attempt if plan is None else plan.attempt)
            except Exception:  # pylint: disable=broad-except
                request = None
            if self._closing or request is None:
                self.counts["dropped_reports"] += 1
                return
            if not request.trace.spans:
                return  # A rank without tasks has nothing to report.
            self._calls.append(_Call("report", step, request))
            waiting = [c for c in self._calls if c.kind == "report"]
            if len(waiting) > _MAX_REPORTS:
                self._drop_report(waiting[0])
            self._cond.notify_all()

    def _drop_report(self, call: _Call) -> None:
        self.counts["dropped_reports"] += 1
        call.done = True
        if call.future is not None:
            call.future.cancel()
        self._sweep()

    def close(self, close_job: bool = False) -> None:
        """Ends the thread and its calls. With `close_job`, closes the job at
        the service. Takes at most two seconds."""
        with self._cond:
            if self._closing:
                return
            self._closing = True
            for call in self._calls:
                if call.future is not None:
                    call.future.cancel()
            self._cond.notify_all()
        if close_job:
            try:
                self.client.begin(
                    "CloseJob", messages.CloseJobRequest(
                        job_id=self.job.job_id,
                        close_key=self._open_request().close_key),
                    _CLOSE_SECONDS).result(_CLOSE_SECONDS)
            except Exception as error:  # pylint: disable=broad-except
                self.counts["failures"] += 1
                _log.info("pipeloom: the job is left open: %s", error)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    # -- State for other objects -----------------------------------------------

    def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed`, from any thread, when a plan or refusal has come."""
        with self._cond:
            self._watchers.append(changed)

    @property
    def failing_since(self) -> Optional[float]:
        """Returns when calls began to fail (time.monotonic), or None if they do
        not."""
        return self._failing_since

    # -- The thread ------------------------------------------------------------

    def _fetch_request(self, step: int) -> Any:
        if self.rank is None:
            return messages.GetPlanRequest(job_id=self.job.job_id, step=step,
                                           replica=self.replica,
                                           attempt=self.attempt)
        return messages.GetRankPlanRequest(
            job_id=self.job.job_id, step=step, replica=self.replica,
            rank=self.rank, attempt=self.attempt)

    def _open_request(self) -> Any:
        return messages.OpenJobRequest.FromString(self.job.request)

    def _sweep(self) -> None:
        self._calls = [c for c in self._calls
                       if not c.done or (c.kind == "submit" and
                                         c.step >= self._first)]

    def _run(self) -> None:
        while not self._closing:
            try:
                self._serve()
            except Exception as error:  # pylint: disable=broad-except
                self.counts["failures"] += 1
                self.trouble.begin("service", f"the session: {error!r}")
                time.sleep(self._pauses[1])

    def _serve(self) -> None:
        while True:
            arrived: List[_Call] = []
            begin: List[_Call] = []
            with self._cond:
                if self._closing:
                    return
                now = time.monotonic()
                soonest = now + 60.0
                for call in self._calls:
                    if call.done or not call.wanted:
                        continue
                    if call.future is not None:
                        if call.future.done():
                            arrived.append(call)
                        continue
                    again = call.begun > 0 or call is self._open
                    if again and self._open not in (None, call):
                        continue
                    due = max(call.due, self._resume_at) if again else now
                    if due <= now:
                        begin.append(call)
                    else:
                        soonest = min(soonest, due)
                if not arrived and not begin:
                    self._cond.wait(soonest - now)
                    continue
            for call in arrived:
                try:
                    self._settle(call)
                except Exception as error:  # pylint: disable=broad-except
                    self._failed(call, None, f"{type(error).__name__}: {error}")
            for call in begin:
                self._begin(call)

    def _begin(self, call: _Call) -> None:
        method = {"open": "OpenJob", "submit": "SubmitBatch",
                  "report": "ReportTrace",
                  "fetch": ("GetPlan" if self.rank is None
                            else "GetRankPlan")}[call.kind]
        try:
            future = self.client.begin(
                method, call.request,
                {"fetch": self._plan_timeout,
                 "open": 4 * self._call_timeout}.get(call.kind,
                                                     self._call_timeout))
        except Exception as error:  # pylint: disable=broad-except
            call.begun = time.monotonic()
            self._failed(call, grpc.StatusCode.UNAVAILABLE,
                         error.message if isinstance(error, PlannerError)
                         else str(error))
            return
        with self._cond:
            call.begun = time.monotonic()
            if call.done or self._closing:
                future.cancel()
                return
            call.future = future
        future.add_done_callback(lambda _: self._wake())

    def _planner(self) -> str:
        address = self.client.address
        return f"the planner at {address}" if address else "the planner"

    def _wake(self) -> None:
        with self._cond:
            self._cond.notify_all()

    def _settle(self, call: _Call) -> None:
        with self._cond:
            future, call.future = call.future, None
            if call.done or self._closing:
                return
        try:
            data = future.result()
        except grpc.FutureCancelledError:
            self._failed(call, grpc.StatusCode.CANCELLED, "the call was ended")
            return
        except grpc.RpcError as error:
            self._failed(call, error.code(), error.details() or "",
                         retry_after(error))
            return
        if call.kind == "submit":
            why = note(future)
            if why:
                self.trouble.note("media", why)
        try:
            self._arrived(call, data)
        except PlannerError as error:
            self._failed(call, error.code, error.message, error=error)
            return

    def _arrived(self, call: _Call, data: bytes) -> None:
        if call.kind == "fetch":
            self._plan_arrived(call, data)
        elif call.kind == "open":
            r = parsed(messages.OpenJobResponse, data)
            stages = stages_of(r.partition, r.module_names)
            if (r.job_id, stages) != (self.job.job_id, self.job.stages):
                raise PlannerError(grpc.StatusCode.DATA_LOSS,
                                   "the service opened the job with another "
                                   "partition or id")
            with self._cond:
                self.counts["reconnected" if r.existed else "reopened"] += 1
                call.done = True
                self._open = None
                self._opened_at = time.monotonic()
                self._send_again()
        else:
            parsed(messages.SubmitBatchResponse if call.kind == "submit"
                   else messages.ReportTraceResponse, data)
            with self._cond:
                call.done = True
                self.counts["submitted" if call.kind == "submit"
                            else "reported"] += 1
        with self._cond:
            self._pause = self._resume_at = 0.0
            self.answered_at = time.monotonic()
            self._sweep()

    def _plan_arrived(self, call: _Call, data: bytes) -> None:
        with self._cond:
            batch = self._batches.get(call.step)
        if self.rank is None:
            answer = parsed(messages.GetPlanResponse, data)
            wrong = fit.other_plan(answer, call.request, batch)
            # Whole plans have the name of their job instead.
            plan = dataclasses.replace(
                plans.from_response(answer), job=self.job.job_id,
                attempt=call.request.attempt)
        else:
            answer = parsed(messages.RankPlan, data)
            wrong = fit.other_share(answer, call.request, batch)
            plan = plans.from_rank_plan(answer)
        wrong = wrong or fit.misfit(
            plan, job_id=self.job.job_id, step=call.step,
            replica=self.replica, rank=self.rank, stages=self.job.stages,
            module_names=self.job.module_names, frozen=self._frozen)
        if wrong is not None:
            self.counts["misfits"] += 1
            raise MisfitError(call.step, wrong)
        cut = None if self._cuts_samples else fit.cut_sample(plan)
        if cut is not None:  # The service would plan it so again.
            raise PlannerError(grpc.StatusCode.FAILED_PRECONDITION, cut)
        with self._cond:
            call.done = True
            if call.step >= self._first:
                self._plans[call.step] = plan
            self.counts["fetched"] += 1
            self._failing_since = None
            watchers = list(self._watchers)
            self._cond.notify_all()
        self.trouble.end("service", f"{self._planner()} answers again")
        for watcher in watchers:
            watcher()

    # -- Failures --------------------------------------------------------------

    def _failed(self, call: _Call, code: Any, details: str,
                hint: Optional[float] = None,
                error: Optional[PlannerError] = None) -> None:
        name = code.name if code is not None else "UNKNOWN"
        why = f"{call.kind} of step {call.step}: {name}: {details}"
        if call.kind == "open":
            why = f"open of job {self.job.job_id}: {name}: {details}"
        self.counts["failures"] += 1
        now = time.monotonic()
        late = code == grpc.StatusCode.DEADLINE_EXCEEDED
        # A fetch may wait for long on a good connection.
        lost = code in _LOST or (late and call.kind != "fetch")
        if lost or late:
            # The service may have moved. A call that fails quickly needs a new
            # connection.
            self.client.reconnect(-1.0 if call.kind == "fetch" or
                                  code == grpc.StatusCode.CANCELLED
                                  else call.begun)
        watchers: List[Callable[[], None]] = []
        with self._cond:
            call.future = None
            misfit = details if isinstance(error, MisfitError) else ""
            # The service would give the same answer without end.
            refused = self._refuses(call, code, hint) or (
                misfit != "" and misfit == call.misfit)
            call.misfit = misfit
            if (self._failing_since is None and call.kind != "report" and
                    not refused and code != grpc.StatusCode.NOT_FOUND):
                self._failing_since = now
            if call.kind == "report" and not lost:
                self._drop_report(call)  # The plan is gone, or the trace wrong.
            elif refused:
                self.counts["refused"] += 1
                self._refuse(call.step, error or PlannerError(code, details))
                watchers = list(self._watchers)
            else:
                low, high = self._pauses
                call.pause = min(high, max(low, 2 * call.pause))
                call.due = now + (hint if hint is not None else
                                  call.pause * random.uniform(0.5, 1.5))
                if lost:
                    self._lost(call, now)
                elif code == grpc.StatusCode.NOT_FOUND and call.kind != "open":
                    call.not_found, call.due = True, now
                    self._reopen()
                elif call.kind == "fetch":
                    self._send_again(call.step)
            self._sweep()
            self._cond.notify_all()
        self.trouble.begin("service", f"{self._planner()}: {why}")
        for watcher in watchers:
            watcher()

    def _refuses(self, call: _Call, code: Any,
                 hint: Optional[float]) -> bool:
        """Returns whether the service will not plan the call's step. `hint`:
        after how long it asks to try again, if it does."""
        if call.kind not in ("submit", "fetch"):
            return False
        if code == grpc.StatusCode.NOT_FOUND:
            # Although the job was opened again: it is the step that is gone.
            return not self.job.request or (
                call.not_found and call.begun >= self._opened_at)
        if (call.kind == "submit" and hint is None and
                code == grpc.StatusCode.RESOURCE_EXHAUSTED):
            return True  # The batch is over a limit, and waiting does not help.
        return code in _FINAL

    def _lost(self, call: _Call, now: float) -> None:
        low, high = self._pauses
        # All calls under way fail together, which is one failure.
        if call.begun >= self._resume_at or self._pause == 0.0:
            self._pause = min(high, max(low, 2 * self._pause))
            self._resume_at = now + self._pause * random.uniform(0.5, 1.5)
        self._send_again()
        self._reopen()

    def _refuse(self, step: int, error: PlannerError) -> None:
        self._refused[step] = error
        for call in self._calls:
            if call.step == step and call.kind in ("submit", "fetch"):
                call.done = True
                if call.future is not None:
                    call.future.cancel()

    def _reopen(self) -> None:
        if self._open is None and self.job.request:
            self._open = _Call("open", 0, self._open_request())
            self._calls.append(self._open)

    def _send_again(self, step: Optional[int] = None) -> None:
        """Sends the batch of a step, or of all coming steps, again, as the
        service that answers next may have none. Also batches of steps whose
        plans are here, as other ranks may lack them."""
        for call in self._calls:
            if (call.kind == "submit" and step in (None, call.step) and
                    call.step not in self._refused):
                call.done, call.wanted = False, True
