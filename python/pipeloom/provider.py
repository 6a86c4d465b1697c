"""Which plan a step runs: the service's if all ranks have it in time, else one
that all ranks have already."""
import dataclasses
import threading
import time
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional,
                    Sequence, Tuple)

from pipeloom.agreement import (END_EPOCH, Decision, LastGood, Outcome, Vote,
                                decide, decode, encode, vote_of)
from pipeloom.fit import other_samples
from pipeloom.plan import Microbatch, Plan
from pipeloom.session import Session

Static = Callable[[int, Sequence[Microbatch]], Optional[Plan]]
# An all-gather over all ranks of the training: words of this rank in, those of
# all ranks out. `rank` and `size` are of the group.
Gather = Callable[[Sequence[int]], Sequence[Sequence[int]]]

_END_SECONDS = 5.0
_RESERVE = 0.05  # Of `wait`, for the agreement itself.
_PROBE = 10  # A silent planner costs one `wait` in the time of so many.


class AgreementError(RuntimeError):
    """The ranks of the training cannot agree, which is no fault of the planner:
    a process of the training is gone, or the ranks describe different
    microbatches for one step."""


@dataclasses.dataclass
class _Step:
    """A step that is not decided yet, or was a moment ago."""
    epoch: int
    step: int
    microbatches: Tuple[Microbatch, ...]
    fixed: bool = False  # The trainer made them itself.
    asked: Optional[float] = None  # When the trainer began to wait.
    plan: Optional[Plan] = None  # This rank's, as voted.
    last_good: Optional[Plan] = None
    decision: Optional[Decision] = None
    chosen: Optional[Plan] = None
    taken: bool = False


class PlanProvider:
    """The plan of each step, the same on all ranks, and never late.

    `get` returns within `wait` seconds (and what the slowest rank needs to come
    there). The order of choice: the plan of this step; the last good plan for
    such microbatches, with this step's samples in it; `static(step,
    microbatches)`, which every rank makes alike, and which may be None where
    the trainer has a schedule of its own (then `get` returns None). All ranks
    choose alike: `agree` is an all-gather over all processes of the training,
    replicas and all (pipeloom.torch.agreement), used once a step by a thread of
    its own, as a rule while the step before runs. Without it there is one
    process.

    A planner that stays silent costs `wait` once in ten times as long, not in
    every step.

    `accept(plan, microbatches)` may refuse a plan that the trainer cannot run:
    why, or None.

    `counts` has how many steps ran "planned", "last_good" and "static". One
    line is logged when something goes wrong, and one when all is well again.
    """

    def __init__(self, session: Optional[Session], static: Static, *,
                 wait: float = 1.0, agree: Optional[Gather] = None,
                 replica: int = 0, keep: int = 64,
                 accept: Optional[Callable[[Plan, Sequence[Microbatch]],
                                           Optional[str]]] = None) -> None:
        self._session = session
        self._static = static
        self._wait = wait
        self._gather = agree or (lambda words: [words])
        self._me = getattr(agree, "rank", 0)
        self._replica = session.replica if session is not None else replica
        self._accept = accept
        self._good = LastGood(keep)
        self._cond = threading.Condition()
        self._epoch = 0
        self._at = -1  # The newest step that was asked for.
        self._open: List[_Step] = []  # In order; not decided.
        self._decided: List[_Step] = []
        self._silent_since: Optional[float] = None
        self._probed = 0.0
        self._error: Optional[BaseException] = None
        self._closing = False
        self.counts: Dict[str, int] = {"planned": 0, "last_good": 0,
                                       "static": 0}
        self.votes = 0  # Collectives so far.
        if session is not None:
            session.watch(self._wake)
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="pipeloom-agreement")
        self._thread.start()

    def __enter__(self) -> "PlanProvider":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -- What a trainer says ---------------------------------------------------

    def expect(self, step: int, microbatches: Sequence[Microbatch],
               samples: Optional[Sequence[Any]] = None,
               microbatch_of: Sequence[int] = (), *,
               whole: bool = False) -> None:
        """Announces a coming step, as the data loader knows it: has it planned
        (Session.expect) and agreed upon while other steps run. With
        `microbatch_of` the microbatches are the trainer's: a plan must have the
        same samples in them, and runs with the trainer's weights. Steps are
        announced in ascending order, the same on all ranks; one that was asked
        for before says that the training went back to it."""
        with self._cond:
            if self._closing or any(s.step == step and s.step > self._at
                                    for s in self._open + self._decided):
                return
            if step <= self._at:
                self._go_back(step)
            self._open.append(_Step(self._epoch, step, tuple(microbatches),
                                    len(microbatch_of) > 0))
            self._cond.notify_all()
        if self._session is not None:
            self._session.expect(step, samples, microbatch_of, whole=whole)

    def get(self, step: int,
            microbatches: Optional[Sequence[Microbatch]] = None
            ) -> Optional[Plan]:
        """Returns what this step runs, on every rank the same. The same step
        again gets the same plan; an earlier step begins anew from there.
        `microbatches` are the trainer's own, if they were not announced.
        AgreementError: see there."""
        begin = time.monotonic()
        with self._cond:
            entry = self._entry(step, microbatches)
            if entry.asked is None:
                entry.asked = begin
            self._cond.notify_all()
            while entry.decision is None and self._error is None:
                self._cond.wait()
            if entry.decision is None:
                raise AgreementError(
                    f"step {step}: the ranks cannot agree any more: "
                    f"{self._error}") from self._error
            if entry.decision.outcome is Outcome.UNLIKE:
                raise AgreementError(f"step {step}: {entry.decision.why}")
            if entry.taken:
                return entry.chosen
            entry.taken = True
            self._decided = [s for s in self._decided if s.step >= step]
        if self._session is not None:
            self._session.forget(step)
        entry.chosen = self._choose(entry, entry.decision)
        return entry.chosen

    def report(self, step: int, spans: Iterable[Tuple[int, int, int]]) -> None:
        """Has the step's measured times (StepResult.spans) sent to the planner,
        if it ran the planner's plan."""
        with self._cond:
            ran = [s.plan for s in self._decided if s.step == step and
                   s.decision is not None and
                   s.decision.outcome is Outcome.PLANNED]
        if self._session is not None and ran and ran[0] is not None:
            self._session.report(step, ran[0].checksum, spans)

    def close(self) -> None:
        """Tells the other ranks that this one has no further steps, and ends
        the thread. Waits some seconds at most."""
        with self._cond:
            if self._closing:
                return
            self._closing = True
            self._open = []
            self._cond.notify_all()
        self._thread.join(_END_SECONDS)

    # -- Steps -----------------------------------------------------------------

    def _entry(self, step: int,
               microbatches: Optional[Sequence[Microbatch]]) -> _Step:
        if step < self._at:
            self._go_back(step)
        self._at = step
        self._open = [s for s in self._open if s.step >= step]
        for s in self._decided + self._open:
            if s.step == step:
                return s
        if microbatches is None:
            raise ValueError(f"step {step} was not announced (expect); its "
                             "microbatches must be given")
        entry = _Step(self._epoch, step, tuple(microbatches))
        self._open.insert(0, entry)
        if self._session is not None:
            self._session.expect(step)
        return entry

    def _go_back(self, step: int) -> None:
        """To a step that is run again; what was agreed on after it is void."""
        self._epoch += 1
        self._at = step - 1
        self._open, self._decided = [], []
        if self._session is not None:
            self._session.forget(step, after_step=step - 1)

    def _choose(self, entry: _Step, decision: Decision) -> Optional[Plan]:
        chosen: Optional[Plan]
        trouble = self._session.trouble if self._session else None
        if trouble is not None:
            if decision.outcome is Outcome.PLANNED:
                trouble.end("fallback", f"step {entry.step} is planned again")
            else:
                trouble.begin("fallback",
                              f"step {entry.step} runs the "
                              f"{decision.outcome.value.replace('_', ' ')} "
                              f"schedule: {decision.why}")
        self.counts[decision.outcome.value] += 1
        if decision.outcome is Outcome.PLANNED:
            chosen = entry.plan
            assert chosen is not None
            if entry.fixed:
                chosen = with_weights(chosen, entry.microbatches)
        elif decision.outcome is Outcome.LAST_GOOD:
            assert entry.last_good is not None
            chosen = entry.last_good.with_microbatches(entry.step,
                                                       entry.microbatches)
        else:
            chosen = self._static(entry.step, entry.microbatches)
        return None if chosen is None else dataclasses.replace(chosen,
                                                               agreed=True)

    # -- The thread ------------------------------------------------------------

    def _wake(self) -> None:
        with self._cond:
            self._cond.notify_all()

    def _run(self) -> None:
        try:
            while self._next():
                pass
            raise RuntimeError("the provider is closed")
        except BaseException as error:  # pylint: disable=broad-except
            with self._cond:
                self._error = error
                self._cond.notify_all()

    def _next(self) -> bool:
        """Waits for a step's vote, casts it, and notes the decision."""
        with self._cond:
            while True:
                entry = self._open[0] if self._open else None
                if self._closing:
                    vote = Vote(END_EPOCH, 0, self._replica)
                    break
                if entry is None:
                    self._cond.wait()
                    continue
                entry.plan, pause = self._look(entry)
                if pause > 0:
                    self._cond.wait(pause)
                    continue
                entry.last_good = self._good.find(entry.microbatches)
                vote = vote_of(entry.epoch, entry.step, self._replica,
                               entry.plan, entry.last_good,
                               entry.microbatches)
                break
        votes = [decode(words) for words in self._gather(encode(vote))]
        decision = decide(votes, self._me)
        with self._cond:
            self.votes += 1
            if vote.epoch == END_EPOCH:
                # Others may be behind: they need a vote to go on.
                return any(v.epoch != END_EPOCH for v in votes)
            assert entry is not None
            if decision.outcome is Outcome.AGAIN:
                return True
            if decision.outcome is Outcome.PLANNED:
                assert entry.plan is not None
                self._good.add(entry.plan)
            entry.decision = decision
            if entry in self._open:
                self._open.remove(entry)
                self._decided.append(entry)
            self._cond.notify_all()
        return True

    def _look(self, entry: _Step) -> Tuple[Optional[Plan], float]:
        """Returns the plan to vote for, or None and for how long it is worth
        waiting for it."""
        if self._session is None:
            return None, 0.0 if entry.asked is not None else 3600.0
        plan = self._session.ready(entry.step)
        if plan is not None:
            self._silent_since = None
            why = (other_samples(plan, entry.microbatches) if entry.fixed
                   else None)
            if why is None and self._accept is not None:
                why = self._accept(plan, entry.microbatches)
            if why is None:
                return plan, 0.0
            self._session.trouble.begin(
                "fallback", f"the trainer cannot run the plan of step "
                f"{entry.step}: {why}")
            return None, 0.0
        if self._session.refusal(entry.step):
            return None, 0.0
        if entry.asked is None:
            return None, 3600.0
        left = self._patience(entry.asked) - time.monotonic()
        if left > 0:
            return None, left
        if self._silent_since is None:
            self._silent_since = self._probed = entry.asked
        return None, 0.0

    def _patience(self, asked: float) -> float:
        """Returns until when to wait for the plan of a step that the trainer
        began to wait for at `asked`."""
        assert self._session is not None
        if (self._silent_since is not None and
                self._session.answered_at > self._silent_since):
            self._silent_since = None
        since = [t for t in (self._silent_since, self._session.failing_since)
                 if t is not None]
        wait = (1.0 - _RESERVE) * self._wait
        if not since:
            return asked + wait
        if asked >= self._probed + _PROBE * self._wait:
            self._probed = asked  # The planner gets another chance.
        return max(asked, min(max(min(since), self._probed), asked) + wait)


def with_weights(plan: Plan, own: Sequence[Microbatch]) -> Plan:
    """Returns the plan with the trainer's own weights of its microbatches."""
    return dataclasses.replace(plan, microbatches=tuple(
        dataclasses.replace(m, loss_weight=o.loss_weight)
        for m, o in zip(plan.microbatches, own)))


class MetadataPrefetcher:
    """Wraps any iterable of batches: reads `ahead` batches further than it
    yields, and announces them to the provider. Yields (step, batch).

    `microbatches(batch)` gives the trainer's own microbatches,
    `metadata(batch)` the batch's samples, or (samples, microbatch_of). `whole`:
    the samples are those of all replicas. One thread iterates; nothing waits for the service.
    """

    def __init__(self, loader: Iterable[Any], provider: PlanProvider,
                 microbatches: Callable[[Any], Sequence[Microbatch]],
                 metadata: Callable[[Any], Any], *, ahead: int = 2,
                 first_step: int = 0, whole: bool = False) -> None:
        self._loader = loader
        self._provider = provider
        self._microbatches = microbatches
        self._metadata = metadata
        self._ahead = max(0, ahead)
        self._step = first_step
        self._whole = whole

    def __iter__(self) -> Iterator[Tuple[int, Any]]:
        waiting: List[Tuple[int, Any]] = []
        for batch in self._loader:
            described = self._metadata(batch)
            samples, microbatch_of = (described if isinstance(described, tuple)
                                      else (described, ()))
            self._provider.expect(self._step, self._microbatches(batch),
                                  samples, microbatch_of, whole=self._whole)
            waiting.append((self._step, batch))
            self._step += 1
            if len(waiting) > self._ahead:
                yield waiting.pop(0)
        while waiting:
            yield waiting.pop(0)
