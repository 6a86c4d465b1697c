"""The Python client and a real `pipeloom serve`: a job that the service lost, a
training that goes back, and the memory of plans by both accounts."""
import dataclasses
import os
import re
import time
import unittest

from real_service import HAVE_ALL, ROOT, Server

if HAVE_ALL:
    from google.protobuf import json_format
    import pipeloom
    from pipeloom import memory, messages

KEEP_STEPS = 4


def batch_of(seed, scale=1.0):
    """Returns samples, and which microbatch each is in."""
    return [pipeloom.Sample(round(scale * (600 + (seed + i) % 7 * 100)),
                            ((448, 448),)) for i in range(8)], [
                                i // 2 for i in range(8)]


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class ClientServiceTest(unittest.TestCase):

    def start(self, *flags):
        server = Server("--threads", "1", *flags)

        def end():
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()
            server.process.stdout.close()

        self.addCleanup(end)
        return server

    def open(self, target, **kwargs):
        """Returns the job, whose plans do not depend on time."""
        with open(os.path.join(ROOT, "workloads/jobs/dip-vlm-s.json"),
                  encoding="utf-8") as file:
            job = json_format.Parse(file.read(), messages.Job())
        job.search.schedule = "1f1b"  # Whole backwards.
        job.search.ClearField("deadline_us")
        job.search.evaluations = 20
        client = pipeloom.Client(target)
        self.addCleanup(client.close)
        return client.open_job(job, batch_of(0)[0],
                               **{"job_id": "job", **kwargs})

    def sessions(self, target, job):
        result = []
        for rank in range(job.num_ranks):
            client = pipeloom.Client(target)
            self.addCleanup(client.close)
            result.append(pipeloom.Session(client, job, rank=rank,
                                           pauses=(0.02, 0.2)))
            self.addCleanup(result[-1].close)
        return result

    def shares(self, sessions, step, seed=None):
        """Returns all ranks' shares of a step."""
        for session in sessions:
            session.expect(step, *batch_of(step if seed is None else seed))
        shares = [s.wait(step, 60.0) for s in sessions]
        for session, share in zip(sessions, shares):
            self.assertIsNotNone(share, (session.refusal(step),
                                         session.counts))
        self.assertEqual(len({s.step_checksum for s in shares}), 1)
        return shares

    def test_a_job_that_the_service_lost_is_opened_once_for_all_ranks(self):
        server = self.start()
        port = server.port
        job = self.open(server.target)
        sessions = self.sessions(server.target, job)
        before = self.shares(sessions, 0)
        server.process.kill()
        server.process.wait()
        # One at the same address that knows nothing.
        self.start("--listen", f"127.0.0.1:{port}")
        after = self.shares(sessions, 1)
        self.assertEqual(sum(s.counts["reopened"] for s in sessions), 1,
                         [s.counts for s in sessions])
        for old, new in zip(before, after):
            self.assertEqual({t.stage for t in old.tasks.values()},
                             {t.stage for t in new.tasks.values()})
        self.assertEqual([j.job_id for j in sessions[0].client.list_jobs()],
                         ["job"])
        # The trainer's request is that job, not another of its id.
        again = self.open(f"127.0.0.1:{port}")
        self.assertEqual((again.stages, again.request),
                         (job.stages, job.request))

    def test_a_training_that_goes_back_gets_plans(self):
        server = self.start("--keep-steps", str(KEEP_STEPS))
        sessions = self.sessions(server.target, self.open(server.target))
        for step in range(3 * KEEP_STEPS):
            self.shares(sessions, step)
        for session in sessions:
            session.go_back(2)
        for share in self.shares(sessions, 2, seed=40):
            self.assertEqual((share.step, share.attempt), (2, 1))

    def test_a_training_that_starts_again_gets_plans(self):
        server = self.start("--keep-steps", str(KEEP_STEPS))
        first = self.sessions(server.target, self.open(server.target))
        for step in range(3 * KEEP_STEPS):
            self.shares(first, step)
        job = self.open(server.target, new_attempt=True)
        self.assertEqual(job.attempt, 1)
        again = self.sessions(server.target, job)
        self.shares(again, 0, seed=40)
        first[0].expect(99, *batch_of(0))
        self.assertIsNone(first[0].wait(99, 60.0))
        self.assertIn("attempt", first[0].refusal(99))

    def test_two_runs_of_one_job(self):
        """With one job_id the later run takes the job, and the earlier one is
        told so; with a job_id each, neither notices the other."""
        server = self.start()
        first = self.sessions(server.target, self.open(server.target))
        self.shares(first, 0)
        own = self.sessions(server.target, self.open(
            server.target, job_id="own", new_attempt=True))
        self.shares(own, 0, seed=40)
        self.shares(first, 1)
        # Without new_attempt, other batches are refused.
        second = self.sessions(server.target, self.open(server.target))
        second[0].expect(0, *batch_of(40))
        self.assertIsNone(second[0].wait(0, 60.0))
        self.assertIn("each run has a job_id of its own",
                      second[0].refusal(0))
        third = self.sessions(server.target,
                              self.open(server.target, new_attempt=True))
        self.shares(third, 0, seed=40)
        first[0].expect(2, *batch_of(2))
        self.assertIsNone(first[0].wait(2, 60.0))
        self.assertIn("attempt 1 of job job has begun", first[0].refusal(2))
        self.assertIn("give each run a job_id of its own",
                      first[0].refusal(2))
        self.shares(own, 1, seed=41)

    def test_media_that_no_module_takes_are_noted(self):
        server = self.start()
        session = self.sessions(server.target, self.open(server.target))[0]
        samples, microbatch_of = batch_of(0)
        samples[1] = dataclasses.replace(samples[1], audio_seconds=(30.0,))
        with self.assertLogs("pipeloom", "WARNING") as logs:
            for step in range(3):
                session.expect(step, samples, microbatch_of)
                self.assertIsNotNone(session.wait(step, 60.0),
                                     session.refusal(step))
        said = [line for line in logs.output if "audio" in line]
        self.assertEqual(len(said), 1, logs.output)
        self.assertIn("1 sample has audio in step 0, which no module of model "
                      "dip-vlm-s takes: they are planned without", said[0])

    def test_the_documented_training_has_a_job_of_its_own(self):
        with open(os.path.join(ROOT, "docs/integration.md"),
                  encoding="utf-8") as file:
            opened = re.search(r"open_job\((.*?)\)\)\n", file.read(), re.S)
        self.assertIn("new_attempt=True", opened[1])
        self.assertRegex(opened[1], r"\bjob_id=")

    def test_reports_of_an_attempt_are_taken(self):
        server = self.start()
        sessions = self.sessions(server.target, self.open(server.target))
        self.shares(sessions, 0)
        for session in sessions:
            session.go_back(0)
        for rank, share in enumerate(self.shares(sessions, 0)):
            sessions[rank].report(0, share.checksum, [])  # Is not sent.
            own = [i for i, t in share.tasks.items() if t.rank == rank]
            sessions[rank].report(0, share.checksum, [
                (t, 1000 * i, 1000 * i + 900) for i, t in enumerate(own)])
        end = time.monotonic() + 60
        while (time.monotonic() < end and
               not all(s.counts["reported"] for s in sessions)):
            time.sleep(0.01)
        self.assertEqual([s.counts["reported"] for s in sessions],
                         [1] * len(sessions), [s.counts for s in sessions])
        self.assertEqual([s.counts["dropped_reports"] for s in sessions],
                         [0] * len(sessions))

    def test_a_sample_longer_than_a_microbatch_comes_in_pieces(self):
        server = self.start()
        with open(os.path.join(ROOT, "workloads/jobs/llama3-8b.json"),
                  encoding="utf-8") as file:
            job = json_format.Parse(file.read(), messages.Job())
        job.training.microbatches, job.parallel.dp = 4, 1
        job.search.schedule = "1f1b"
        samples = [pipeloom.Sample(n) for n in (20000, 300, 400)]
        with pipeloom.Client(server.target) as client:
            opened = client.open_job(job, samples, partition_time=0)
            refusing = pipeloom.Session(client, opened, rank=0)
            self.addCleanup(refusing.close)
            refusing.expect(0, samples)
            self.assertIsNone(refusing.wait(0, 60.0))
            self.assertIn("sample 0 is longer than a microbatch",
                          refusing.refusal(0))
            session = pipeloom.Session(client, opened, rank=0,
                                       cuts_samples=True)
            self.addCleanup(session.close)
            session.expect(0, samples)
            parts, whole = [], []
            for micro in session.wait(0, 60.0).microbatches:
                pieces = micro.pieces or (None,) * len(micro.samples)
                self.assertEqual(len(pieces), len(micro.samples))
                parts += [(s, p) for s, p in zip(micro.samples, pieces) if p]
                whole += [s for s, p in zip(micro.samples, pieces) if not p]
            self.assertEqual(sorted(whole), [1, 2])
            self.assertEqual({s for s, _ in parts}, {0})
            self.assertEqual(sum(p.text_tokens for _, p in parts), 20000)
            self.assertLessEqual(max(p.text_tokens for _, p in parts),
                                 job.training.microbatch_tokens)

    def test_weights_of_losses_over_replicas(self):
        """They add up to 1 over all replicas whose samples were submitted
        together; whether gradients are summed or averaged depends on it."""
        server = self.start()
        with open(os.path.join(ROOT, "workloads/jobs/llama3-8b.json"),
                  encoding="utf-8") as file:
            job = json_format.Parse(file.read(), messages.Job())
        job.training.microbatches, job.parallel.dp = 2, 2
        samples = [pipeloom.Sample(n) for n in (300, 400, 500, 600)]
        with pipeloom.Client(server.target) as client:
            opened = client.open_job(job, samples, partition_time=0)
            client.submit_batch(opened.job_id, 0, samples)
            for replica, part in enumerate((samples[:3], samples[3:])):
                client.submit_batch(opened.job_id, 1, part, replica=replica)
            for step, sum_of_all, totals in ((0, 1.0, [1800, 1800]),
                                             (1, 2.0, [1200, 600])):
                plans = [client.plan(opened.job_id, step, r) for r in range(2)]
                self.assertAlmostEqual(sum_of_all, sum(
                    m.loss_weight for p in plans for m in p.microbatches))
                self.assertEqual(totals,
                                 [p.loss_totals[0].tokens for p in plans])

    def test_only_the_key_closes_a_job(self):
        server = self.start()
        job = self.open(server.target, close_key="secret")
        session = self.sessions(server.target, job)[0]
        with self.assertRaisesRegex(pipeloom.PlannerError,
                                    "PERMISSION_DENIED"):
            session.client.close_job("job")
        session.close(close_job=True)
        self.assertEqual(len(session.client.list_jobs()), 0)

    def test_the_account_of_memory_is_the_services(self):
        server = self.start()
        job = self.open(server.target)
        with pipeloom.Client(server.target) as client:
            plans = []
            # Twice as large, in the same microbatches and sub-microbatches.
            for step, scale in ((0, 1.0), (1, 2.0), (2, 1.3)):
                samples, microbatch_of = batch_of(0, scale)
                client.submit_batch("job", step, samples, replica=0,
                                    microbatch_of=microbatch_of)
                plans.append(client.plan("job", step))
                emulated = client._call(
                    "Emulate", messages.EmulateRequest(
                        key=messages.GetPlanRequest(job_id="job", step=step)),
                    messages.EmulateResponse)
                own = [memory.peak_bytes(plans[-1], r)
                       for r in range(job.num_ranks)]
                self.assertEqual(own, list(emulated.figures.peak_bytes))
                for rank, limit in plans[-1].memory.items():
                    self.assertGreater(limit.limit, 0)
                    self.assertEqual(own[rank], memory.peak_bytes(
                        client.rank_plan("job", step, 0, rank), rank))
            for small, large in ((plans[0], plans[1]), (plans[0], plans[2]),
                                 (plans[2], plans[1])):
                self.check_estimate(small, large)

    def check_estimate(self, small, large):
        """The order of one plan with the sizes of another: the estimate from
        the tokens, and the sum of what the service says of each task."""
        self.assertEqual(small.shape, large.shape)
        keys = {(t.kind, t.stage, t.microbatch, t.sub): i
                for i, t in large.tasks.items()}
        of = {i: keys[t.kind, t.stage, t.microbatch, t.sub]
              for i, t in small.tasks.items()}
        self.assertEqual(of, {i: i for i in of})
        real = dataclasses.replace(small, tasks=large.tasks, edges=large.edges,
                                   copies=large.copies)
        sizes = memory.growth(small.microbatches, large.microbatches)
        for rank in range(small.num_ranks):
            estimate = memory.peak_bytes(small, rank, sizes)
            truth = memory.peak_bytes(real, rank)
            self.assertGreaterEqual(estimate, truth)
            self.assertLess(estimate, 1.02 * truth)
            for limit in (truth - 1, estimate):
                limited = dataclasses.replace(small, memory={
                    **small.memory, rank: dataclasses.replace(
                        small.memory[rank], limit=limit)})
                short = memory.shortage(limited, small.microbatches,
                                        large.microbatches)
                self.assertEqual(short, None if limit == estimate else (
                    f"rank {rank} would hold {estimate} bytes; its limit is "
                    f"{limit}"))


if __name__ == "__main__":
    unittest.main()
