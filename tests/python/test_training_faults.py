"""A training whose planner is killed, stopped, cut off, or answers wrongly: it
goes on, with the losses and gradients of one process, all ranks on one plan.
The long run of the same is fault_training.py."""
import os
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

    def check(self, faults, replicas):
        from fault_training import run_under
        from faulty_planner import Faults
        figures = run_under(Faults.KINDS, faults, replicas=replicas,
                            longest_stop=1.0)
        print(figures)
        self.assertLess(figures["largest difference"], 1e-5)
        self.assertGreater(figures["planned"], faults // 2)
        self.assertGreater(figures["lies"], 0)
        self.assertGreater(figures["cuts"], 0)
        self.assertGreater(figures["misfits"] + figures["failures"], 0)
        self.assertGreater(figures["reopened"], 0)
        # One collective a step, and some at the end.
        self.assertLess(figures["votes a step"],
                        1.0 + 8.0 / figures["steps"])
        # Generous: the machine may be busy with anything.
        self.assertLess(figures["longest wait"], 30.0)

    def test_four_ranks_go_on_under_every_kind_of_fault(self):
        self.check(14, replicas=1)

    def test_two_replicas_of_four_ranks_go_on_likewise(self):
        self.check(7, replicas=2)

    def test_the_megatron_runner_goes_on_or_runs_megatrons_schedule(self):
        from fault_training import run_under
        from megatron_training import MegatronTrainer
        figures = run_under(
            ("kill-state", "kill-empty", "stop", "cut", "other-step",
             "garbage"), 6, trainer=MegatronTrainer, longest_stop=1.0)
        print(figures)
        self.assertLess(figures["largest difference"], 1e-5)
        self.assertGreater(figures["planned"], 3)
        self.assertEqual(figures["last_good"] + figures["planned"] +
                         figures["static"], figures["steps"])


if __name__ == "__main__":
    unittest.main()
