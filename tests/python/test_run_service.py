"""`pipeloom run --service`, as threads and as MPI processes, while its planner
is killed, stopped and cut off: it ends by itself, every step in the planned
order on all ranks, plans from the planner again after every fault.

PIPELOOM_RUN_FAULTS=300 is the long run."""
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
import unittest

from real_service import BINARY, HAVE_ALL, ROOT

FAULTS = int(os.environ.get("PIPELOOM_RUN_FAULTS", "4"))
MPIRUN = shutil.which("mpirun")
WITH_MPI = os.environ.get("PIPELOOM_WITH_MPI", "1") == "1"


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class RunServiceTest(unittest.TestCase):

    def batch(self, steps):
        """The shipped samples, as often as the steps need them."""
        with open(os.path.join(ROOT, "workloads/batches/mixed.jsonl"),
                  encoding="utf-8") as file:
            lines = file.read()
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        path = os.path.join(folder, "batch.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write(lines * (1 + steps // 60))
        return path

    def command(self, target, steps, *more, search="10ms", scale="0.1"):
        return [BINARY, "run", "dip-vlm-s", "--batch", self.batch(steps),
                "--steps", str(steps), "--microbatches", "3",
                "--deadline", search, "--time-scale", scale,
                # Only the planner is to fail: a rank may get no core for
                # seconds.
                "--failure-timeout", "60s",
                "--service", target, "--format", "json", *more]

    def run_under(self, faults, launcher=(), *more):
        from faulty_planner import CuttingProxy, Planner
        rng = random.Random(1)
        planner = Planner(state=True)
        self.addCleanup(planner.close)
        proxy = CuttingProxy(planner.port, 1)
        self.addCleanup(proxy.close)
        steps = 20 + 12 * faults
        done = subprocess.Popen(
            [*launcher, *self.command(f"127.0.0.1:{proxy.port}", steps,
                                      *more)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        struck = 0
        try:
            time.sleep(1.0)
            while done.poll() is None and struck < faults:
                kind = ("state", "empty", "stop", "cut")[struck % 4]
                if kind == "stop":
                    planner.freeze(rng.uniform(0.3, 1.0))
                elif kind == "cut":
                    proxy.cut()
                else:
                    planner.kill_and_restart(rng.uniform(0.0, 0.3),
                                             kind == "empty")
                struck += 1
                time.sleep(rng.uniform(0.3, 1.0))
            out, err = done.communicate(timeout=600)
        finally:
            if done.poll() is None:
                done.kill()
                done.communicate()
        self.assertEqual(done.returncode, 0, err[-2000:])
        figures = json.loads(out)
        print(f"{struck} faults, {steps} steps: "
              f"{figures['plans_of_service']} plans of the service, "
              f"{figures['plans_of_own']} own")
        self.assertGreater(struck, 0)
        self.assertEqual(len(figures["steps"]), steps)
        self.assertTrue(figures["same_order"])
        self.assertEqual(figures["plans_of_service"] +
                         figures["plans_of_own"], steps)
        self.assertGreater(figures["plans_of_service"], 0)
        # One line when trouble begins, one when it ends.
        self.assertLessEqual(err.count("asks again"), struck + 1, err)
        return figures

    def test_threads_go_on_under_faults(self):
        self.run_under(FAULTS)

    @unittest.skipUnless(MPIRUN and WITH_MPI, "no mpirun, or built without MPI")
    def test_mpi_processes_go_on_under_faults(self):
        self.run_under(
            FAULTS, (MPIRUN, "--allow-run-as-root", "--oversubscribe", "--mca",
                     "btl_base_warn_component_unused", "0", "-n", "4"),
            "--transport", "mpi")

    def test_steps_shorter_than_a_search_are_planned_once_there_is_a_planner(
            self):
        from faulty_planner import Planner
        planner = Planner()
        self.addCleanup(planner.close)
        planner.end()
        run = subprocess.Popen(
            self.command(f"127.0.0.1:{planner.port}", 120, "--service-wait",
                         "400ms", search="150ms", scale="0.06"),
            stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
        # The first line says that there is no planner; the step then waits
        # for 400 ms before it makes its own plan.
        self.assertTrue(any("asks again" in line for line in run.stderr))
        time.sleep(1.0)
        planner.start()
        out, _ = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0)
        figures = json.loads(out)
        print(f"planner comes later: {figures['plans_of_service']} plans of "
              f"the service, {figures['plans_of_own']} own")
        self.assertGreater(figures["plans_of_service"], 0)
        self.assertGreater(figures["plans_of_own"], 0)

    def test_without_a_planner_the_run_makes_its_own_plans(self):
        done = subprocess.run(
            self.command("127.0.0.1:1", 5, "--service-wait", "200ms"),
            capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual((figures["plans_of_service"],
                          figures["plans_of_own"]), (0, 5))
        self.assertEqual(done.stderr.count("asks again"), 1, done.stderr)

    def test_wrong_use_is_told(self):
        for words, said in (
                (["--plan", "x.pb", "--service", "a:1"], "--service plans a"),
                (["dip-vlm-s", "--service-wait", "1s"], "needs --service"),
                (["dip-vlm-s", "--service", "a:1", "--device", "torch"],
                 "--device synthetic")):
            done = subprocess.run([BINARY, "run", *words], capture_output=True,
                                  text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
