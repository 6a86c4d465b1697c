"""A training whose ranks are threads of the test: each has a client, a session
and a provider of its own, and all decide together."""
import threading

import pipeloom
from fake_planner import MODULES, RANKS, STAGES, described, static_schedule


class ThreadGather:
    """The all-gather of a group whose ranks are threads."""

    def __init__(self, size):
        self._words = [None] * size
        self._barrier = threading.Barrier(size)

    def of(self, rank):
        def gather(words):
            self._words[rank] = list(words)
            self._barrier.wait(120)
            result = list(self._words)
            self._barrier.wait(120)
            return result

        gather.rank = rank
        return gather


class Rank:
    """One rank. `describe` makes its microbatches of samples; `own`: they are
    the trainer's, which a plan must have."""

    def __init__(self, planner, rank, gather, describe=described, *,
                 pauses=(0.01, 0.05), wait=30.0, own=True):
        self.client = pipeloom.Client(planner.target)
        job = pipeloom.Job.of_stages("dip-vlm-s", "job", STAGES, MODULES)
        self.session = pipeloom.Session(self.client, job, rank=rank,
                                        pauses=pauses)
        self.provider = pipeloom.PlanProvider(
            self.session, static_schedule, wait=wait, agree=gather)
        self.describe = describe
        self.own = own

    def announce(self, step, samples):
        self.provider.expect(step, self.describe(samples), samples,
                             range(len(samples)) if self.own else ())

    def close(self):
        self.provider.close()
        self.session.close()
        self.client.close()


class Group:
    """All ranks of a training; `run` returns what each runs for a step."""

    def __init__(self, planner, describe=None, **kwargs):
        gather = ThreadGather(RANKS)
        self.ranks = [Rank(planner, r, gather.of(r),
                           describe[r] if describe else described, **kwargs)
                      for r in range(RANKS)]

    def announce(self, step, samples):
        for rank in self.ranks:
            rank.announce(step, samples)

    def get(self, step):
        """Returns each rank's plan, or the exception that it got."""
        results = [None] * RANKS

        def one(r):
            try:
                results[r] = self.ranks[r].provider.get(step)
            except Exception as error:  # pylint: disable=broad-except
                results[r] = error

        threads = [threading.Thread(target=one, args=(r,), daemon=True)
                   for r in range(RANKS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        return results

    def run(self, step, samples):
        self.announce(step, samples)
        return self.get(step)

    def counts(self, kind):
        return [rank.provider.counts[kind] for rank in self.ranks]

    def close(self):
        threads = [threading.Thread(target=rank.close) for rank in self.ranks]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
