"""examples/train_own.py: losses do not depend on the number of processes, on who
plans, or on a restart; without a service and, where it was built, with one."""
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/python"))

try:
    import torch.distributed as dist
    from real_service import HAVE_ALL as HAVE_SERVICE, Server
    HAVE_TORCH = dist.is_available()
except ImportError:
    HAVE_TORCH = HAVE_SERVICE = False


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@unittest.skipUnless(HAVE_TORCH, "torch is missing")
class TrainOwnTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, ranks, *options):
        """Starts the processes as torchrun does."""
        port = free_port()
        return [subprocess.Popen(
            [sys.executable, os.path.join(ROOT, "examples/train_own.py"),
             "--evaluate-every", "2", *options], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"})
            for r in range(ranks)]

    def train(self, ranks, *options):
        """Returns the lines of the first process."""
        processes = self.start(ranks, *options)
        try:
            said = [p.communicate(timeout=300) for p in processes]
        finally:
            for p in processes:
                p.kill()
        for p, (_, errors) in zip(processes, said):
            self.assertEqual(p.returncode, 0, errors)
        # Newer gloo prints, too.
        return [line for line in said[0][0].splitlines()
                if line.startswith(("step", "held out"))]

    def check_alike(self, some, others):
        """The numbers of both are equal but for rounding."""
        self.assertEqual(len(some), len(others))
        for a, b in zip(some, others):
            x, y = (re.findall(r"\d+\.\d+", line) for line in (a, b))
            self.assertEqual(len(x), len(y), (a, b))
            for left, right in zip(x, y):
                self.assertAlmostEqual(float(left), float(right), delta=2e-4,
                                       msg=(a, b))

    def test_without_a_service(self):
        one = self.train(1, "--steps", "4")
        self.assertEqual(len(one), 6)
        self.assertLess(float(one[-1].split()[-1]), float(one[2].split()[-1]))
        self.check_alike(one, self.train(2, "--steps", "4"))
        # Three ranks have stages without some module.
        self.check_alike(one, self.train(3, "--steps", "4"))
        saved = os.path.join(self.folder, "saved")
        begun = self.train(2, "--steps", "2", "--save", saved)
        # A checkpoint is of no partition.
        for ranks in (2, 1, 3):
            rest = self.train(ranks, "--steps", "4", "--resume", saved)
            self.check_alike(one, begun + rest)

    @unittest.skipUnless(HAVE_SERVICE, "no service was built")
    def test_with_a_service(self):
        server = Server("--warm-up", "0")
        service = ("--service", server.target, "--wait", "60",
                   "--partition-time", "1")
        try:
            # A run that dies leaves its job, and batches that no other has.
            dying = self.start(2, "--steps", "100000", "--seed", "7", *service)
            for line in dying[0].stdout:
                if line.startswith("step 2"):
                    break
            for p in dying:
                p.kill()
                p.communicate()
            lines = self.train(2, "--steps", "4", *service)
        finally:
            server.process.terminate()
            server.process.wait(60)
            server.process.stdout.close()
        self.assertTrue(os.path.exists(os.path.join(self.folder,
                                                    "own_model.json")))
        planned = [line.split()[-1] for line in lines if "step" in line]
        self.assertEqual(planned, ["pipeloom"] * 4)
        self.check_alike(self.train(1, "--steps", "4"), lines)


if __name__ == "__main__":
    unittest.main()
