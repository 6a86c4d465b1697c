"""pipeloom.local: plans from a trainer's own costs keep to its memory."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

from pipeloom import local  # noqa: E402
from pipeloom import static_schedule as sp  # noqa: E402
from pipeloom.check import check_plan  # noqa: E402
from pipeloom.plan import Microbatch, SubMicrobatch  # noqa: E402

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
RANKS = 3
STAGES = [sp.Stage(0, i, 1, i % RANKS, i // RANKS) for i in range(2 * RANKS)]
MICROBATCHES = [Microbatch((m,), 0.125, (SubMicrobatch(0),))
                for m in range(8)]


def most_held(graph, order, sizes):
    """The most bytes that a rank holds in this order of its tasks."""
    last = {}
    for i in order:
        t = graph.tasks[i]
        last[t.stage, t.microbatch, t.sub] = i
    held = most = 0
    forward = {}
    for i in order:
        t = graph.tasks[i]
        place = t.stage, t.microbatch, t.sub
        if t.kind == "F":
            forward[place] = sizes[i]
            held += sizes[i]
        most = max(most, held)
        if last[place] == i:
            held -= forward[place]
    return most


@unittest.skipUnless(os.access(BINARY, os.X_OK), "no pipeloom binary")
class LocalTest(unittest.TestCase):

    def test_orders_keep_to_the_memory_limit(self):
        for split in (False, True):
            graph = local.graph_of(
                STAGES, (), MICROBATCHES,
                lambda kind, *_: {"F": 10, "B": 12, "W": 8}[kind] * 1000,
                split)
            sizes = {i: 100 for i, t in enumerate(graph.tasks)
                     if t.kind == "F"}
            for limit in (0, 600, 400):
                with self.subTest(split=split, limit=limit):
                    orders = local.search_orders(
                        BINARY, graph, RANKS, evaluations=200,
                        memory_limit_bytes=limit, activation_bytes=sizes)
                    most = max(most_held(graph, o, sizes) for o in orders)
                    self.assertTrue(limit == 0 or most <= limit, most)
                    self.assertGreater(most, 200)
                    check_plan(local.plan_of(graph, orders, ("text",),
                                             MICROBATCHES, "search"))

    def test_an_error_says_what_would_fit(self):
        graph = local.graph_of(STAGES, (), MICROBATCHES, lambda *_: 1000)
        sizes = {i: 100 for i, t in enumerate(graph.tasks) if t.kind == "F"}
        with self.assertRaisesRegex(RuntimeError, "200"):
            local.search_orders(BINARY, graph, RANKS, evaluations=50,
                                memory_limit_bytes=150,
                                activation_bytes=sizes)


if __name__ == "__main__":
    unittest.main()
