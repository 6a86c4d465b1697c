"""pipeloom.TraceFile: `pipeloom trace` reads what a training's ranks write."""
import json
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

import pipeloom  # noqa: E402
from pipeloom import static_schedule as sp  # noqa: E402
from pipeloom.plan import Microbatch, SubMicrobatch  # noqa: E402

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
NAMES = ("vision", "text")
STAGES = (sp.Stage(0, 0, 1, 0, 0), sp.Stage(0, 1, 1, 1, 0),
          sp.Stage(1, 0, 1, 0, 1), sp.Stage(1, 1, 1, 1, 1))
# Microbatches with images, by step: steps have other tasks.
IMAGES = ((0, 1, 2), (), (1,))
MS = 1000000


def plan_of(step):
    microbatches = [Microbatch((m,), 0.25, tuple(
        SubMicrobatch(module) for module in (0, 1)
        if module or m in IMAGES[step])) for m in range(4)]
    return sp.static_plan(
        STAGES, ((0, 1),), microbatches, NAMES, step,
        cost=lambda kind, stage, m, j: (10 if kind == "F" else 20) * MS)


def spans_of(plan):
    """When tasks run if transfers take 1 ms; by rank."""
    end, free = {}, [0, 0]
    spans = ([], [])
    left = {r: [arg for op, arg in p if op == "compute"]
            for r, p in plan.programs.items()}
    while any(left.values()):
        for r, own in left.items():
            sources = [e.source for e in plan.edges.values()
                       if own and e.target == own[0]]
            if not own or any(s not in end for s in sources):
                continue
            t = own.pop(0)
            begin = max([free[r]] + [
                end[s] + (MS if plan.tasks[s].rank != r else 0)
                for s in sources])
            free[r] = end[t] = begin + plan.tasks[t].duration_ns
            spans[r].append((t, begin, end[t]))
    return spans, max(free)


@unittest.skipUnless(os.access(BINARY, os.X_OK), "no pipeloom binary")
class TraceFileTest(unittest.TestCase):

    def test_each_step_is_replayed_as_it_was(self):
        lengths = []
        with tempfile.TemporaryDirectory() as folder:
            files = [pipeloom.TraceFile(f"{folder}/rank{r}.json", r)
                     for r in range(2)]
            for step in range(len(IMAGES)):
                plan = plan_of(step)
                spans, length = spans_of(plan)
                lengths.append((length, len(plan.tasks)))
                for r, file in enumerate(files):
                    time.sleep(0.01)  # Clocks of ranks differ.
                    file.add(plan, types.SimpleNamespace(
                        spans=spans[r], seconds=length / 1e9))
            with self.assertRaisesRegex(ValueError, "of rank 0"):
                files[0].add(plan, types.SimpleNamespace(spans=[],
                                                         seconds=0.0))
            for file in files:
                file.close()
            for step, (length, tasks) in enumerate(lengths):
                done = subprocess.run(
                    [BINARY, "trace", folder, "--iteration", str(step),
                     "--format", "json"], capture_output=True, text=True,
                    check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                read = json.loads(done.stdout)
                self.assertEqual(read["iterations"], len(IMAGES), read)
                self.assertEqual(read["tasks"], tasks)
                for key in ("measured_us", "replayed_us"):
                    self.assertAlmostEqual(read[key] / (length / 1e3), 1.0,
                                           places=2)


if __name__ == "__main__":
    unittest.main()
