"""pipeloom without torch: messages, plans made here, the client against a
server that is there, slow, gone, or answers garbage."""
import concurrent.futures
import logging
import os
import random
import subprocess
import sys
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
    from pipeloom import messages
    from pipeloom import plan as plans
    from pipeloom import static_schedule as sp
    from fake_planner import (FakeService, microbatches, static,
                              two_rank_stages)


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class PlansMadeHereTest(unittest.TestCase):

    def test_every_shape_gets_a_plan_that_runs_to_its_end(self):
        for seed in range(60):
            rng = random.Random(seed)
            ranks = rng.randint(1, 5)
            stages = [pipeloom.Stage(m, r, 1, r, m)
                      for m in range(2) for r in range(ranks)]
            micro = []
            for i in range(rng.randint(1, 7)):
                subs = [pipeloom.SubMicrobatch(0, j)
                        for j in range(rng.randint(0, 3))]
                micro.append(pipeloom.Microbatch(
                    (i,), 1.0, tuple(subs) + (pipeloom.SubMicrobatch(1),)))
            plan = pipeloom.static_plan(stages, ((0, 1),), micro,
                                        ("vision", "text"))
            self.assertIsNone(plans.check_order(plan), f"seed {seed}")
            again = pipeloom.static_plan(stages, ((0, 1),), micro,
                                         ("vision", "text"))
            self.assertEqual(plan.checksum, again.checksum)

    def test_one_f_one_b_is_what_the_order_says(self):
        graph = sp.build_graph(two_rank_stages(), (), [{0: 1}] * 3)
        orders = sp.megatron_orders(graph, two_rank_stages(), 2)
        kinds = ["".join(graph.tasks[t].kind for t in o) for o in orders]
        self.assertEqual(kinds, ["FFBFBB", "FBFBFB"])

    def test_the_predicted_time_is_that_of_the_tasks(self):
        def cost(kind, *_):
            return {"F": 10, "B": 20}[kind]

        plan = pipeloom.static_plan(two_rank_stages(), (), microbatches(3),
                                    ("text",), cost=cost)
        # 1F1B: each of three microbatches, and one pass each way to fill it.
        self.assertEqual(plan.predicted_step_time_ns, 4 * 30)
        self.assertEqual(static(0, microbatches(3)).predicted_step_time_ns, 0)
        graph = sp.build_graph(two_rank_stages(), (), [{0: 1}] * 3, cost)
        self.assertEqual(sp.makespan_ns(graph, sp.gpipe_orders(graph, 2)),
                         4 * 30)

    def test_a_deadlock_is_found(self):
        import dataclasses
        plan = static(0, microbatches(2))
        program = list(plan.programs[1])
        first = next(i for i, p in enumerate(program) if p.op == "compute")
        program.append(program.pop(first))
        broken = dataclasses.replace(
            plan, programs={**plan.programs, 1: tuple(program)})
        self.assertIsNotNone(plans.check_order(broken))

    def test_the_schema_is_that_of_the_proto_files(self):
        if not any(os.access(os.path.join(p, "protoc"), os.X_OK)
                   for p in os.environ["PATH"].split(os.pathsep)):
            self.skipTest("protoc is missing")
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "python/update_schema.py"),
             "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_importing_needs_no_torch(self):
        code = ("import sys; sys.modules['torch'] = None; import pipeloom; "
                "print(pipeloom.__version__)")
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True,
            check=False, cwd=os.path.join(ROOT, "python"))
        self.assertEqual(done.stdout, "0.1.0\n", done.stderr)


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ClientTest(unittest.TestCase):

    def setUp(self):
        self.fake = FakeService()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self.fake,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.client = pipeloom.Client(f"127.0.0.1:{self.port}", timeout=5.0,
                                      token="secret")
        self.addCleanup(self.server.stop, None)
        self.addCleanup(self.client.close)
        logging.getLogger("pipeloom").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("pipeloom").setLevel,
                        logging.NOTSET)

    def session(self, **kwargs):
        job = pipeloom.Job.of_stages("dip-vlm-s", "job", two_rank_stages(),
                                     ("text",))
        session = pipeloom.Session(self.client, job, pauses=(0.02, 0.1),
                                   **kwargs)
        self.addCleanup(session.close)
        return session

    def provider(self, wait=0.3, session=None, make=static, **kwargs):
        provider = pipeloom.PlanProvider(session or self.session(), make,
                                         wait=wait, **kwargs)
        self.addCleanup(provider.close)
        return provider

    def get(self, provider, step, n=3):
        """As a trainer does that has no time ahead."""
        provider.expect(step, microbatches(n), [pipeloom.Sample(1)] * n)
        return provider.get(step)

    def test_a_plan_comes_as_it_was_sent_with_the_token(self):
        plan = self.client.plan("job", 4)
        self.assertEqual(plan.step, 4)
        self.assertEqual(plan.checksum, (5, 7))
        self.assertEqual(plan.quality, "PLAN_QUALITY_FULL")
        self.assertEqual(plan.programs, static(4, microbatches(3)).programs)
        self.assertEqual(plan.microbatches[1].samples, (1,))
        self.assertIsNone(plans.check_order(plan))
        self.assertEqual(self.fake.requests[0][2]["authorization"],
                         "Bearer secret")

    def test_white_space_around_a_token_does_not_count(self):
        for text in ("secret\n", " secret\r\n", "secret"):
            with pipeloom.Client(self.client.address, token=text) as client:
                client.plan("job", 4)
            self.assertEqual(self.fake.requests[-1][2]["authorization"],
                             "Bearer secret")

    def test_a_token_that_no_call_can_carry_is_refused_without_its_text(self):
        for token, why in (("hush\nhush", "U\\+000A as its character 5; all"),
                           ("hush\u00e9", "U\\+00E9"), ("hush\0", "U\\+0000"),
                           (" \n", "white space only")):
            with self.assertRaisesRegex(ValueError, f"^token has {why}") as c:
                pipeloom.Client(self.client.address, token=token)
            self.assertNotIn("hush", str(c.exception))
        with self.assertRaisesRegex(TypeError, "token is a bytes") as c:
            pipeloom.Client(self.client.address, token=b"hush")
        self.assertNotIn("hush", str(c.exception))

    def test_stages_need_the_names_of_their_modules(self):
        stages = [pipeloom.Stage(0, 0, 1, 0, 0), pipeloom.Stage(1, 0, 1, 1, 0)]
        for names, why in (
                ((), r"stages\[0\].module is 0; module_names has 0 names"),
                (("text",), r"stages\[1\].module is 1; module_names has 1 ")):
            with self.assertRaisesRegex(ValueError, why):
                self.client.open_job("dip-vlm-s", stages=stages,
                                     module_names=names)
            with self.assertRaisesRegex(ValueError, why):
                pipeloom.Job.of_stages("dip-vlm-s", "job", stages, names)

    def test_names_and_samples_that_cannot_be_sent_are_named(self):
        def open_job(job="dip-vlm-s", name="text", **options):
            pipeloom.Job.of_stages(job, options.pop("job_id", "run"),
                                   [pipeloom.Stage(0, 0, 1, 0)], [name],
                                   **options)

        odd = "r\udcfcn"  # A Latin-1 file name, as os.listdir gives it.
        for field, options in (("job_id", {"job_id": odd}),
                               ("job", {"job": odd}),
                               ("module_names.0.", {"name": odd})):
            with self.assertRaisesRegex(ValueError,
                                        f"{field} is .*, which UTF-8 cannot"):
                open_job(**options)
        for sample, what in (
                (pipeloom.Sample(5.5), "text_tokens=5.5"),
                (pipeloom.Sample(5, images=(640, 480)), "images=.640, 480"),
                (pipeloom.Sample(5, videos=({"frame": 3},)), "frame")):
            with self.assertRaisesRegex(TypeError, r"samples.1. is .*" + what):
                open_job(samples=[pipeloom.Sample(5), sample])

    def test_metadata_arrives_as_it_was_given(self):
        self.client.submit_batch(
            "job", 3, [pipeloom.Sample(7, ((640, 480),)),
                       pipeloom.Sample(5, (), ({"frames": 9},), (1.5,))],
            replica=2, microbatch_of=[0, 1])
        sent = messages.SubmitBatchRequest.FromString(self.fake.requests[0][1])
        self.assertEqual((sent.step, sent.replica), (3, 2))
        self.assertEqual(list(sent.microbatch_of), [0, 1])
        self.assertEqual(sent.batch.samples[0].images[0].height_px, 480)
        self.assertEqual(sent.batch.samples[1].videos[0].frames, 9)
        self.assertEqual(list(sent.batch.samples[1].audio_seconds), [1.5])

    def test_a_full_service_is_asked_again_and_a_refusal_is_not(self):
        self.fake.mode, self.fake.failures = "busy", 3
        self.assertEqual(self.client.plan("job", 1).step, 1)
        self.assertEqual(self.client.retries, 3)
        self.fake.mode = "refuse"
        asked = len(self.fake.requests)
        with self.assertRaises(pipeloom.PlannerError) as caught:
            self.client.plan("job", 1)
        self.assertIn("must not be negative", str(caught.exception))
        self.assertEqual(len(self.fake.requests), asked + 1)

    def test_a_request_that_is_too_large_for_ever_is_not_sent_again(self):
        self.fake.mode = "too large"
        asked = len(self.fake.requests)
        with self.assertRaisesRegex(pipeloom.PlannerError,
                                    "RESOURCE_EXHAUSTED: .*9 tasks"):
            self.client.plan("job", 1, timeout=2.0)
        self.assertEqual(len(self.fake.requests), asked + 1)

    def test_a_closed_client_says_so(self):
        stubs = self.client._stub("GetPlan")
        self.client.close()
        for call in (lambda: self.client.plan("job", 1),
                     lambda: self.client.rank_plan("job", 1, 0, 0),
                     lambda: self.client.open_job("dip-vlm-s"),
                     lambda: self.client.close_job("job"),
                     self.client.list_jobs, lambda: next(self.client.watch())):
            with self.assertRaisesRegex(pipeloom.PlannerError,
                                        "CANCELLED: the client is closed"):
                call()
        # Closed between the beginning of a call and its sending.
        self.client._stub = lambda method: stubs
        with self.assertRaisesRegex(pipeloom.PlannerError,
                                    "CANCELLED: the client is closed"):
            self.client.plan("job", 1)

    def test_the_prefetcher_is_ahead_and_keeps_the_order(self):
        read = []

        def loader():
            for i in range(6):
                read.append(i)
                yield i

        provider = self.provider(wait=5.0)
        seen = []
        for step, batch in pipeloom.MetadataPrefetcher(
                loader(), provider, lambda b: microbatches(3),
                lambda b: [pipeloom.Sample(1)] * 3, ahead=2):
            self.assertGreaterEqual(len(read), min(6, step + 3))
            plan = provider.get(step)
            self.assertEqual(plan.step, step)
            self.assertTrue(plan.agreed)
            seen.append((step, batch))
        self.assertEqual(seen, [(i, i) for i in range(6)])
        self.assertEqual(provider.counts["planned"], 6)
        self.assertEqual(provider.votes, 6)

    def test_training_goes_on_whatever_the_service_does_and_recovers(self):
        session = self.session()
        provider = self.provider(session=session)
        step = 0
        for mode in ("slow", "garbage", "empty", "refuse", "other step",
                     "other partition", "other batch"):
            self.fake.mode = "good"
            good = self.recovers(provider, step)
            self.assertGreaterEqual(good, step, session.counts)
            self.fake.mode = mode
            last = self.get(provider, good + 1)
            # The last good plan of that shape, with this step's samples.
            self.assertEqual(last.step, good + 1)
            self.assertEqual(last.checksum, (good + 1, 7), mode)
            step = good + 3
            other = self.get(provider, step - 1, 4)
            self.assertEqual(other.schedule, "static-1f1b", mode)
            self.assertIsNone(plans.check_order(other))
        self.assertGreaterEqual(session.counts["misfits"], 3)
        self.assertGreaterEqual(session.counts["failures"], 6)
        self.assertEqual(provider.counts["static"], 7)
        self.fake.mode = "good"
        good = self.recovers(provider, step)
        self.assertGreaterEqual(good, step, session.counts)
        # The service goes away, and comes back at the same place.
        self.server.stop(None).wait()
        gone = self.get(provider, good + 1)
        self.assertEqual((gone.step, gone.checksum), (good + 1, (good + 1, 7)))
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self.fake,))
        self.assertEqual(self.server.add_insecure_port(
            f"127.0.0.1:{self.port}"), self.port)
        self.server.start()
        self.addCleanup(self.server.stop, None)
        self.assertGreater(self.recovers(provider, good + 2), good,
                           session.counts)

    def recovers(self, provider, step):
        """The first step from there that is planned; -1: none in a minute."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.get(provider, step).checksum == (step + 1, 7):
                return step
            step += 1
        return -1

    def test_a_service_that_is_silent_costs_the_wait_once(self):
        self.fake.mode = "slow"
        self.fake.seconds = 20.0
        provider = self.provider(wait=2.0)
        begin = time.monotonic()
        for step in range(40):
            self.get(provider, step)
        self.assertGreater(time.monotonic() - begin, 1.9)
        self.assertLess(time.monotonic() - begin, 20)  # Not 80.
        self.assertEqual(provider.counts["static"], 40)
        self.fake.woken.set()

    def test_a_step_asked_for_again_gets_the_same_plan(self):
        provider = self.provider(wait=5.0)
        plan = self.get(provider, 0)
        self.assertIs(provider.get(0), plan)
        self.assertEqual(provider.votes, 1)

    def test_a_training_may_go_back_to_an_earlier_step(self):
        provider = self.provider(wait=5.0)
        for step in (0, 1, 2, 3, 1, 2):
            self.assertEqual(self.get(provider, step).checksum, (step + 1, 7))
        # Without the data loader's announcement, too.
        self.assertEqual(provider.get(1, microbatches(3)).checksum, (2, 7))
        self.assertEqual(provider.counts["planned"], 7)
        with self.assertRaisesRegex(ValueError, "step 9 was not announced"):
            provider.get(9)

    def test_one_line_is_logged_when_trouble_begins_and_when_it_ends(self):
        logging.getLogger("pipeloom").setLevel(logging.WARNING)
        session = self.session()
        provider = self.provider(session=session)
        with self.assertLogs("pipeloom", "WARNING") as logs:
            self.fake.mode = "refuse"
            for step in range(5):
                self.get(provider, step)
            self.fake.mode = "good"
            self.assertGreater(self.recovers(provider, 5), 0)
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertIn("must not be negative", logs.output[0])
        self.assertIn("planned again", logs.output[1])

    def test_all_ranks_fall_back_when_one_has_to(self):
        def another_has_none(words):
            return [words, words[:4] + [0] * 8 + words[12:]]

        provider = self.provider(wait=5.0, agree=another_has_none)
        self.assertEqual(self.get(provider, 0).schedule, "static-1f1b")
        self.assertEqual(provider.counts["static"], 1)

    def test_a_plan_that_the_trainer_cannot_run_is_voted_down(self):
        provider = self.provider(wait=30.0,
                                 accept=lambda plan, micro: "too new")
        self.assertEqual(self.get(provider, 0).schedule, "static-1f1b")

    def test_without_a_static_schedule_there_is_none(self):
        self.fake.mode = "refuse"
        provider = self.provider(make=lambda step, micro: None)
        self.assertIsNone(self.get(provider, 0))

    def test_a_job_that_the_service_forgot_is_opened_again(self):
        self.fake.mode = "forgetful"
        session = self.session()
        provider = self.provider(wait=30.0, session=session)
        self.assertEqual(self.get(provider, 0).checksum, (1, 7))
        self.assertEqual(session.counts["reopened"], 1)
        # Batches that were submitted before are submitted again.
        end = time.monotonic() + 60
        while time.monotonic() < end:
            names = [name for name, _, _ in list(self.fake.requests)]
            opened = names.index("OpenJob")
            if "SubmitBatch" in names[opened:]:
                break
            time.sleep(0.01)
        self.assertIn("SubmitBatch", names[opened:])
        request = messages.OpenJobRequest.FromString(
            self.fake.requests[opened][1])
        self.assertEqual(request.job_id, "job")
        self.assertEqual(len(request.resume.stages), 2)

    def test_a_batch_that_was_not_sent_when_training_went_back_is_sent(self):
        self.fake.mode = "slow"
        self.fake.seconds = 30.0
        session = self.session(call_timeout=60.0)
        session.expect(5, [pipeloom.Sample(1)] * 3)
        end = time.monotonic() + 30
        while not self.fake.requests and time.monotonic() < end:
            time.sleep(0.01)
        session.go_back(4)  # The call ends without an answer.
        self.fake.mode = "good"
        self.fake.woken.set()
        session.expect(5, [pipeloom.Sample(1)] * 3)
        while session.counts["submitted"] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(session.counts["submitted"], 1)
        self.assertIsNotNone(session.wait(5, 30.0))

    def test_a_moved_service_is_found(self):
        import tempfile
        with tempfile.NamedTemporaryFile("w", suffix=".address") as file:
            file.write("127.0.0.1:1\n")
            file.flush()
            self.client = pipeloom.Client(pipeloom.address_file(file.name))
            self.addCleanup(self.client.close)
            session = self.session()
            provider = self.provider(session=session)
            self.assertEqual(self.get(provider, 0).schedule, "static-1f1b")
            with open(file.name, "w", encoding="utf-8") as again:
                again.write(f"127.0.0.1:{self.port}\n")
            self.assertGreater(self.recovers(provider, 1), 0, session.counts)
            self.assertEqual(self.client.address, f"127.0.0.1:{self.port}")

    def test_no_call_of_a_session_raises_or_waits(self):
        self.server.stop(None).wait()
        session = self.session(call_timeout=0.5)
        session.expect(0, [pipeloom.Sample(1)])
        session.expect(1, ["no sample"])
        session.report(0, (1, 2), [(0, 0, 1)])
        session.report(0, (1, 2), "nonsense")
        self.assertIsNone(session.ready(0))
        self.assertIn("INVALID_ARGUMENT", session.refusal(1))
        session.forget(1)
        self.assertGreaterEqual(session.counts["dropped_reports"], 1)
        begin = time.monotonic()
        session.close(close_job=True)
        self.assertLess(time.monotonic() - begin, 10)
        session.expect(2, [pipeloom.Sample(1)])
        session.close()

    def test_a_strict_session_raises(self):
        self.fake.mode = "refuse"
        session = self.session(strict=True)
        session.expect(0, [pipeloom.Sample(1)])
        with self.assertRaisesRegex(pipeloom.PlannerError, "negative"):
            session.wait(0, 30.0)


if __name__ == "__main__":
    unittest.main()
