"""A planner service for tests that is made in Python and answers as it is
told, over a real socket."""
import concurrent.futures
import contextlib
import random
import threading

import grpc

import pipeloom
from pipeloom import messages

PREFIX = "/pipeloom.v1.PlannerService/"


def two_rank_stages():
    return [pipeloom.Stage(0, 0, 1, 0, 0), pipeloom.Stage(0, 1, 1, 1, 0)]


def microbatches(n):
    return [pipeloom.Microbatch((i,), 1.0 / n, (pipeloom.SubMicrobatch(0),))
            for i in range(n)]


def static(step, micro):
    return pipeloom.static_plan(two_rank_stages(), (), micro, ("text",), step)


def plan_response(step, n):
    """Returns the service's answer with a plan that is made here."""
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
        added = r.microbatches.add(loss_weight=m.loss_weight, text_tokens=1)
        for s in m.samples:
            added.samples.add(sample=s)
        added.sub_microbatches.add(module=0)
    return r


class FakeService(grpc.GenericRpcHandler):
    """Answers as `mode` says; keeps what it was asked."""

    def __init__(self):
        self.mode = "good"
        self.seconds = 1.0
        self.woken = threading.Event()
        self.opened = False
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
                self.woken.wait(self.seconds)
            if self.mode == "forgetful" and name != "OpenJob":
                if not self.opened:
                    context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
            if name == "OpenJob":
                self.opened = True
                request = messages.OpenJobRequest.FromString(raw)
                return messages.OpenJobResponse(
                    job_id=request.job_id, partition=request.resume,
                    module_names=["text"]).SerializeToString()
            if self.mode == "busy" and self.failures > 0:
                self.failures -= 1
                context.set_trailing_metadata((("retry-after-ms", "30"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
            if self.mode == "too large":
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED,
                              "batch makes a plan of up to 9 tasks")
            if self.mode == "refuse":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT,
                              "step: -1, must not be negative")
            if self.mode == "garbage":
                return bytes(random.randrange(256) for _ in range(200))
            if self.mode == "empty":
                return b""
            if name == "GetPlan":
                request = messages.GetPlanRequest.FromString(raw)
                answer = plan_response(
                    request.step + (self.mode == "other step"), 3)
                if self.mode == "other partition":
                    for task in answer.plan.graph.tasks:
                        task.rank = 1 - task.rank
                if self.mode == "other batch":
                    answer.microbatches[0].samples[0].sample = 1
                return answer.SerializeToString()
            return b""

        return grpc.unary_unary_rpc_method_handler(handle)


# -- A planner of several ranks ------------------------------------------------

# Vision on rank 0 only, text on all ranks.
STAGES = (pipeloom.Stage(0, 0, 1, 0, 0), pipeloom.Stage(1, 0, 1, 0, 1),
          pipeloom.Stage(1, 1, 1, 1, 1), pipeloom.Stage(1, 2, 1, 2, 1))
MODULES = ("vision", "text")
RANKS = 3
BYTES_PER_TOKEN = 1000  # That a forward keeps until its backward.
STATIC_BYTES = 50000


def described(samples):
    """Returns the microbatches of a batch: one for each sample."""
    total = sum(s.text_tokens for s in samples)
    return [pipeloom.Microbatch(
        (i,), s.text_tokens / total,
        tuple([pipeloom.SubMicrobatch(0, 0, 0, len(s.images),
                                      sum(w * h for w, h in s.images))]
              if s.images else []) +
        (pipeloom.SubMicrobatch(1, 0, 0, 1, s.text_tokens),))
        for i, s in enumerate(samples)]


def static_schedule(step, micro):
    return pipeloom.static_plan(STAGES, ((0, 1),), micro, MODULES, step)


def share_of(request, samples, limit):
    """Returns one rank's share of the plan that a batch gets: the static
    schedule, with memory."""
    micro = described(samples)
    plan = static_schedule(request.step, micro)
    tokens = {(m, s.module): s.tokens for m, of in enumerate(micro)
              for s in of.subs}
    share = messages.RankPlan(
        job_id=request.job_id, step=request.step, replica=request.replica,
        rank=request.rank, num_ranks=RANKS, attempt=request.attempt,
        quality=messages.enum_value("PlanQuality", "PLAN_QUALITY_FULL"),
        schedule="planned", module_names=MODULES)
    share.plan_checksum.high = request.step + 1
    share.plan_checksum.low = plan.checksum[1]
    share.step_checksum.high, share.step_checksum.low = request.step + 1, 7
    share.rank_spec.memory.limit_bytes = limit
    share.rank_spec.memory.weights_bytes = STATIC_BYTES
    kinds = {"F": "FORWARD", "B": "BACKWARD"}
    wanted = {i for i, t in plan.tasks.items() if t.rank == request.rank}
    near = set(wanted)
    for i, e in plan.edges.items():
        if {e.source, e.target} & wanted:
            near |= {e.source, e.target}
            setattr(share.edges.add(index=i).edge, "from", e.source)
            share.edges[-1].edge.to = e.target
    for i in sorted(near):
        t = plan.tasks[i]
        added = (share.tasks if i in wanted else share.neighbours).add(index=i)
        kept = BYTES_PER_TOKEN * tokens[t.microbatch, t.module]
        added.task.CopyFrom(messages.Task(
            rank=t.rank, kind=messages.enum_value("TaskKind", kinds[t.kind]),
            module=t.module, stage=t.stage, microbatch=t.microbatch,
            alloc_bytes=kept if t.kind == "F" else 0,
            free_bytes=kept if t.kind == "B" else 0))
    for op, arg in plan.programs[request.rank]:
        i = share.program.instructions.add()
        if op in ("reduce_gradients", "optimizer_step"):
            getattr(i, op).SetInParent()
        else:
            setattr(i, op, arg)
    for m in micro:
        added = share.microbatches.add(
            loss_weight=m.loss_weight,
            text_tokens=samples[m.samples[0]].text_tokens)
        added.samples.add(sample=m.samples[0])
        for sub in m.subs:
            added.sub_microbatches.add(module=sub.module, tokens=sub.tokens,
                                       instances=sub.instances)
    return share


class SharePlanner(grpc.GenericRpcHandler):
    """Plans batches for RANKS ranks, and loses what it is told to lose."""

    def __init__(self, limit=0):
        self.limit = limit  # Memory of each rank; bytes; 0: no limit.
        # How the fetches of a step fail: a grpc.StatusCode, or None: they get
        # no answer.
        self.lost = {}
        self.most_samples = None  # Of a batch; larger ones are refused.
        self.report_code = None  # With which reports fail.
        self.spoil = lambda share: None  # Changes shares on their way.
        self.requests = []  # (method, message), in order of arrival.
        self.hanging = 0  # Calls that get no answer.
        self._jobs = {}
        self._changed = threading.Condition()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(64))
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    def close(self):
        with self._changed:
            self.lost = {step: grpc.StatusCode.ABORTED for step in self.lost}
            self._changed.notify_all()
        self._server.stop(None).wait()

    def forget_everything(self):
        with self._changed:
            self._jobs.clear()
            self._changed.notify_all()

    def asked(self, method, step=None):
        """Returns the requests of a method so far, or those for a step."""
        with self._changed:
            return [r for m, r in self.requests if m == method and
                    step in (None, getattr(r, "step", None))]

    def until(self, holds, seconds=60.0):
        """Waits until `holds()` after some call; returns whether it does."""
        with self._changed:
            return self._changed.wait_for(holds, seconds)

    def service(self, details):
        name = details.method[len(PREFIX):]
        handle = getattr(self, "_" + name, None)
        if handle is None:
            return None

        def answer(raw, context):
            request = getattr(messages, name + "Request").FromString(raw)
            context.add_callback(self._wake)
            with self._changed:
                self.requests.append((name, request))
                self._changed.notify_all()
                return handle(request, context).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(answer)

    def _wake(self):
        with self._changed:
            self._changed.notify_all()

    def _OpenJob(self, request, _):
        existed = request.job_id in self._jobs
        job = self._jobs.setdefault(request.job_id, [0, {}])
        return messages.OpenJobResponse(
            job_id=request.job_id, partition=request.resume, num_ranks=RANKS,
            num_replicas=1, existed=existed, module_names=MODULES,
            attempt=job[0])

    def _batches(self, request, context):
        """Returns the batches of the request's attempt, by step."""
        if request.job_id not in self._jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no such job")
        job = self._jobs[request.job_id]
        if request.attempt < job[0]:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION,
                          f"attempt is {request.attempt}; attempt {job[0]} has "
                          "begun")
        return job[1] if request.attempt == job[0] else {}

    def _SubmitBatch(self, request, context):
        known = self._batches(request, context)
        job = self._jobs[request.job_id]
        if request.attempt > job[0]:
            job[:] = [request.attempt, {}]
            known = job[1]
        existed = request.step in known
        count = len(request.batch.samples)
        if self.most_samples is not None and count > self.most_samples:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED,
                          f"batch has {count} samples; at most "
                          f"{self.most_samples} are planned")
        if known.setdefault(request.step, request.batch) != request.batch:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "batch is another")
        self._changed.notify_all()
        return messages.SubmitBatchResponse(existed=existed)

    def _GetRankPlan(self, request, context):
        if self.lost.get(request.step, "none") is None:
            with self._hangs():
                self._changed.wait_for(
                    lambda: self.lost.get(request.step, "none") is not None or
                    not context.is_active())
        if request.step in self.lost:
            context.abort(self.lost[request.step] or
                          grpc.StatusCode.CANCELLED, "this step is lost")
        while request.step not in self._batches(request, context):
            if not context.is_active():
                return messages.RankPlan()
            self._changed.wait()
        batch = self._batches(request, context)[request.step]
        share = share_of(request, [
            pipeloom.Sample(s.text_tokens, tuple(
                (i.width_px, i.height_px) for i in s.images))
            for s in batch.samples], self.limit)
        self.spoil(share)
        return share

    @contextlib.contextmanager
    def _hangs(self):
        self.hanging += 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self.hanging -= 1
            self._changed.notify_all()

    def _ReportTrace(self, request, context):
        if self.report_code is not None:
            context.abort(self.report_code, "no reports now")
        return messages.ReportTraceResponse()
