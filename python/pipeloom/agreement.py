"""The rules by which all ranks decide on one plan for each step, without
threads or messages.

Before a step every rank casts one vote, and all votes reach every rank (an
all-gather). `decide` is a function of those votes alone, so that all ranks
come to the same decision:

- the step's plan, if all ranks hold it;
- else the last good plan for such microbatches, if all ranks hold it and have
  the memory for it; replicas that wait for each other within passes need those
  of one step, in whose order all of them run;
- else the static schedule, which every rank makes of its microbatches.

A rank runs only a plan that it has voted for, or the static schedule, so it
holds what is decided. docs/service.md states the protocol and proves it;
tests/python/test_agreement.py visits all its interleavings.
"""
import enum
import hashlib
from typing import (Any, Dict, List, NamedTuple, Optional, Sequence, Tuple)

from pipeloom import memory
from pipeloom.plan import Microbatch, Plan

Checksum = Tuple[int, int]

NONE: Checksum = (0, 0)
_FORMAT = 2
# The epoch of a rank whose training has ended; later than all others.
END_EPOCH = (1 << 31) - 1


class Vote(NamedTuple):
    """The plans that a rank holds for a step. `epoch` counts how often the
    training went back to an earlier step. NONE: the rank holds no such plan."""
    epoch: int
    step: int
    replica: int = 0
    plan: Checksum = NONE  # The plan with its microbatches.
    whole: Checksum = NONE  # Equal for all replicas' plans of the step.
    last_good: Checksum = NONE
    microbatches: Checksum = NONE  # The trainer's own.
    # Equal for all replicas' last good plans of one step, if replicas meet
    # within passes; NONE: each replica is by itself.
    last_step: Checksum = NONE

    @property
    def at(self) -> Tuple[int, int]:
        return (self.epoch, self.step)


class Outcome(enum.Enum):
    PLANNED = "planned"
    LAST_GOOD = "last_good"
    STATIC = "static"
    AGAIN = "again"  # Some ranks are behind: vote again.
    UNLIKE = "unlike"  # The trainers differ: no schedule would fit all.


class Decision(NamedTuple):
    outcome: Outcome
    why: str = ""  # Why it is not the step's plan, or a warning.


UNLIKE_MICROBATCHES = (
    "the ranks of a replica do not describe the same microbatches, without "
    "which no schedule fits all of them; describe them on one rank and send "
    "them to the others (pipeloom.torch.of_first_rank)")


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + shown + more


def _alike(votes: Sequence[Vote], field: str) -> bool:
    """Returns whether the ranks of each replica have voted alike, and not for
    NONE."""
    first: Dict[int, Checksum] = {}
    for v in votes:
        mine = getattr(v, field)
        if mine == NONE or first.setdefault(v.replica, mine) != mine:
            return False
    return True


def decide(votes: Sequence[Vote], me: int) -> Decision:
    """Returns the decision of the step that `votes[me]` is for; the votes are
    those of all ranks, in their order."""
    newest = max(v.at for v in votes)
    if votes[me].at != newest:
        # Some rank is past the step and will never run its plan.
        ahead = [r for r, v in enumerate(votes) if v.at == newest]
        return Decision(Outcome.STATIC,
                        f"{_named(ahead)} went on to step {newest[1]}")
    behind = [r for r, v in enumerate(votes) if v.at != newest]
    if behind:
        return Decision(Outcome.AGAIN, f"{_named(behind)} are behind")
    without = [r for r, v in enumerate(votes) if v.plan == NONE]
    if without:
        why = f"no plan on {_named(without)}"
    elif not _alike(votes, "plan"):
        why = "the ranks hold different plans"
    elif any(v.whole != votes[0].whole for v in votes):
        why = "the replicas hold plans of different steps"
    else:
        return Decision(Outcome.PLANNED, "" if _alike(votes, "microbatches")
                        else UNLIKE_MICROBATCHES)
    if not _alike(votes, "microbatches"):
        return Decision(Outcome.UNLIKE, f"{why}, and {UNLIKE_MICROBATCHES}")
    if _alike(votes, "last_good"):
        if all(v.last_step == votes[0].last_step for v in votes):
            return Decision(Outcome.LAST_GOOD, why)
        return Decision(Outcome.STATIC, f"{why}, and the replicas' last good "
                        "plans are of different steps")
    without = [r for r, v in enumerate(votes) if v.last_good == NONE]
    if without and len(without) < len(votes):
        why += f", and no last good plan that fits on {_named(without)}"
    return Decision(Outcome.STATIC, why)


# -- Contents of votes ---------------------------------------------------------


def checksum_of(*parts: Any) -> Checksum:
    """Returns 128 bits over the parts' texts; never NONE."""
    raw = hashlib.sha256(repr(parts).encode()).digest()
    return (int.from_bytes(raw[:8], "big") | 1,
            int.from_bytes(raw[8:16], "big"))


def identity_of(plan: Plan) -> Checksum:
    """Returns the checksum by which ranks compare a plan: its own, and that of
    its microbatches and its attempt, which are not part of the instructions."""
    return checksum_of(plan.checksum, plan.microbatches, plan.attempt)


def structure_of(microbatches: Sequence[Microbatch]) -> Tuple[Any, ...]:
    """Returns how many sub-microbatches each module has in each microbatch. If
    they are equal, a plan's order can stand in for another's. Every rank of a
    replica knows all microbatches, so all ranks get the same result."""
    result = []
    for m in microbatches:
        counts: Dict[int, int] = {}
        for sub in m.subs:
            counts[sub.module] = max(counts.get(sub.module, 0), sub.index + 1)
        result.append(tuple(sorted(counts.items())))
    return tuple(result)


class Good(NamedTuple):
    """An agreed plan, and the sizes of the microbatches that it was made for,
    as the trainer describes them."""
    plan: Plan
    made_for: Tuple[Microbatch, ...]


class LastGood:
    """The newest agreed plans, some of each structure of microbatches. Which
    one stands in for a step depends on what all ranks know alike, so that all
    ranks choose the same."""

    def __init__(self, keep: int = 64, of_a_structure: int = 4) -> None:
        self._keep = keep
        self._of_a_structure = of_a_structure
        self._plans: Dict[Any, List[Good]] = {}  # The newest last, both.

    def add(self, plan: Plan,
            described: Sequence[Microbatch] = ()) -> None:
        """`described`: the plan's microbatches in the trainer's words, if they
        are the trainer's own."""
        key = structure_of(plan.microbatches)
        made_for = (tuple(described) if structure_of(described) == key
                    else plan.microbatches)
        goods = self._plans.pop(key, [])
        self._plans[key] = [*goods, Good(plan, made_for)][
            -self._of_a_structure:]
        while sum(map(len, self._plans.values())) > self._keep:
            oldest = next(iter(self._plans))
            self._plans[oldest].pop(0)
            if not self._plans[oldest]:
                del self._plans[oldest]

    def find(self, microbatches: Sequence[Microbatch]) -> Optional[Good]:
        """Returns the newest plan that was made for microbatches at least as
        large, else the newest. The newest of all if replicas meet within
        passes: it has to be of the same step in all of them."""
        goods = self._plans.get(structure_of(microbatches), [])
        if goods and goods[-1].plan.replicas_that_meet > 1:
            return goods[-1]
        for good in reversed(goods):
            sizes = memory.growth(good.made_for, microbatches)
            if sizes is not None and all(g == 1.0 for g in sizes.values()):
                return good
        return goods[-1] if goods else None


def vote_of(epoch: int, step: int, replica: int, plan: Optional[Plan],
            last_good: Optional[Plan],
            microbatches: Sequence[Microbatch]) -> Vote:
    return Vote(epoch, step, replica,
                NONE if plan is None else identity_of(plan),
                NONE if plan is None else plan.step_checksum,
                NONE if last_good is None else identity_of(last_good),
                checksum_of(tuple(microbatches)),
                NONE if last_good is None or last_good.replicas_that_meet < 2
                else last_good.step_checksum)


# -- Encoding ------------------------------------------------------------------


def encode(vote: Vote) -> List[int]:
    """Returns a vote as 24 non-negative words below 2^32 (steps: below
    2^62)."""
    words = [_FORMAT, vote.epoch, vote.step, vote.replica]
    for checksum in vote[3:]:
        for half in checksum:
            words += [half >> 32, half & 0xffffffff]
    return words


def decode(words: Sequence[int]) -> Vote:
    """Returns the vote of encode's words. ValueError: they come from another
    version of this package."""
    if len(words) != 24 or words[0] != _FORMAT:
        raise ValueError(
            f"a vote of format {words[0] if words else None}, not {_FORMAT}: "
            "all ranks must run the same version of pipeloom")
    checksums = [((words[i] << 32) | words[i + 1],
                  (words[i + 2] << 32) | words[i + 3])
                 for i in range(4, 24, 4)]
    return Vote(words[1], words[2], words[3], *checksums)
