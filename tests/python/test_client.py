"""pipeloom without torch: messages, plans made here, the client against a
server that is there, slow, gone, or answers garbage."""
import concurrent.futures
import logging
import os
import random
import subprocess
import sys
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
    from pipeloom import messages
    from pipeloom import plan as plans
    from pipeloom import static_schedule as sp

    PREFIX = "/pipeloom.v1.PlannerService/"


def two_rank_stages():
    return [pipeloom.Stage(0, 0, 1, 0, 0), pipeloom.Stage(0, 1, 1, 1, 0)]


def microbatches(n):
    return [pipeloom.Microbatch((i,), 1.0 / n, (pipeloom.SubMicrobatch(0),))
            for i in range(n)]


def static(step, micro):
    return pipeloom.static_plan(two_rank_stages(), (), micro, ("text",), step)


def plan_response(step, n):
    """What the service would answer, from a plan made here."""
    plan = static(step, microbatches(n))
    r = messages.GetPlanResponse(
        quality=messages.enum_value("PlanQuality", "PLAN_QUALITY_FULL"))
    r.plan.format, r.plan.version = "pipeloom.plan", 1
    r.plan.step, r.plan.schedule = step, "pipeloom"
    r.plan.checksum.high, r.plan.checksum.low = step + 1, 7
    r.plan.graph.module_names.append("text")
    kinds = {"F": "FORWARD", "B": "BACKWARD"}
    for i in sorted(plan.tasks):
        t = plan.tasks[i]
        r.plan.graph.tasks.add(
            rank=t.rank, stage=t.stage, microbatch=t.microbatch,
            kind=messages.enum_value("TaskKind", kinds[t.kind]))
    for i in sorted(plan.edges):
        e = plan.edges[i]
        added = r.plan.graph.edges.add(to=e.target,
                                       payload_bytes=e.payload_bytes)
        setattr(added, "from", e.source)
    for rank in range(plan.num_ranks):
        program = r.plan.programs.add()
        for op, arg in plan.programs[rank]:
            i = program.instructions.add()
            if op in ("reduce_gradients", "optimizer_step"):
                getattr(i, op).SetInParent()
            else:
                setattr(i, op, arg)
    for m in microbatches(n):
        added = r.microbatches.add(loss_weight=m.loss_weight)
        for s in m.samples:
            added.samples.add(sample=s)
        added.sub_microbatches.add(module=0)
    return r


class FakeService(grpc.GenericRpcHandler if HAVE_GRPC else object):
    """Answers as `mode` says; keeps what it was asked."""

    def __init__(self):
        self.mode = "good"
        self.requests = []
        self.failures = 0
        self.lock = threading.Lock()

    def service(self, details):
        method = details.method
        if not method.startswith(PREFIX):
            return None
        name = method[len(PREFIX):]
        metadata = dict(details.invocation_metadata)

        def handle(raw, context):
            with self.lock:
                self.requests.append((name, raw, metadata))
            if self.mode == "slow":
                time.sleep(1.0)
            if self.mode == "busy" and self.failures > 0:
                self.failures -= 1
                context.set_trailing_metadata((("retry-after-ms", "30"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
            if self.mode == "refuse":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT,
                              "step: -1, must not be negative")
            if self.mode == "garbage":
                return bytes(random.randrange(256) for _ in range(200))
            if self.mode == "empty":
                return b""
            if name == "GetPlan":
                request = messages.GetPlanRequest.FromString(raw)
                return plan_response(request.step, 3).SerializeToString()
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


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

    def provider(self, wait=0.3, **kwargs):
        return pipeloom.PlanProvider(self.client, "job", static, wait=wait,
                                     **kwargs)

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

    def test_a_share_stands_in_for_a_later_step_of_its_rank(self):
        import dataclasses

        def share(_job, step, _replica, rank, _timeout=None):
            if step > 0:
                raise pipeloom.PlannerError(grpc.StatusCode.UNAVAILABLE, "")
            plan = static(step, microbatches(3))
            # Others of which it knows less than the static plan does.
            tasks = {i: t for i, t in plan.tasks.items()
                     if t.rank == rank or i % 2}
            return dataclasses.replace(
                plan, tasks=tasks, programs={rank: plan.programs[rank]},
                schedule="planned")

        self.client.rank_plan = share
        provider = self.provider(rank=1)
        self.assertEqual(provider.get(0, microbatches(3)).schedule, "planned")
        again = provider.get(1, microbatches(3))
        self.assertEqual((again.schedule, again.step), ("planned", 1))
        self.assertEqual(list(again.programs), [1])
        self.assertEqual(len(provider.get(2, microbatches(2)).programs), 2)
        self.assertEqual(provider.counts,
                         {"planned": 1, "last_good": 1, "static": 1})

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

    def test_the_prefetcher_is_ahead_and_keeps_the_order(self):
        read = []

        def loader():
            for i in range(6):
                read.append(i)
                yield i

        provider = self.provider(wait=5.0)
        seen = []
        for step, batch in pipeloom.MetadataPrefetcher(
                loader(), self.client, "job",
                lambda b: [pipeloom.Sample(b)], ahead=2):
            self.assertGreaterEqual(len(read), min(6, step + 3))
            plan = provider.get(step, microbatches(3))
            self.assertEqual(plan.step, step)
            seen.append((step, batch))
        self.assertEqual(seen, [(i, i) for i in range(6)])
        self.assertEqual(provider.counts["planned"], 6)

    def test_training_goes_on_whatever_the_service_does_and_recovers(self):
        provider = self.provider(wait=0.3)
        self.assertEqual(provider.get(0, microbatches(3)).schedule, "pipeloom")
        step = 1
        for mode in ("slow", "garbage", "empty", "refuse"):
            self.fake.mode = mode
            begin = time.monotonic()
            plan = provider.get(step, microbatches(3))
            self.assertLess(time.monotonic() - begin, 0.9, mode)
            # The last good plan of that shape, with this step's samples.
            self.assertEqual((plan.step, plan.checksum), (step, (1, 7)), mode)
            other = provider.get(step + 1, microbatches(4))
            self.assertEqual(other.schedule, "static-1f1b", mode)
            self.assertIsNone(plans.check_order(other))
            step += 2
        self.fake.mode = "good"
        time.sleep(1.0)  # Those that were slow have gone.
        self.assertEqual(provider.get(step, microbatches(3)).checksum,
                         (step + 1, 7))
        self.server.stop(None).wait()
        self.assertEqual(
            provider.get(step + 1, microbatches(3)).checksum, (step + 1, 7))
        self.assertEqual(provider.counts,
                         {"planned": 2, "last_good": 5, "static": 4})

    def test_one_line_is_logged_when_fallbacks_begin_and_when_they_end(self):
        logging.getLogger("pipeloom").setLevel(logging.WARNING)
        provider = self.provider()
        with self.assertLogs("pipeloom", "WARNING") as logs:
            self.fake.mode = "refuse"
            for step in range(5):
                provider.get(step, microbatches(3))
            self.fake.mode = "good"
            for step in range(5, 8):
                provider.get(step, microbatches(3))
        self.assertEqual(len(logs.output), 2, logs.output)

    def test_all_ranks_fall_back_when_one_has_to(self):
        provider = self.provider(agree=lambda checksum: False)
        self.assertEqual(provider.get(0, microbatches(3)).schedule,
                         "static-1f1b")
        self.assertEqual(provider.counts["static"], 1)


if __name__ == "__main__":
    unittest.main()
