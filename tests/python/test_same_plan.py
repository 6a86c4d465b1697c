"""The service and `pipeloom plan` make the same plan of the same job and
samples, whichever way the samples are dealt to microbatches."""
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import unittest

from real_service import BINARY, HAVE_ALL, ROOT

if HAVE_ALL:
    from google.protobuf import json_format
    import pipeloom
    from pipeloom import messages

FIRST = 450  # Of the batch: a step that deferral makes faster.
SAMPLES = 240
REPLICAS = 2


@unittest.skipUnless(HAVE_ALL, "grpcio or the service binary is missing")
class SamePlanTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        shipped = os.path.join(ROOT, "workloads")
        with open(os.path.join(shipped, "jobs/dip-vlm-s.json"),
                  encoding="utf-8") as f:
            cls.job = json.load(f)
        cls.job["parallel"]["dp"] = REPLICAS
        cls.job["search"]["evaluations"] = 40
        cls.job_path = os.path.join(cls.folder, "job.json")
        with open(os.path.join(shipped, "batches/image_text.jsonl"),
                  encoding="utf-8") as f:
            lines = list(itertools.islice(f, FIRST, FIRST + SAMPLES))
        cls.batch_path = os.path.join(cls.folder, "batch.jsonl")
        with open(cls.batch_path, "w", encoding="utf-8") as f:
            f.writelines(lines)
        cls.samples = [
            pipeloom.Sample(s["text_tokens"],
                            tuple(tuple(i) for i in s.get("images", ())))
            for s in map(json.loads, lines)]
        cls.server = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--log-level", "off"],
            stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.server.stdout.close)
        cls.addClassCleanup(cls.server.wait, 30)
        cls.addClassCleanup(cls.server.terminate)
        target = cls.server.stdout.readline().split()[-1]
        cls.client = pipeloom.Client(target, timeout=120.0)
        cls.addClassCleanup(cls.client.close)

    def planned_by_command(self, assignment):
        with open(self.job_path, "w", encoding="utf-8") as f:
            json.dump(self.job, f)
        out = os.path.join(self.folder, "plan.pb")
        subprocess.run(
            [BINARY, "plan", self.job_path, "--batch", self.batch_path,
             "--assignment", assignment, "--out", out],
            check=True, capture_output=True)
        plans = []
        for name in ("plan.pb", "plan-r1.pb"):
            with open(os.path.join(self.folder, name), "rb") as f:
                plans.append(messages.ExecutionPlan.FromString(f.read()))
        return plans

    def planned_by_service(self, assignment):
        job = json_format.ParseDict(self.job, messages.Job())
        deferred = assignment == "deferred"
        job.training.assignment = messages.enum_value(
            "SampleAssignment",
            "SAMPLE_ASSIGNMENT_" + ("IN_ORDER" if deferred
                                    else assignment.upper().replace("-", "_")))
        opened = self.client.open_job(job, self.samples,
                                      defer_surplus=deferred)
        self.client.submit_batch(opened.job_id, 0, self.samples)
        return [self.client.plan(opened.job_id, 0, r)
                for r in range(REPLICAS)]

    def test_the_checksums_of_all_replicas_are_equal(self):
        sums = {}
        for name in ("in-order", "balanced", "deferred"):
            by_command = self.planned_by_command(name)
            by_service = self.planned_by_service(name)
            for expected, got in zip(by_command, by_service):
                self.assertEqual(
                    (expected.checksum.high, expected.checksum.low),
                    got.checksum, name)
            sums[name] = [plan.checksum for plan in by_service]
            samples = sorted(s for plan in by_service
                             for m in plan.microbatches for s in m.samples)
            self.assertEqual(samples, list(range(SAMPLES)), name)
        self.assertEqual(len({tuple(s) for s in sums.values()}), 3)

    def test_balanced_samples_are_not_deferred(self):
        job = json_format.ParseDict(self.job, messages.Job())
        job.training.assignment = messages.enum_value(
            "SampleAssignment", "SAMPLE_ASSIGNMENT_BALANCED")
        with self.assertRaisesRegex(pipeloom.PlannerError,
                                    "INVALID_ARGUMENT.*defer_surplus"):
            self.client.open_job(job, self.samples, defer_surplus=True)

    def test_a_share_describes_both_ends_of_all_its_edges(self):
        """With it and nothing else a rank knows of every send and receive the
        peer, what it is of, its bytes and its shape, as the plan has them."""
        opened = self.client.open_job(
            json_format.ParseDict(self.job, messages.Job()), self.samples)
        self.client.submit_batch(opened.job_id, 0, self.samples)
        whole = self.client.plan(opened.job_id, 0, 0)
        peers = 0
        for rank in range(opened.num_ranks):
            share = self.client.rank_plan(opened.job_id, 0, 0, rank)
            self.assertEqual(share.programs[rank], whole.programs[rank])
            self.assertEqual(
                {i for i, t in share.tasks.items() if t.rank == rank},
                {i for i, t in whole.tasks.items() if t.rank == rank})
            for e, edge in share.edges.items():
                self.assertEqual(edge, whole.edges[e])
                for end in (edge.source, edge.target):
                    task, real = share.tasks[end], whole.tasks[end]
                    self.assertEqual(
                        (task.rank, task.kind, task.module, task.stage,
                         task.microbatch, task.sub),
                        (real.rank, real.kind, real.module, real.stage,
                         real.microbatch, real.sub))
                    peers += task.rank != rank
            for op, arg in share.programs[rank]:
                if op in ("send", "recv"):
                    self.assertIn(arg, share.edges)
            self.assertEqual(share.shape_on([rank]), whole.shape_on([rank]))
        self.assertGreater(peers, 0)


if __name__ == "__main__":
    unittest.main()
