"""The planner service, from Python."""
import concurrent.futures
import dataclasses
import random
import threading
import time
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional,
                    Sequence, Tuple, Union)

import grpc

from pipeloom import messages, plan as plans
from pipeloom.static_schedule import Stage

_SERVICE = "/pipeloom.v1.PlannerService/"
_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.ABORTED)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What is known of a sample before it is loaded: sizes, no data."""
    text_tokens: int = 0
    images: Tuple[Tuple[int, int], ...] = ()  # Width and height; pixels.
    videos: Tuple[Dict[str, Any], ...] = ()  # frames, width_px, height_px, ...
    audio_seconds: Tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """A job that is open."""
    job_id: str
    num_ranks: int
    num_replicas: int
    module_names: Tuple[str, ...]
    stages: Tuple[Stage, ...]


def batch_message(samples: Iterable[Sample]) -> Any:
    batch = messages.BatchMetadata()
    for s in samples:
        m = batch.samples.add(text_tokens=s.text_tokens)
        for width, height in s.images:
            m.images.add(width_px=width, height_px=height)
        for clip in s.videos:
            m.videos.add(**clip)
        m.audio_seconds.extend(s.audio_seconds)
    return batch


class PlannerError(RuntimeError):
    """What the service answered; `code` is a grpc.StatusCode."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class Client:
    """A connection to `pipeloom serve`. Safe from any number of threads.

    Every call has a deadline (`timeout` seconds, with its retries). Calls are
    idempotent, so what fails for want of a connection or of room is tried
    again, after the service's own hint or with growing pauses, until the
    deadline. PlannerError says what the service said last.
    """

    def __init__(self, target: str = "127.0.0.1:50551", *,
                 timeout: float = 60.0, token: Optional[str] = None,
                 tls_root_certificate: Optional[bytes] = None,
                 channel: Optional[grpc.Channel] = None,
                 threads: int = 4) -> None:
        options = [("grpc.max_receive_message_length", 256 << 20),
                   ("grpc.max_send_message_length", 256 << 20),
                   # A half-open connection is found out.
                   ("grpc.keepalive_time_ms", 20000),
                   ("grpc.keepalive_timeout_ms", 5000),
                   ("grpc.initial_reconnect_backoff_ms", 100),
                   ("grpc.min_reconnect_backoff_ms", 100),
                   ("grpc.max_reconnect_backoff_ms", 2000)]
        if channel is not None:
            self._channel = channel
        elif tls_root_certificate is not None:
            self._channel = grpc.secure_channel(
                target, grpc.ssl_channel_credentials(tls_root_certificate),
                options)
        else:
            self._channel = grpc.insecure_channel(target, options)
        self.timeout = timeout
        self._metadata = ((("authorization", f"Bearer {token}"),)
                          if token else ())
        self._calls: Dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(
            threads, thread_name_prefix="pipeloom")
        self._ahead: Dict[Tuple[Any, ...], Any] = {}  # Futures of plans.
        self.retries = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._channel.close()

    # -- Calls -------------------------------------------------------------

    def _call(self, method: str, request: Any, response: Any,
              timeout: Optional[float] = None) -> Any:
        with self._lock:
            if method not in self._calls:
                self._calls[method] = self._channel.unary_unary(
                    _SERVICE + method,
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=response.FromString)
            call = self._calls[method]
        deadline = time.monotonic() + (self.timeout if timeout is None
                                       else timeout)
        pause = 0.05
        while True:
            left = deadline - time.monotonic()
            try:
                return call(request, timeout=max(left, 0.001),
                            metadata=self._metadata)
            except grpc.RpcError as error:
                code = error.code()
                wait = pause * random.uniform(0.5, 1.5)
                for key, value in error.trailing_metadata() or ():
                    if key == "retry-after-ms":
                        wait = float(value) / 1000.0
                left = deadline - time.monotonic()
                if code not in _RETRIED or left <= wait:
                    raise PlannerError(code, error.details() or "") from None
                self.retries += 1
                time.sleep(wait)
                pause = min(2 * pause, 2.0)

    def open_job(self, job: Union[str, Any], samples: Sequence[Sample] = (),
                 *, stages: Sequence[Stage] = (),
                 module_names: Sequence[str] = (), job_id: str = "",
                 partition_time: float = 0.0, defer_surplus: bool = False,
                 timeout: Optional[float] = None) -> Job:
        """Opens a shipped job by name, or a messages.Job. `samples` are of
        typical sizes; `stages` the trainer's own partition instead, with
        `module_names` to name its modules. `partition_time`: seconds in which
        to search for a better partition than the rule's; `timeout` has to be
        longer. `defer_surplus`: samples of a microbatch that has too much may
        go to a later one."""
        request = messages.OpenJobRequest(job_id=job_id)
        if isinstance(job, str):
            request.shipped_job = job
        else:
            request.job.CopyFrom(job)
        request.sample.CopyFrom(batch_message(samples))
        request.partition_time_us = round(partition_time * 1e6)
        request.defer_surplus = defer_surplus
        if stages:
            request.partition.num_ranks = 1 + max(s.rank for s in stages)
            request.partition.num_segments = 1 + max(s.segment for s in stages)
            for s in stages:
                request.partition.stages.add(
                    module=module_names[s.module], first_layer=s.first_layer,
                    num_layers=s.num_layers, rank=s.rank, segment=s.segment)
        r = self._call("OpenJob", request, messages.OpenJobResponse, timeout)
        names = tuple(r.module_names)
        return Job(r.job_id, r.num_ranks, r.num_replicas, names,
                   tuple(Stage(names.index(s.module), s.first_layer,
                               s.num_layers, s.rank, s.segment)
                         for s in r.partition.stages))

    def submit_batch(self, job_id: str, step: int, samples: Iterable[Sample],
                     *, replica: Optional[int] = None,
                     microbatch_of: Sequence[int] = (),
                     timeout: Optional[float] = None) -> None:
        """Queues a step for planning. `microbatch_of` says of each sample its
        microbatch, where the trainer has made them (with `replica`)."""
        request = messages.SubmitBatchRequest(job_id=job_id, step=step)
        if replica is not None:
            request.replica = replica
        request.batch.CopyFrom(batch_message(samples))
        request.microbatch_of.extend(microbatch_of)
        self._call("SubmitBatch", request, messages.SubmitBatchResponse,
                   timeout)

    def plan(self, job_id: str, step: int, replica: int = 0,
             timeout: Optional[float] = None) -> plans.Plan:
        """The plan of all ranks; waits until it is ready, at most `timeout`
        seconds. Near the end of them the service cuts its search short."""
        return plans.from_response(self._call(
            "GetPlan", messages.GetPlanRequest(job_id=job_id, step=step,
                                               replica=replica),
            messages.GetPlanResponse, timeout))

    def rank_plan(self, job_id: str, step: int, replica: int, rank: int,
                  timeout: Optional[float] = None) -> plans.Plan:
        """One rank's share of it."""
        return plans.from_rank_plan(self._call(
            "GetRankPlan",
            messages.GetRankPlanRequest(job_id=job_id, step=step,
                                        replica=replica, rank=rank),
            messages.RankPlan, timeout))

    def report(self, job_id: str, step: int, replica: int,
               checksum: Tuple[int, int],
               spans: Iterable[Tuple[int, int, int, int]], num_ranks: int,
               timeout: Optional[float] = None) -> Any:
        """Measured times: (rank, task, start_ns, end_ns), from the start of
        the step."""
        request = messages.ReportTraceRequest(job_id=job_id, step=step,
                                              replica=replica)
        request.plan_checksum.high, request.plan_checksum.low = checksum
        request.trace.version = 1
        request.trace.num_ranks = num_ranks
        finish = 0
        for rank, task, start, end in sorted(spans, key=lambda s: (s[0],
                                                                   s[2])):
            request.trace.spans.add(
                rank=rank, stream=messages.enum_value("Stream",
                                                      "STREAM_COMPUTE"),
                kind=messages.enum_value("SpanKind", "SPAN_KIND_TASK"),
                task=task, start_ns=start, end_ns=end)
            finish = max(finish, end)
        request.trace.finish_ns = finish
        return self._call("ReportTrace", request,
                          messages.ReportTraceResponse, timeout)

    def watch(self, job_id: str = "") -> Iterator[Any]:
        """Statistics of plans as they are made, without end."""
        call = self._channel.unary_stream(
            _SERVICE + "Watch",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=messages.PlanStatistics.FromString)
        try:
            yield from call(messages.WatchRequest(job_id=job_id),
                            metadata=self._metadata)
        except grpc.RpcError as error:
            raise PlannerError(error.code(), error.details() or "") from None

    def close_job(self, job_id: str, timeout: Optional[float] = None) -> None:
        self._call("CloseJob", messages.CloseJobRequest(job_id=job_id),
                   messages.CloseJobResponse, timeout)

    # -- Ahead of time -----------------------------------------------------

    def prefetch(self, job_id: str, step: int, replica: int = 0,
                 timeout: Optional[float] = None, *,
                 rank: Optional[int] = None
                 ) -> "concurrent.futures.Future[plans.Plan]":
        """Fetches a plan, or one rank's share of it, in the background; the
        same call again returns the same future. `forget` drops those of earlier
        steps."""
        key = (job_id, step, replica, rank)
        with self._lock:
            if key not in self._ahead:
                self._ahead[key] = (
                    self._pool.submit(self.plan, job_id, step, replica, timeout)
                    if rank is None else
                    self._pool.submit(self.rank_plan, job_id, step, replica,
                                      rank, timeout))
            return self._ahead[key]

    def forget(self, job_id: str, before_step: int) -> None:
        with self._lock:
            for key in [k for k in self._ahead
                        if k[0] == job_id and k[1] < before_step]:
                self._ahead.pop(key).cancel()

    def in_background(self, call: Callable[[], Any]
                      ) -> "concurrent.futures.Future[Any]":
        return self._pool.submit(call)


class MetadataPrefetcher:
    """Wraps any iterable of batches: reads `ahead` batches further than it
    yields, sends their metadata to the service, and begins to fetch their
    plans. Yields (step, batch).

    `metadata(batch)` gives the batch's samples, or (samples, microbatch_of).
    `rank`: fetches that rank's share only, as its PlanProvider does.

    What goes wrong at the service is no error here: the plan will be missing,
    and PlanProvider knows what to do; `failures` counts. One thread iterates.
    """

    def __init__(self, loader: Iterable[Any], client: Client, job_id: str,
                 metadata: Callable[[Any], Any], *, ahead: int = 2,
                 first_step: int = 0, replica: int = 0,
                 plan_timeout: float = 60.0, submit: bool = True,
                 rank: Optional[int] = None) -> None:
        self._loader = loader
        self._client = client
        self._job_id = job_id
        self._metadata = metadata
        self._ahead = max(0, ahead)
        self._step = first_step
        self._replica = replica
        self._plan_timeout = plan_timeout
        self._submit = submit
        self._rank = rank
        self.failures = 0

    def _send(self, step: int, batch: Any) -> None:
        try:
            if self._submit:
                described = self._metadata(batch)
                samples, microbatch_of = (
                    described if isinstance(described, tuple)
                    else (described, ()))
                self._client.submit_batch(
                    self._job_id, step, samples, replica=self._replica,
                    microbatch_of=microbatch_of, timeout=self._plan_timeout)
        except PlannerError:
            self.failures += 1

    def __iter__(self) -> Iterator[Tuple[int, Any]]:
        waiting: List[Tuple[int, Any]] = []
        try:
            for batch in self._loader:
                step = self._step
                self._step += 1
                try:
                    self._client.in_background(
                        lambda s=step, b=batch: self._send(s, b))
                    self._client.prefetch(self._job_id, step, self._replica,
                                          self._plan_timeout, rank=self._rank)
                except RuntimeError:  # The client is closed.
                    self.failures += 1
                waiting.append((step, batch))
                if len(waiting) > self._ahead:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        finally:
            self._client.forget(self._job_id, self._step)

    def _next(self, waiting: List[Tuple[int, Any]]) -> Tuple[int, Any]:
        step, batch = waiting.pop(0)
        self._client.forget(self._job_id, step)
        return step, batch
