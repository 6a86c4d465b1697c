"""The choice of the plan that a step runs: the service's if all ranks have it
in time, else one that all ranks have already."""
import collections.abc
import dataclasses
import threading
import time
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional,
                    Sequence, Tuple)

from pipeloom import memory
from pipeloom.agreement import (END_EPOCH, Decision, LastGood, Outcome, Vote,
                                decide, decode, encode, vote_of)
from pipeloom.fit import other_samples
from pipeloom.loss import unknown_sizes
from pipeloom.plan import Microbatch, Plan
from pipeloom.session import Session

Static = Callable[[int, Sequence[Microbatch]], Optional[Plan]]
# An all-gather over all ranks of the training: takes the words of this rank and
# returns those of all ranks. It has the group's `rank` and `size`.
Gather = Callable[[Sequence[int]], Sequence[Sequence[int]]]

_END_SECONDS = 5.0
_RESERVE = 0.05  # Share of `wait` for the agreement itself.
_PROBE = 10  # A silent planner costs 1 `wait` in the time of 10.


class AgreementError(RuntimeError):
    """The ranks of the training cannot agree, for reasons other than the
    planner: a process of the training is gone, or the ranks describe different
    microbatches for one step."""


@dataclasses.dataclass
class _Step:
    """A step that is not decided yet, or was decided lately."""
    epoch: int
    step: int
    microbatches: Tuple[Microbatch, ...]
    fixed: bool = False  # Whether the trainer made the microbatches.
    asked: Optional[float] = None  # Time when the trainer began to wait.
    plan: Optional[Plan] = None  # The plan that this rank voted for.
    last_good: Optional[Plan] = None
    unfit: str = ""  # Why this rank has no memory for a last good plan.
    decision: Optional[Decision] = None
    chosen: Optional[Plan] = None
    taken: bool = False


class PlanProvider:
    """Provides the plan of each step, the same on all ranks, and never late.

    `get` returns within `wait` seconds, plus the time until the slowest rank
    calls it. The order of choice: the plan of this step; the last good plan for
    such microbatches, with this step's samples in it, if every rank has the
    memory for them (SubMicrobatch.tokens says how large they are); `static(
    step, microbatches)`, which is the same on all ranks, and which may be None
    if the trainer has a schedule of its own (then `get` returns None). All
    ranks make the same choice: `agree` is an all-gather over all processes of
    the training, including all replicas (pipeloom.torch.agreement). A separate
    thread uses it once per step, as a rule while the step before runs. Without
    it there is one process; ValueError: the session is that of one rank of
    several.

    A planner that stays silent costs `wait` once in ten times that duration,
    not in every step.

    `accept(plan, microbatches)` may refuse a plan that the trainer cannot run;
    it returns the reason, or None.

    `counts` is the number of steps that ran "planned", "last_good" and
    "static"; `unfit` that of votes for which this rank had a last good plan and
    no memory for it. One line is logged when something goes wrong, and one when
    all is well again.
    """

    def __init__(self, session: Optional[Session], static: Static, *,
                 wait: float = 1.0, agree: Optional[Gather] = None,
                 replica: int = 0, keep: int = 64,
                 accept: Optional[Callable[[Plan, Sequence[Microbatch]],
                                           Optional[str]]] = None) -> None:
        if agree is None and session is not None and session.rank is not None:
            ranks = session.job.num_ranks * session.job.num_replicas
            if ranks > 1:
                raise ValueError(
                    f"agree is None; the job {session.job.job_id} has {ranks} "
                    "ranks, which can only decide alike by an all-gather "
                    "(pipeloom.torch.agreement)")
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
        self._at = -1  # The newest step that get() was called for.
        self._open: List[_Step] = []  # Undecided steps, in order.
        self._decided: List[_Step] = []
        self._silent_since: Optional[float] = None
        self._probed = 0.0
        self._error: Optional[BaseException] = None
        self._closing = False
        self.counts: Dict[str, int] = {"planned": 0, "last_good": 0,
                                       "static": 0}
        self.votes = 0  # Number of collectives so far.
        self.unfit = 0
        if session is not None:
            session.watch(self._wake)
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="pipeloom-agreement")
        self._thread.start()

    def __enter__(self) -> "PlanProvider":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # -- Calls of the trainer --------------------------------------------------

    def expect(self, step: int, microbatches: Sequence[Microbatch],
               samples: Optional[Iterable[Any]] = None,
               microbatch_of: Iterable[int] = (), *,
               whole: bool = False) -> None:
        """Announces a coming step when the data loader knows it, so that it is
        planned (Session.expect) and agreed on while other steps run. With
        `microbatch_of` the microbatches are the trainer's: a plan must have the
        same samples in them, and runs with the trainer's weights. Steps are
        announced in ascending order, the same on all ranks; announcing a step
        that has run says that the training went back to it."""
        try:
            microbatch_of = tuple(microbatch_of)
            own = len(microbatch_of) > 0
        except TypeError:  # The session refuses it.
            own = True
        with self._cond:
            if self._closing or any(s.step == step and s.step > self._at
                                    for s in self._open + self._decided):
                return
            if step <= self._at:
                self._go_back(step)
            self._open.append(_Step(self._epoch, step, tuple(microbatches),
                                    own))
            self._cond.notify_all()
        if self._session is not None:
            self._session.expect(step, samples, microbatch_of, whole=whole)

    def get(self, step: int,
            microbatches: Optional[Sequence[Microbatch]] = None
            ) -> Optional[Plan]:
        """Returns the plan that this step runs, the same on every rank. The
        same step again gets the same plan; with an earlier step, the training
        begins again from there. `microbatches` are the trainer's own, if they
        were not announced. May raise AgreementError."""
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
        """Sends the step's measured times (StepResult.spans) to the planner in
        the background, if the step ran the planner's plan."""
        with self._cond:
            ran = [s.plan for s in self._decided if s.step == step and
                   s.decision is not None and
                   s.decision.outcome is Outcome.PLANNED]
        if self._session is not None and ran and ran[0] is not None:
            self._session.report(step, ran[0].checksum, spans)

    def close(self) -> None:
        """Tells the other ranks that this rank has no further steps, and ends
        the thread. Waits for at most some seconds."""
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
        """Goes back to a step that is run again; all decisions for it and later
        steps are void."""
        self._epoch += 1
        self._at = step - 1
        self._open, self._decided = [], []
        if self._session is not None:
            self._session.go_back(step)

    def _choose(self, entry: _Step, decision: Decision) -> Optional[Plan]:
        chosen: Optional[Plan]
        trouble = self._session.trouble if self._session else None
        if trouble is not None:
            if decision.outcome is Outcome.PLANNED:
                trouble.end("fallback", f"step {entry.step} is planned again")
                if decision.why:
                    trouble.note("microbatches", decision.why)
            else:
                trouble.begin("fallback",
                              f"step {entry.step} runs the "
                              f"{decision.outcome.value.replace('_', ' ')} "
                              f"schedule: {decision.why}")
                if entry.unfit:
                    trouble.note("memory", "the last good plan does not fit "
                                  f"step {entry.step}: {entry.unfit}")
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
        """Waits until a step's vote can be cast, casts it, and stores the
        decision. Returns whether to go on."""
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
                self._find_last_good(entry)
                vote = vote_of(entry.epoch, entry.step, self._replica,
                               entry.plan, entry.last_good,
                               entry.microbatches)
                break
        votes = [decode(words) for words in self._gather(encode(vote))]
        decision = decide(votes, self._me)
        with self._cond:
            self.votes += 1
            if vote.epoch == END_EPOCH:
                # Ranks that are behind need this rank's vote to go on.
                return any(v.epoch != END_EPOCH for v in votes)
            assert entry is not None
            if decision.outcome is Outcome.AGAIN:
                return True
            if decision.outcome is Outcome.PLANNED:
                assert entry.plan is not None
                self._good.add(entry.plan, entry.microbatches
                               if entry.fixed else ())
            entry.decision = decision
            if entry in self._open:
                self._open.remove(entry)
                self._decided.append(entry)
            self._cond.notify_all()
        return True

    def _find_last_good(self, entry: _Step) -> None:
        """Sets the last good plan that the entry's vote is for, unless the
        memory of this rank does not suffice for it or its losses cannot be
        weighed."""
        good = self._good.find(entry.microbatches)
        short = good and (
            memory.shortage(good.plan, good.made_for, entry.microbatches) or
            unknown_sizes(good.plan.loss_shares, entry.microbatches))
        self.unfit += bool(short)
        entry.unfit = short or ""
        entry.last_good = good.plan if good and not short else None

    def _look(self, entry: _Step) -> Tuple[Optional[Plan], float]:
        """Returns the plan to vote for, or None and the time that is worth
        waiting for it, in seconds."""
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
        """Returns the time until which to wait for the plan of a step for which
        the trainer began to wait at `asked`."""
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
    """Returns the plan with the trainer's own weights of its microbatches,
    which are divided among their sub-microbatches by the plan's loss_shares."""
    return dataclasses.replace(plan, loss_totals={}, microbatches=tuple(
        dataclasses.replace(m, loss_weight=o.loss_weight)
        for m, o in zip(plan.microbatches, own)))


def _parts_of(described: Any) -> Tuple[Any, Any]:
    """Returns the samples and microbatch_of of a batch's description, which is
    a pair of both or samples only. Two samples are no pair."""
    if isinstance(described, (tuple, list)) and len(described) == 2:
        samples, microbatch_of = described
        no_pair = hasattr(samples, "text_tokens") or isinstance(
            samples, (str, bytes, collections.abc.Mapping))
        if isinstance(samples, collections.abc.Iterable) and not no_pair:
            return samples, microbatch_of
    return described, ()


class MetadataPrefetcher:
    """Wraps any iterable of batches: reads `ahead` batches further than it
    yields, and announces them to the provider. Yields (step, batch).

    `microbatches(batch)` returns the trainer's own microbatches,
    `metadata(batch)` the batch's samples, in any iterable, or the pair
    (samples, microbatch_of). `whole`: the samples are those of all replicas.
    Not thread-safe. Never waits for the service.
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
            samples, microbatch_of = _parts_of(self._metadata(batch))
            self._provider.expect(self._step, self._microbatches(batch),
                                  samples, microbatch_of, whole=self._whole)
            waiting.append((self._step, batch))
            self._step += 1
            if len(waiting) > self._ahead:
                yield waiting.pop(0)
        while waiting:
            yield waiting.pop(0)
