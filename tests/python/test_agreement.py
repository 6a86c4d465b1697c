"""The protocol by which ranks agree on a step's plan (pipeloom.agreement), in
all interleavings of a small model: ranks that get the planner's answer, late, a
different one or none, and a planner that dies and comes back between any two
messages. The model makes votes and decisions by the package's own functions."""
import dataclasses
import functools
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

if HAVE_GRPC:
    import pipeloom
    from pipeloom.agreement import (END_EPOCH, NONE, Decision, LastGood,
                                    Outcome, Vote, decide, decode, encode,
                                    structure_of, vote_of)

# The actions of the trainers: (epoch, step, kind). A step is announced before
# it is asked for; "ahead" is one that is only announced, since the training
# goes back to step 1: a rank may have voted for it by then, or not.
SCRIPT = ((0, 0, "get"), (0, 1, "get"), (0, 2, "ahead"), (1, 1, "get"))
SHORT = ((0, 0, "get"), (0, 1, "ahead"), (1, 0, "get"))


@functools.lru_cache(maxsize=None)
def plan_of(step, variant):
    """Returns a planner's answer; a restarted planner may give another
    variant."""
    return pipeloom.Plan(
        num_ranks=1, module_names=("m",), tasks={}, edges={}, programs={},
        microbatches=MICROBATCHES, step=step, checksum=(step + 1, variant + 1),
        step_checksum=(step, 7))


if HAVE_GRPC:
    MICROBATCHES = (pipeloom.Microbatch((0,), 1.0,
                                        (pipeloom.SubMicrobatch(0),)),)


@functools.lru_cache(maxsize=None)
def vote_for(item, plan, good):
    """`plan` and `good` are (step, variant) or None."""
    epoch, step, _ = item
    if epoch == END_EPOCH:
        return Vote(END_EPOCH, 0)
    return vote_of(epoch, step, 0, plan and plan_of(*plan),
                   good and plan_of(*good), MICROBATCHES)


class Split(AssertionError):
    pass


class Model:
    """States are (server, deaths left, losses left, result, decided, ranks).

    server   the variant that it answers with, or None: it is down
    result   the votes of the last collective, while ranks have yet to see it
    decided  by place in the script: what the first rank ran, or None
    ranks    sorted, since they are alike: (place, phase, vote, plan, last
             good plan); phase: "ask", an answer on its way as (variant,),
             "voted", "seeing" a result, or "end"
    """

    def __init__(self, ranks, script, deaths, rule, forgets=1):
        self.script = script + ((END_EPOCH, 0, "end"),)
        self.rule = functools.lru_cache(maxsize=None)(rule)
        first = (0, "ask", None, None, None)
        self.start = (0, deaths, forgets, None, (None,) * len(self.script),
                      (first,) * ranks)
        self.outcomes = set()

    def explore(self, limit=3_000_000):
        """Visits every state that can be reached; returns how many. Split:
        two ranks run different plans for a step, or one runs what it does not
        hold, or nobody can go on."""
        seen = {self.start}
        stack = [self.start]
        while stack:
            state = stack.pop()
            after = list(self.next_states(state))
            if not after and any(r[1] != "end" for r in state[5]):
                raise Split(f"nobody can go on: {state}")
            for s in after:
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
            if len(seen) > limit:
                raise AssertionError("the model does not end")
        return len(seen)

    def next_states(self, state):
        server, deaths, forgets, result, decided, ranks = state
        if server is not None and deaths > 0:
            yield (None, deaths - 1, forgets, result, decided, ranks)
        if server is None:
            for variant in (0, 1):  # From its state, or planned anew.
                yield (variant, deaths, forgets, result, decided, ranks)
        for i, rank in enumerate(ranks):
            if i > 0 and ranks[i - 1] == rank:
                continue  # The same by symmetry.
            for fewer, new, run in self.steps_of(rank, server, forgets,
                                                 result):
                others = ranks[:i] + (new,) + ranks[i + 1:]
                yield self.settle(server, deaths, forgets - fewer, result,
                                  self.note(decided, run), others)

    def steps_of(self, rank, server, forgets, result):
        """(plans forgotten, the rank afterwards, what it runs) of all it may
        do, or that may happen to it, now."""
        place, phase, vote, plan, good = rank
        if phase == "end":
            return
        if forgets > 0 and good is not None and phase != "seeing":
            # It lost its plans: its provider was made anew.
            if vote is None:
                yield 1, (place, phase, vote, plan, None), None
        item = self.script[place]
        if phase == "seeing":
            yield self.see(rank, result)
            return
        if phase == "voted":
            return
        if item[2] == "end":
            yield 0, (place, "voted", vote_for(item, None, None), None,
                      good), None
            return
        if phase == "ask" and server is not None:
            yield 0, (place, (server,), None, None, good), None
        if isinstance(phase, tuple):
            got = (item[1], phase[0])
            yield 0, (place, "voted", vote_for(item, got, good), got,
                      good), None
            if server is None:
                yield 0, (place, "ask", None, None, good), None  # Lost.
        if item[2] == "ahead":
            yield 0, (place + 1, "ask", None, None, good), None
        else:  # It has waited long enough.
            yield 0, (place, "voted", vote_for(item, None, good), None,
                      good), None

    def see(self, rank, result):
        """A rank gets all votes."""
        place, _, vote, plan, good = rank
        decision = self.rule(result, result.index(vote))
        if vote.epoch == END_EPOCH:
            over = all(v.epoch == END_EPOCH for v in result)
            return 0, (place, "end" if over else "voted",
                       vote, None, good), None
        self.outcomes.add(decision.outcome)
        if decision.outcome is Outcome.AGAIN:
            return 0, (place, "ask", None, None, good), None
        ran = decision.outcome.value
        if decision.outcome is Outcome.PLANNED:
            if plan is None:
                raise Split(f"a rank is to run a plan that it does not hold: "
                            f"{result}")
            ran, good = ("planned", plan), plan
        elif decision.outcome is Outcome.LAST_GOOD:
            if good is None:
                raise Split(f"a rank is to run a plan that it has lost: "
                            f"{result}")
            ran = ("last_good", good)
        return 0, (place + 1, "ask", None, None, good), (place, ran)

    def note(self, decided, run):
        if run is None:
            return decided
        place, ran = run
        if decided[place] is None:
            return decided[:place] + (ran,) + decided[place + 1:]
        if decided[place] != ran:
            raise Split(f"step {self.script[place]}: one rank runs "
                        f"{decided[place]}, another {ran}")
        return decided

    @staticmethod
    def settle(server, deaths, forgets, result, decided, ranks):
        """The all-gather ends when every rank has voted and seen the one
        before."""
        if all(r[1] == "voted" for r in ranks):
            result = tuple(sorted(r[2] for r in ranks))
            ranks = tuple((r[0], "seeing", *r[2:]) for r in ranks)
        elif all(r[1] != "seeing" for r in ranks):
            result = None
        return (server, deaths, forgets, result, decided,
                tuple(sorted(ranks, key=repr)))


# -- Rules with a mistake in them ---------------------------------------------


def last_good_unasked(votes, me):
    """Falls back to what this rank has, as the first version did."""
    decision = decide(votes, me)
    if decision.outcome in (Outcome.STATIC, Outcome.LAST_GOOD):
        return Decision(Outcome.STATIC if votes[me].last_good == NONE
                        else Outcome.LAST_GOOD)
    return decision


def one_other_is_enough(votes, me):
    """Runs the plan if two ranks hold it."""
    mine = votes[me]
    if mine.plan != NONE and sum(v == mine for v in votes) > 1:
        return Decision(Outcome.PLANNED)
    return decide(votes, me)


def majority(votes, me):
    """Runs what most ranks hold."""
    held = sum(v.plan != NONE for v in votes)
    if 2 * held > len(votes) and all(v.at == votes[0].at for v in votes):
        return Decision(Outcome.PLANNED)
    return decide(votes, me)


def steps_unasked(votes, me):
    """Does not look at which step the others' votes are for."""
    return decide([v._replace(epoch=votes[me].epoch, step=votes[me].step)
                   for v in votes], me)


def nobody_waits(votes, me):
    """Decides among those that are at the same step."""
    return decide([v for v in votes if v.at == votes[me].at], 0)


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ModelTest(unittest.TestCase):

    def test_no_interleaving_splits_two_to_four_ranks(self):
        for ranks, script, deaths in ((2, SCRIPT, 3), (3, SCRIPT, 2),
                                      (4, SHORT, 1)):
            model = Model(ranks, script, deaths, decide)
            states = model.explore()
            print(f"{ranks} ranks, {deaths} deaths of the planner: {states} "
                  "states, none of them split")
            self.assertGreater(states, 1000)
            # The model is not empty: everything that can happen does.
            self.assertEqual(model.outcomes, {
                Outcome.PLANNED, Outcome.LAST_GOOD, Outcome.STATIC,
                Outcome.AGAIN})

    def test_a_mistake_in_the_rule_is_found(self):
        for rule in (last_good_unasked, one_other_is_enough, majority,
                     steps_unasked, nobody_waits):
            with self.assertRaises(Split, msg=rule.__doc__):
                Model(3, SCRIPT, 1, rule).explore()


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class DecisionTest(unittest.TestCase):

    def vote(self, **kwargs):
        fields = {"epoch": 0, "step": 3, "plan": (1, 1), "whole": (2, 2),
                  "last_good": (3, 3), "microbatches": (4, 4)}
        return Vote(**{**fields, **kwargs})

    def outcome(self, votes):
        decisions = [decide(votes, r) for r in range(len(votes))]
        self.assertEqual(len({d.outcome for d in decisions}), 1)
        return decisions[0].outcome

    def test_replicas_run_other_plans_of_one_step(self):
        votes = [self.vote(replica=r // 2, plan=(1 + r // 2, 1))
                 for r in range(4)]
        self.assertIs(self.outcome(votes), Outcome.PLANNED)
        votes[3] = votes[3]._replace(whole=(9, 9))
        self.assertIs(self.outcome(votes), Outcome.LAST_GOOD)
        votes[0] = votes[0]._replace(last_good=NONE)
        self.assertIs(self.outcome(votes), Outcome.STATIC)

    def test_replicas_that_meet_run_last_good_plans_of_one_step(self):
        # Plans of two steps have two orders, and the replicas would wait for
        # each other for ever.
        def vote(replica, step, meet):
            good = dataclasses.replace(plan_of(step, replica),
                                       replicas_that_meet=meet)
            return vote_of(0, 3, replica, None, good, MICROBATCHES)

        for meet in (0, 2):
            with self.subTest(meet=meet):
                votes = [vote(0, 1, meet), vote(1, 1, meet)]
                self.assertIs(self.outcome(votes), Outcome.LAST_GOOD)
                votes[1] = vote(1, 2, meet)
                self.assertIs(self.outcome(votes), Outcome.STATIC if meet
                              else Outcome.LAST_GOOD)
        self.assertIn("different steps", decide(votes, 0).why)

    def test_one_rank_without_a_plan_is_named(self):
        votes = [self.vote(), self.vote(plan=NONE), self.vote()]
        self.assertIs(self.outcome(votes), Outcome.LAST_GOOD)
        self.assertEqual(decide(votes, 0).why, "no plan on rank 1")

    def test_a_rank_that_has_no_memory_for_the_last_good_plan_is_named(self):
        votes = [self.vote(), self.vote(plan=NONE), self.vote(last_good=NONE)]
        self.assertIs(self.outcome(votes), Outcome.STATIC)
        self.assertEqual(decide(votes, 0).why, "no plan on rank 1, and no last "
                         "good plan that fits on rank 2")

    def test_ranks_that_describe_other_microbatches_are_told(self):
        votes = [self.vote(plan=NONE), self.vote(microbatches=(5, 5))]
        self.assertIs(self.outcome(votes), Outcome.UNLIKE)
        # Which nobody needs while there is a plan.
        votes[0] = self.vote()
        self.assertIs(self.outcome(votes), Outcome.PLANNED)
        self.assertIn("same microbatches", decide(votes, 1).why)

    def test_a_vote_survives_its_journey(self):
        vote = self.vote(epoch=END_EPOCH, step=1 << 61, replica=4095,
                         plan=((1 << 64) - 1, 1 << 63), last_step=(6, 1 << 40))
        words = encode(vote)
        self.assertEqual(decode(words), vote)
        self.assertTrue(all(0 <= w < 1 << 63 for w in words))
        with self.assertRaisesRegex(ValueError, "same version"):
            decode([1] + words[1:])

    def test_the_last_good_plan_is_found_by_structure_alone(self):
        def micro(sample, images):
            return pipeloom.Microbatch(
                (sample,), 0.5, tuple(pipeloom.SubMicrobatch(0, j)
                                      for j in range(images)) +
                (pipeloom.SubMicrobatch(1),))

        good = LastGood(keep=2)
        plans = [dataclasses.replace(
            plan_of(i, 0), microbatches=(micro(i, i), micro(9, 1)))
            for i in range(3)]
        for plan in plans:
            good.add(plan)
        self.assertIsNone(good.find((micro(7, 0), micro(8, 1))))
        self.assertIs(good.find((micro(7, 2), micro(8, 1))).plan, plans[2])
        # Replicas that meet take the newest, whatever its sizes: others may
        # have chosen another step.
        for meet, step in ((0, 1), (2, 2)):
            good = LastGood()
            for i, tokens in enumerate((10, 30, 20)):
                one = pipeloom.Microbatch(
                    (0,), 1.0, (pipeloom.SubMicrobatch(0, tokens=tokens),))
                good.add(dataclasses.replace(plan_of(i, 0), microbatches=(one,),
                                             replicas_that_meet=meet))
            larger = pipeloom.Microbatch(
                (0,), 1.0, (pipeloom.SubMicrobatch(0, tokens=25),))
            self.assertEqual(good.find((larger,)).plan.step, step)
        self.assertNotEqual(structure_of((micro(7, 2), micro(8, 1))),
                            structure_of((micro(7, 1), micro(8, 2))))


if __name__ == "__main__":
    unittest.main()
