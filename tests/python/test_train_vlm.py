"""examples/train_vlm.py for two steps, planned by the command and, where it was
built, by the service: losses and gradients are those of one process."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
SERVICE = os.path.join(os.path.dirname(BINARY), "pipeloom-service")

try:
    import grpc  # noqa: F401
    import torch.distributed as dist
    HAVE_ALL = dist.is_available()
except ImportError:
    HAVE_ALL = False


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
@unittest.skipUnless(os.access(BINARY, os.X_OK), "no pipeloom binary")
class TrainVlmTest(unittest.TestCase):

    def train(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "figures.json")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "examples/train_vlm.py"),
                 "--steps", "2", "--microbatches", "4", "--samples", "2",
                 "--evaluations", "200", "--scale", "0.02", "--json", out,
                 *options], capture_output=True, text=True, check=False,
                timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("ok", done.stdout)
            with open(out, encoding="utf-8") as file:
                return json.load(file)

    def test_planned_by_the_command(self):
        traces = tempfile.TemporaryDirectory()
        self.addCleanup(traces.cleanup)
        figures = self.train("--pipeloom", BINARY, "--traces", traces.name)
        done = subprocess.run(
            [BINARY, "trace", traces.name, "--format", "json"],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        read = json.loads(done.stdout)
        self.assertEqual((read["ranks"], read["iterations"]), (4, 2))
        self.assertLess(figures["worst"], 1e-5)
        self.assertEqual([r["dynamic_name"] for r in figures["rows"]],
                         ["search"] * 2)
        for row in figures["rows"]:
            for which in ("static", "dynamic"):
                self.assertGreater(row[which + "_predicted"], 0.0)
                # Tasks last as long as the plan says.
                self.assertLess(row[which + "_predicted"], row[which])

    @unittest.skipUnless(os.access(SERVICE, os.X_OK), "no service was built")
    def test_planned_by_the_service(self):
        server = subprocess.Popen(
            [SERVICE, "serve", "--listen", "127.0.0.1:0", "--data-dir",
             os.path.join(ROOT, "workloads")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            port = None
            for line in server.stdout:
                found = re.search(r"listening on [\d.]+:(\d+)", line)
                if found:
                    port = found.group(1)
                    break
            self.assertIsNotNone(port)
            figures = self.train("--service", f"127.0.0.1:{port}", "--wait",
                                 "60")
            self.assertEqual(figures["counts"]["dynamic"]["planned"], 2)
            self.assertEqual(figures["counts"]["static"]["planned"], 2)
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()


if __name__ == "__main__":
    unittest.main()
