"""A group of ranks whose planner loses steps, answers for others or forgets
their job: what each rank runs, and what it asks for next. The planner is made in Python, the sockets are real."""
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import google.protobuf  # noqa: F401
    import grpc
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

if HAVE_GRPC:
    import pipeloom
    from pipeloom import memory
    from fake_planner import (BYTES_PER_TOKEN, MODULES, RANKS, STAGES,
                              STATIC_BYTES, SharePlanner, described,
                              static_schedule)
    from rank_group import Group

# So long that a test in which anything waits for it fails.
NEVER = (3600.0, 3600.0)


def text(*tokens):
    return [pipeloom.Sample(n) for n in tokens]


def with_images(*tokens):
    return [pipeloom.Sample(n, ((10, 10),)) for n in tokens]


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class FaultsTest(unittest.TestCase):

    def setUp(self):
        logging.getLogger("pipeloom").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("pipeloom").setLevel, logging.NOTSET)

    @contextlib.contextmanager
    def logs(self, level="WARNING"):
        log = logging.getLogger("pipeloom")
        log.setLevel(level)
        try:
            with self.assertLogs(log, level) as logs:
                yield logs
        finally:
            log.setLevel(logging.CRITICAL)

    def planner(self, **kwargs):
        planner = SharePlanner(**kwargs)
        self.addCleanup(planner.close)
        return planner

    def group(self, planner, *args, **kwargs):
        group = Group(planner, *args, **kwargs)
        self.addCleanup(group.close)
        return group

    def session(self, planner, rank=0, job="dip-vlm-s", **kwargs):
        client = pipeloom.Client(planner.target)
        self.addCleanup(client.close)
        session = pipeloom.Session(
            client, pipeloom.Job.of_stages(job, "job", STAGES, MODULES),
            rank=rank, **kwargs)
        self.addCleanup(session.close)
        return session

    def until(self, holds, seconds=60.0):
        end = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def alike(self, results):
        """Returns (checksum, schedule) of what all ranks run."""
        for result in results:
            if isinstance(result, Exception):
                raise result
        ran = {(p.checksum, p.schedule) for p in results}
        self.assertEqual(len(ran), 1)
        return ran.pop()


class AlikeTest(FaultsTest):
    """All ranks fall back to one plan, whatever each knows."""

    def test_ranks_whose_own_shapes_differ_fall_back_alike(self):
        """Only rank 0 has passes of images, so that for the other ranks all
        batches look the same."""
        planner = self.planner()
        group = self.group(planner)
        planned = self.alike(group.run(0, with_images(5, 6)))
        self.assertEqual(group.counts("planned"), [1] * RANKS)
        planner.lost = {n: grpc.StatusCode.INVALID_ARGUMENT
                        for n in range(1, 9)}
        own = {r: p.shape_on([r]) for r, p in enumerate(
            group.run(1, text(5, 6)))}
        self.assertEqual(group.counts("static"), [1] * RANKS)
        last = group.run(2, with_images(6, 5))
        self.assertEqual(self.alike(last), planned)
        self.assertEqual(group.counts("last_good"), [1] * RANKS)
        differ = [r for r, p in enumerate(last)
                  if p.shape_on([r]) != own[r]]
        self.assertEqual(differ, [0])

    def test_a_rank_that_missed_a_plan_keeps_all_from_falling_back_to_it(self):
        planner = self.planner()
        group = self.group(planner)
        group.run(0, text(5, 6))
        # Rank 1's provider was made anew: it has no last good plan.
        good = group.ranks[1].provider._good
        self.assertIsNotNone(good.find(described(text(5, 6))))
        good._plans.clear()
        planner.lost = {1: grpc.StatusCode.INVALID_ARGUMENT}
        self.alike(group.run(1, text(5, 6)))
        self.assertEqual(group.counts("static"), [1] * RANKS)

    def test_ranks_that_see_only_their_own_part_are_told_before_they_need_it(
            self):
        """Each describes the batch by what it sees of it."""
        describe = [described, described,
                    lambda samples: described(samples[:1])]
        planner = self.planner()
        planner.lost = {1: grpc.StatusCode.INVALID_ARGUMENT}
        group = self.group(planner, describe, own=False)
        with self.logs() as logs:
            planned = group.run(0, text(5, 6))
        told = "\n".join(logs.output)
        self.assertIn("do not describe the same microbatches", told)
        self.assertIn("of_first_rank", told)
        self.assertEqual(self.alike(planned)[1], "planned")
        for error in group.run(1, text(5, 6)):
            self.assertIsInstance(error, pipeloom.AgreementError)
            self.assertIn("of_first_rank", str(error))

    def test_one_rank_of_several_does_not_decide_alone(self):
        session = self.session(self.planner(), rank=1)
        with self.assertRaisesRegex(ValueError, "agree is None; .* 3 ranks"):
            pipeloom.PlanProvider(session, static_schedule)


class MemoryTest(FaultsTest):
    """A last good plan runs only what there is memory for."""

    def limit_for(self, tokens):
        """Returns what rank 0 needs for two such microbatches, which it holds
        at a time; later ranks need less."""
        return STATIC_BYTES + 2 * tokens * BYTES_PER_TOKEN

    def test_the_account_is_that_of_the_plan(self):
        planner = self.planner(limit=self.limit_for(100))
        group = self.group(planner)
        plans = group.run(0, text(100, 100))
        self.assertEqual(
            [memory.peak_bytes(p, r) for r, p in enumerate(plans)],
            [self.limit_for(100)] * 2 + [self.limit_for(50)])
        sizes = memory.growth(described(text(100, 100)),
                              described(text(150, 50)))
        self.assertEqual(memory.peak_bytes(plans[0], 0, sizes),
                         self.limit_for(125))

    def test_all_ranks_refuse_a_last_good_plan_that_one_has_no_memory_for(
            self):
        planner = self.planner(limit=self.limit_for(100))
        planner.lost = {n: grpc.StatusCode.INVALID_ARGUMENT
                        for n in range(1, 9)}
        group = self.group(planner)
        # The last rank holds one microbatch at a time.
        planned = self.alike(group.run(0, text(100, 100)))
        with self.logs() as logs:
            self.alike(group.run(1, text(104, 104)))
        self.assertEqual(group.counts("static"), [1] * RANKS)
        self.assertEqual([r.provider.unfit for r in group.ranks], [1, 1, 0])
        told = "\n".join(logs.output)
        self.assertIn(f"rank 0 would hold {self.limit_for(104)} bytes; its "
                      f"limit is {self.limit_for(100)}", told)
        # The same sizes again, smaller ones, and larger ones next to smaller.
        for step, tokens in ((2, (100, 100)), (3, (70, 90)), (4, (110, 90))):
            last = group.run(step, text(*tokens))
            self.assertEqual(last[0].step, step)
            self.assertEqual(self.alike(last) == planned, tokens != (110, 90),
                             tokens)
        self.assertEqual(group.counts("last_good"), [2] * RANKS)

    def test_a_plan_made_for_larger_microbatches_goes_before_a_newer_one(self):
        planner = self.planner(limit=self.limit_for(100))
        group = self.group(planner)
        larger = self.alike(group.run(0, with_images(100, 90)))
        self.alike(group.run(1, with_images(10, 10)))
        planner.lost = {n: grpc.StatusCode.INVALID_ARGUMENT
                        for n in range(2, 9)}
        good = [r.provider._good for r in group.ranks]
        for tokens, of_step in (((99, 80), 0), ((9, 9), 1), ((10, 11), 0)):
            self.assertEqual({g.find(described(with_images(*tokens))).plan.step
                              for g in good}, {of_step})
        self.assertEqual(self.alike(group.run(2, with_images(99, 80))), larger)
        self.assertEqual(group.counts("last_good"), [1] * RANKS)

    def test_without_sizes_and_with_a_limit_there_is_no_last_good_plan(self):
        def unknown(samples):
            return [pipeloom.Microbatch(m.samples, m.loss_weight,
                                        (pipeloom.SubMicrobatch(1),))
                    for m in described(samples)]

        for limit, kind in ((0, "last_good"), (1 << 30, "static")):
            planner = self.planner(limit=limit)
            planner.lost = {1: grpc.StatusCode.INVALID_ARGUMENT}
            group = self.group(planner, [unknown] * RANKS)
            with self.logs() as logs:
                group.run(0, text(5, 6))
                self.alike(group.run(1, text(6, 5)))
            self.assertEqual(group.counts(kind), [1] * RANKS)
            self.assertEqual("SubMicrobatch.tokens is 0" in
                             "\n".join(logs.output), limit > 0)


class LostStepsTest(FaultsTest):
    """Steps without an answer delay no other."""

    def check_later_steps(self, how, **kwargs):
        """Four steps are lost; the next one comes although nothing that failed
        is tried again."""
        planner = self.planner()
        planner.lost = dict.fromkeys(range(1, 5), how)
        session = self.session(planner, pauses=NEVER, **kwargs)
        session.expect(0, text(5, 6))
        self.assertIsNotNone(session.wait(0, 60.0), session.counts)
        for step in range(1, 5):
            session.expect(step, text(5, 6))
            self.assertTrue(planner.until(
                lambda s=step: planner.asked("GetRankPlan", s)))
        failed = 4 if how is not None or kwargs else 0
        self.until(lambda: session.counts["failures"] >= failed)
        session.expect(5, text(5, 6))
        self.assertIsNotNone(session.wait(5, 60.0), session.counts)
        for step in range(1, 5):
            self.assertIsNone(session.ready(step))
        return planner, session

    def test_steps_whose_connection_is_lost(self):
        self.check_later_steps(grpc.StatusCode.UNAVAILABLE)

    def test_steps_at_which_the_planner_fails(self):
        for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN,
                     grpc.StatusCode.RESOURCE_EXHAUSTED):
            self.check_later_steps(code)

    def test_steps_that_are_refused(self):
        self.check_later_steps(grpc.StatusCode.INVALID_ARGUMENT)

    def test_steps_whose_time_is_over(self):
        self.check_later_steps(None, plan_timeout=3.0)

    def test_steps_without_an_answer_end_when_they_are_over(self):
        planner, session = self.check_later_steps(None)
        self.assertTrue(planner.until(lambda: planner.hanging == 4))
        session.forget(5)
        self.assertTrue(planner.until(lambda: planner.hanging == 0))
        self.assertFalse([c for c in session._calls if c.step < 5])
        session.expect(6, text(5, 6))
        self.assertIsNotNone(session.wait(6, 60.0))
        for step in range(1, 5):
            self.assertEqual(len(planner.asked("GetRankPlan", step)), 1)

    def test_a_session_without_a_provider_keeps_a_bounded_number_of_steps(
            self):
        """Nobody tells it that steps are over."""
        session = self.session(self.planner(), rank=1, pauses=NEVER)
        for step in range(1500):
            session.expect(step)
        self.assertEqual({c.step for c in session._calls if c.kind == "fetch"},
                         set(range(1500 - 1024, 1500)))

    def test_a_step_that_the_planner_does_not_keep_is_asked_for_twice(self):
        planner = self.planner()
        planner.lost = {1: grpc.StatusCode.NOT_FOUND}
        session = self.session(planner)
        session.expect(0, text(5, 6))
        self.assertIsNotNone(session.wait(0, 60.0))
        session.expect(1, text(5, 6))
        self.assertIsNone(session.wait(1, 60.0))
        self.assertIn("NOT_FOUND", session.refusal(1))
        self.assertEqual(len(planner.asked("GetRankPlan", 1)), 2)

    def test_a_batch_over_a_limit_of_the_service_is_sent_once(self):
        planner = self.planner()
        planner.most_samples = 2
        session = self.session(planner, pauses=(0.01, 0.05))
        session.expect(0, text(5, 6))
        self.assertIsNotNone(session.wait(0, 60.0), session.counts)
        session.expect(1, text(5, 6, 7))
        self.assertIsNone(session.wait(1, 60.0))
        self.assertIn("batch has 3 samples", session.refusal(1))
        self.assertEqual(len(planner.asked("SubmitBatch", 1)), 1)
        session.expect(2, text(5, 6))
        self.assertIsNotNone(session.wait(2, 60.0), session.counts)

    def test_a_refused_step_does_not_cost_the_next_its_plan(self):
        """The next one is waited for, as the planner does answer."""
        planner = self.planner()
        planner.lost = {0: grpc.StatusCode.INVALID_ARGUMENT}
        group = self.group(planner)
        self.alike(group.run(0, text(5, 6)))
        self.assertEqual(group.counts("static"), [1] * RANKS)
        for rank in group.ranks:
            self.assertIsNone(rank.session.failing_since)
        self.alike(group.run(1, text(5, 6)))
        self.assertEqual(group.counts("planned"), [1] * RANKS)


class BatchesTest(FaultsTest):
    """The forms in which a trainer describes its batches."""

    SAMPLES = text(5, 6, 7)

    def provider(self, **kwargs):
        planner = self.planner()
        session = self.session(planner, pauses=(0.01, 0.05), **kwargs)
        provider = pipeloom.PlanProvider(session, static_schedule, wait=30.0,
                                         agree=lambda words: [words])
        self.addCleanup(provider.close)
        return planner, session, provider

    def run_steps(self, metadata, samples=None):
        """Runs two steps; returns the batch of each that the planner was sent,
        the number of planned steps and the session."""
        samples = samples or self.SAMPLES
        planner, session, provider = self.provider()
        for step, _ in pipeloom.MetadataPrefetcher(
                range(2), provider, lambda b: described(samples), metadata):
            provider.get(step)
        # Those before the job was opened came twice.
        sent = {r.step: (len(r.batch.samples), list(r.microbatch_of))
                for r in planner.asked("SubmitBatch")}
        return sent, provider.counts["planned"], session

    def test_samples_in_any_iterable_and_pairs_in_two(self):
        samples, of = self.SAMPLES, [0, 1, 2]
        for metadata, own in (
                (lambda b: samples, []), (lambda b: tuple(samples), []),
                (lambda b: (s for s in samples), []),
                (lambda b: (samples, of), of), (lambda b: [samples, of], of),
                (lambda b: (tuple(samples), tuple(of)), of),
                (lambda b: ((s for s in samples), (m for m in of)), of)):
            sent, planned, session = self.run_steps(metadata)
            self.assertEqual((sent, planned), ({0: (3, own), 1: (3, own)}, 2),
                             session.counts)

    def test_two_samples_are_no_pair(self):
        samples = self.SAMPLES[:2]
        for metadata in (lambda b: samples, lambda b: tuple(samples)):
            sent, planned, session = self.run_steps(metadata, samples)
            self.assertEqual((sent, planned), ({0: (2, []), 1: (2, [])}, 2),
                             session.counts)

    def test_a_batch_that_is_none_is_refused_and_logged(self):
        of = [0, 1, 2]
        for described_as, why in (
                (7, "'int' object is not iterable"),
                ([{"text_tokens": 5}] * 2, "samples[0] is a dict; it must be"),
                ([self.SAMPLES, of, of], "samples[0] is a list; it must be"),
                ((self.SAMPLES, 7), "'int' object is not iterable")):
            with self.logs() as logs:
                sent, planned, session = self.run_steps(lambda b: described_as)
            self.assertEqual((sent, planned), ({}, 0))
            self.assertIn(why, logs.output[0])
            self.assertIn("step 0 cannot be submitted", logs.output[0])
            self.assertIn(why, session.refusal(1))

    def test_a_session_takes_an_iterator(self):
        planner = self.planner()
        session = self.session(planner)
        session.expect(0, iter(self.SAMPLES), iter([0, 1, 2]))
        self.assertIsNotNone(session.wait(0, 60.0), session.counts)
        self.assertEqual(
            list(planner.asked("SubmitBatch")[0].microbatch_of), [0, 1, 2])


class AttemptsTest(FaultsTest):

    def test_going_back_begins_a_new_attempt_on_all_ranks(self):
        planner = self.planner()
        group = self.group(planner)
        for step in (0, 1, 2):
            self.alike(group.run(step, text(5, 6)))
        # Other samples, which the same attempt would be refused for.
        self.alike(group.run(1, text(9, 8)))
        self.assertEqual(group.counts("planned"), [4] * RANKS)
        self.assertEqual({r.session.attempt for r in group.ranks}, {1})
        self.assertEqual(
            [r.attempt for r in planner.asked("SubmitBatch", 1)], [0, 1])
        for rank in group.ranks:
            rank.provider.report(1, [(0, 0, 1)])
        self.assertTrue(planner.until(
            lambda: len(planner.asked("ReportTrace")) == RANKS))
        self.assertEqual({r.attempt for r in planner.asked("ReportTrace")},
                         {1})

    def test_a_training_that_starts_again_takes_over(self):
        planner = self.planner()
        first = self.session(planner)
        first.expect(0, text(5, 6))
        self.assertIsNotNone(first.wait(0, 60.0))
        with pipeloom.Client(planner.target) as client:
            job = client.open_job("dip-vlm-s", stages=STAGES,
                                  module_names=MODULES, job_id="job",
                                  new_attempt=True)
            self.assertEqual(job.attempt, 1)
            again = pipeloom.Session(client, pipeloom.Job.of_stages(
                "dip-vlm-s", "job", STAGES, MODULES, attempt=job.attempt),
                rank=0)
            self.addCleanup(again.close)
            again.expect(0, text(9, 8))
            self.assertIsNotNone(again.wait(0, 60.0), again.counts)
            self.assertEqual(again.ready(0).attempt, 1)
            # The earlier one is told, and asks no more for that step.
            first.expect(1, text(5, 6))
            self.assertIsNone(first.wait(1, 60.0))
            self.assertIn("attempt 1 has begun", first.refusal(1))
            again.close()


class ReopenTest(FaultsTest):

    def test_a_forgotten_job_is_opened_once_with_the_same_content(self):
        planner = self.planner()
        group = self.group(planner)
        self.alike(group.run(0, text(5, 6)))
        before = planner.asked("OpenJob")
        planner.forget_everything()
        self.alike(group.run(1, text(5, 6)))
        self.assertEqual(group.counts("planned"), [2] * RANKS)
        after = planner.asked("OpenJob")[len(before):]
        self.assertLessEqual(len(after), RANKS)
        self.assertEqual({r.SerializeToString() for r in before + after},
                         {before[0].SerializeToString()})
        # Before the first step, and when it was forgotten.
        self.assertEqual(sum(r.session.counts["reopened"]
                             for r in group.ranks), 2)

    def test_ranks_that_know_no_batch_get_their_plans_all_the_same(self):
        """Rank 0 has its plan when the planner forgets all; it sends the batch
        again for those that have none."""
        planner = self.planner()
        group = [self.session(planner, r, pauses=(0.01, 0.05))
                 for r in range(RANKS)]
        group[0].expect(0, text(5, 6))
        self.assertIsNotNone(group[0].wait(0, 60.0))
        planner.forget_everything()
        group[0].expect(1, text(5, 6))
        for session in group[1:]:
            session.expect(0)
            self.assertIsNotNone(session.wait(0, 60.0), session.counts)


class AddressTest(FaultsTest):
    """The trainer starts before the planner has written its address."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "address")

    def write(self, text):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def client(self, **kwargs):
        client = pipeloom.Client(pipeloom.address_file(self.path), **kwargs)
        self.addCleanup(client.close)
        return client

    def test_a_call_waits_for_the_address(self):
        planner = self.planner()
        for before in (None, "", "\n"):
            if os.path.exists(self.path):
                os.remove(self.path)
            if before is not None:
                self.write(before)
            client = self.client(timeout=60.0)
            self.assertEqual(client.address, "")
            later = threading.Timer(0.5, self.write, [planner.target + "\n"])
            later.start()
            self.addCleanup(later.join)
            job = client.open_job("dip-vlm-s", stages=STAGES,
                                  module_names=MODULES, job_id="job")
            self.assertEqual((job.job_id, client.address),
                             ("job", planner.target), before)

    def test_a_call_without_an_address_says_which_file(self):
        client = self.client(timeout=0.2)
        for text, why in ((None, "FileNotFoundError"), ("", "is empty")):
            if text is not None:
                self.write(text)
            for call in (client.list_jobs, lambda: next(client.watch())):
                with self.assertRaises(pipeloom.PlannerError) as caught:
                    call()
                self.assertEqual(caught.exception.code,
                                 grpc.StatusCode.UNAVAILABLE)
                self.assertIn("address is not known yet",
                              str(caught.exception))
                self.assertIn(self.path, str(caught.exception))
                self.assertIn(why, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "target is empty"):
            pipeloom.Client("")

    def test_a_session_plans_as_soon_as_there_is_an_address(self):
        planner = self.planner()
        for before in (None, ""):
            if os.path.exists(self.path):
                os.remove(self.path)
            if before is not None:
                self.write(before)
            session = pipeloom.Session(
                self.client(), pipeloom.Job.of_stages("dip-vlm-s", "job",
                                                      STAGES, MODULES),
                rank=0, pauses=(0.01, 0.05))
            self.addCleanup(session.close)
            with self.logs() as logs:
                session.expect(0, text(5, 6))
                self.until(lambda s=session: s.counts["failures"] > 3)
                self.write(planner.target + "\n")
                self.assertIsNotNone(session.wait(0, 60.0), session.counts)
                session.close()
            self.assertIn(f"{self.path}", logs.output[0])
            self.assertNotIn("planner at :", logs.output[0])


class ReportsTest(FaultsTest):

    def test_a_report_survives_a_lost_connection(self):
        planner = self.planner()
        session = self.session(planner, pauses=(0.01, 0.05))
        session.expect(0, text(5, 6))
        plan = session.wait(0, 60.0)
        planner.report_code = grpc.StatusCode.UNAVAILABLE
        session.report(0, plan.checksum, [(0, 0, 1)])
        self.assertTrue(planner.until(
            lambda: len(planner.asked("ReportTrace")) > 1))
        planner.report_code = None
        self.until(lambda: session.counts["reported"] > 0)
        self.assertEqual(session.counts["dropped_reports"], 0)
        # One that is refused is not sent again.
        sent = len(planner.asked("ReportTrace"))
        planner.report_code = grpc.StatusCode.NOT_FOUND
        session.report(0, plan.checksum, [(0, 0, 1)])
        self.until(lambda: session.counts["dropped_reports"] > 0)
        self.assertEqual(len(planner.asked("ReportTrace")), sent + 1)

    def test_the_oldest_report_gives_way(self):
        planner = self.planner()
        session = self.session(planner, pauses=NEVER)
        session.expect(0, text(5, 6))
        plan = session.wait(0, 60.0)
        planner.report_code = grpc.StatusCode.UNAVAILABLE
        for i in range(70):
            session.report(i, plan.checksum, [(0, 0, 1)])
        self.assertEqual(session.counts["dropped_reports"], 6)
        self.assertEqual(min(c.step for c in session._calls
                             if c.kind == "report"), 6)


if __name__ == "__main__":
    unittest.main()
