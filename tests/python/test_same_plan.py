"""The service and `pipeloom plan` make the same plan of the same job and
samples, whichever way the samples are dealt to microbatches."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

BINARY = os.environ.get("PIPELOOM_BINARY", "")
SERVICE = os.path.join(os.path.dirname(BINARY), "pipeloom-service")

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_ALL = os.path.exists(SERVICE)
except ImportError:
    HAVE_ALL = False

if HAVE_ALL:
    from google.protobuf import json_format
    import pipeloom
    from pipeloom import messages

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
        cls.job["search"]["evaluations"] = 20
        cls.job_path = os.path.join(cls.folder, "job.json")
        with open(os.path.join(shipped, "batches/image_text.jsonl"),
                  encoding="utf-8") as f:
            lines = [next(f) for _ in range(SAMPLES)]
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
        job.training.assignment = messages.enum_value("SampleAssignment",
                                                      assignment)
        opened = self.client.open_job(job, self.samples)
        self.client.submit_batch(opened.job_id, 0, self.samples)
        return [self.client.plan(opened.job_id, 0, r)
                for r in range(REPLICAS)]

    def test_the_checksums_of_all_replicas_are_equal(self):
        sums = {}
        for name, assignment in (("in-order", "SAMPLE_ASSIGNMENT_IN_ORDER"),
                                 ("balanced", "SAMPLE_ASSIGNMENT_BALANCED")):
            by_command = self.planned_by_command(name)
            by_service = self.planned_by_service(assignment)
            for expected, got in zip(by_command, by_service):
                self.assertEqual(
                    (expected.checksum.high, expected.checksum.low),
                    got.checksum, name)
            sums[name] = [plan.checksum for plan in by_service]
            samples = sorted(s for plan in by_service
                             for m in plan.microbatches for s in m.samples)
            self.assertEqual(samples, list(range(SAMPLES)), name)
        self.assertNotEqual(sums["in-order"], sums["balanced"])


if __name__ == "__main__":
    unittest.main()
