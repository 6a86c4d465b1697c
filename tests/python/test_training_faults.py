"""A training whose planner is killed, stopped, cut off, or answers wrongly: it
goes on, with the losses and gradients of one process, all ranks on one plan.
The long run of the same is fault_training.py."""
import os
import signal
import time
import unittest

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
SERVICE = os.path.join(os.path.dirname(BINARY), "pipeloom-service")

try:
    import grpc  # noqa: F401
    import torch.distributed as dist
    HAVE_ALL = dist.is_available()
except ImportError:
    HAVE_ALL = False


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
@unittest.skipUnless(os.access(SERVICE, os.X_OK), "no service was built")
class TrainingFaultsTest(unittest.TestCase):

    def check(self, kinds, replicas):
        """One fault of each kind."""
        from fault_training import run_under
        faults = len(kinds)
        figures = run_under(kinds, faults, replicas=replicas,
                            longest_stop=1.0, pause=0.2)
        print(figures)
        self.assertLess(figures["largest difference"], 1e-5)
        self.assertGreater(figures["planned"], faults // 2)
        self.assertGreater(figures["lies"], 0)
        self.assertGreater(figures["cuts"], 0)
        self.assertGreater(figures["misfits"] + figures["failures"], 0)
        # Where the first answer to an OpenJob is lost, the job exists already
        # when it is opened once more.
        self.assertGreater(figures["reopened"] + figures["reconnected"], 0)
        # One collective a step, and some at the end.
        self.assertLess(figures["votes a step"],
                        1.0 + 8.0 / figures["steps"])
        # Generous: the machine may be busy with anything.
        self.assertLess(figures["longest wait"], 30.0)

    def test_four_ranks_go_on_under_every_kind_of_fault(self):
        from faulty_planner import Faults
        self.check(Faults.KINDS, replicas=1)

    def test_two_replicas_of_four_ranks_go_on_likewise(self):
        self.check(("kill-empty", "stop", "cut", "other-step"), replicas=2)

    def test_the_megatron_runner_goes_on_or_runs_megatrons_schedule(self):
        from fault_training import run_under
        from megatron_training import MegatronTrainer
        figures = run_under(
            ("kill-state", "kill-empty", "stop", "cut", "other-step",
             "garbage"), 6, trainer=MegatronTrainer, longest_stop=1.0,
            pause=0.2)
        print(figures)
        self.assertLess(figures["largest difference"], 1e-5)
        self.assertGreater(figures["planned"], 3)
        self.assertEqual(figures["last_good"] + figures["planned"] +
                         figures["static"], figures["steps"])

    def test_a_wait_is_told_from_what_the_machine_kept_from_running(self):
        from fault_training import Wait, time_and_delay
        took, delay = time_and_delay([
            # Came first and voted last, after 0.2 s without a core.
            Wait(10.0, 11.4, 11.8, 0.2, 0.1),
            Wait(10.5, 11.2, 11.7, 0.9, 0.3)])
        self.assertAlmostEqual(took, 11.8 - 10.5)
        self.assertAlmostEqual(delay, 0.2 + 0.3)

    def test_a_process_that_gets_no_core_says_so(self):
        from fault_training import Moment

        def work(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

        def contended():
            os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            other = os.fork()
            if other == 0:
                work(10.0)
                os._exit(0)
            before = Moment()
            work(1.0)
            grown = Moment().delay_since(before)
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
            return grown

        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                os.write(writer, repr(contended()).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            self.assertGreater(float(file.read()), 0.2)
        os.wait()


if __name__ == "__main__":
    unittest.main()
