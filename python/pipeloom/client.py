"""A client of the planner service."""
import dataclasses
import random
import threading
import time
from typing import (Any, Callable, Dict, FrozenSet, Iterable, Iterator,
                    Optional, Sequence, Tuple, Union)

import grpc

from pipeloom import fit, messages, plan as plans
from pipeloom.sample import Sample
from pipeloom.static_schedule import Stage

_SERVICE = "/pipeloom.v1.PlannerService/"
# RESOURCE_EXHAUSTED is asked again only where the service says when: without
# that, the request is too large and will always be.
_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)


@dataclasses.dataclass(frozen=True)
class Job:
    """An open job. `request` is an OpenJobRequest that opens it again, with the
    same id and partition, at a service that does not know it. `attempt` is the
    number of the training's attempt, the same on all ranks: larger than that of
    an earlier run whose steps this one repeats."""
    job_id: str
    num_ranks: int
    num_replicas: int
    module_names: Tuple[str, ...]
    stages: Tuple[Stage, ...]
    request: bytes = b""
    attempt: int = 0

    @staticmethod
    def of_stages(job: Union[str, Any], job_id: str, stages: Sequence[Stage],
                  module_names: Sequence[str], samples: Sequence[Sample] = (),
                  *, num_replicas: int = 1, defer_surplus: bool = False,
                  attempt: int = 0) -> "Job":
        """Returns a job with the trainer's own partition without asking a
        service: a Session opens it as soon as there is one."""
        request = open_request(job, samples, stages=stages,
                               module_names=module_names, job_id=job_id,
                               defer_surplus=defer_surplus)
        request.resume.CopyFrom(request.partition)
        return Job(job_id, request.partition.num_ranks, num_replicas,
                   tuple(module_names), tuple(stages),
                   request.SerializeToString(), attempt)


def _check_text(field: str, text: str) -> None:
    """ValueError: the text is not of characters alone, as of file names and
    arguments in another encoding than the interpreter's."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field} is {text!r}, which UTF-8 cannot write; it "
                         "must have no surrogates, such as those of a name in "
                         "another encoding (os.fsencode(name).decode("
                         "'latin-1'))") from None


def open_request(job: Union[str, Any], samples: Sequence[Sample], *,
                 stages: Sequence[Stage] = (),
                 module_names: Sequence[str] = (), job_id: str = "",
                 partition_time: Optional[float] = None,
                 defer_surplus: bool = False, close_key: str = "") -> Any:
    """ValueError: a stage's module has no name, or a name is no text."""
    _check_text("job_id", job_id)
    _check_text("close_key", close_key)
    if isinstance(job, str):
        _check_text("job", job)
    for i, name in enumerate(module_names):
        _check_text(f"module_names[{i}]", name)
    request = messages.OpenJobRequest(job_id=job_id, close_key=close_key)
    if isinstance(job, str):
        request.shipped_job = job
    else:
        request.job.CopyFrom(job)
    request.sample.CopyFrom(batch_message(samples))
    if partition_time is not None:
        request.partition_time_us = round(partition_time * 1e6)
    request.defer_surplus = defer_surplus
    for i, s in enumerate(stages):
        if not 0 <= s.module < len(module_names):
            raise ValueError(
                f"stages[{i}].module is {s.module}; module_names has "
                f"{len(module_names)} names and must have that of every module "
                "of the stages")
    if stages:
        request.partition.num_ranks = 1 + max(s.rank for s in stages)
        request.partition.num_segments = 1 + max(s.segment for s in stages)
        for s in stages:
            request.partition.stages.add(
                module=module_names[s.module], first_layer=s.first_layer,
                num_layers=s.num_layers, rank=s.rank, segment=s.segment)
    return request


def frozen_modules(job: Job) -> Optional[FrozenSet[str]]:
    """Returns the names of the modules that the job does not train, or None if
    they are not known here: a shipped job is opened by its name alone."""
    request = messages.OpenJobRequest.FromString(job.request)
    if not request.HasField("job"):
        return None
    return frozenset(request.job.training.frozen_modules)


def stages_of(partition: Any, module_names: Sequence[str]) -> Tuple[Stage, ...]:
    names = list(module_names)
    return tuple(Stage(names.index(s.module), s.first_layer, s.num_layers,
                       s.rank, s.segment) for s in partition.stages)


def submit_request(job_id: str, step: int, samples: Iterable[Sample], *,
                   replica: Optional[int] = None,
                   microbatch_of: Sequence[int] = (),
                   attempt: int = 0) -> Any:
    request = messages.SubmitBatchRequest(job_id=job_id, step=step,
                                          attempt=attempt)
    if replica is not None:
        request.replica = replica
    request.batch.CopyFrom(batch_message(samples))
    request.microbatch_of.extend(microbatch_of)
    return request


def report_request(job_id: str, step: int, replica: int,
                   checksum: Tuple[int, int],
                   spans: Iterable[Tuple[int, int, int, int]],
                   num_ranks: int, attempt: int = 0) -> Any:
    request = messages.ReportTraceRequest(job_id=job_id, step=step,
                                          replica=replica, attempt=attempt)
    request.plan_checksum.high, request.plan_checksum.low = checksum
    request.trace.version = 1
    request.trace.num_ranks = num_ranks
    finish = 0
    for rank, task, start, end in sorted(spans, key=lambda s: (s[0], s[2])):
        request.trace.spans.add(
            rank=rank, stream=messages.enum_value("Stream", "STREAM_COMPUTE"),
            kind=messages.enum_value("SpanKind", "SPAN_KIND_TASK"),
            task=task, start_ns=start, end_ns=end)
        finish = max(finish, end)
    request.trace.finish_ns = finish
    return request


def batch_message(samples: Iterable[Sample]) -> Any:
    """TypeError: `samples` has something else than Samples, or a Sample has
    values of other types than its own."""
    batch = messages.BatchMetadata()
    for i, s in enumerate(samples):
        if not hasattr(s, "text_tokens"):
            raise TypeError(f"samples[{i}] is a {type(s).__name__}; it must be "
                            "a pipeloom.Sample")
        try:
            m = batch.samples.add(text_tokens=s.text_tokens)
            for width, height in s.images:
                m.images.add(width_px=width, height_px=height)
            for clip in s.videos:
                m.videos.add(**clip)
            m.audio_seconds.extend(s.audio_seconds)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"samples[{i}] is {s}: {error}; text_tokens must be an integer, "
                "images pairs of integers (width, height), videos dicts, and "
                "audio_seconds numbers") from None
    return batch


class PlannerError(RuntimeError):
    """An error that the service answered; `code` is a grpc.StatusCode."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class _NoAddress(PlannerError):
    """The client has no address to call yet."""


class MisfitError(PlannerError):
    """An answer that is not for what was asked; the message names the field."""

    def __init__(self, step: int, why: str) -> None:
        super().__init__(grpc.StatusCode.DATA_LOSS,
                         f"the answer for step {step} is not for this trainer: "
                         f"{why}")


def retry_after(error: Any) -> Optional[float]:
    """Returns after how many seconds the service asks to try again, or None."""
    for key, value in error.trailing_metadata() or ():
        if key == "retry-after-ms":
            try:
                return float(value) / 1000.0
            except ValueError:
                return None
    return None


def note(answer: Any) -> str:
    """Returns what the service remarks on a batch that it took, for people:
    that samples have media which no module takes; empty: nothing."""
    for key, value in answer.trailing_metadata() or ():
        if key == "note-bin":
            return bytes(value).decode("utf-8", "replace")
    return ""


def parsed(response: Any, data: bytes) -> Any:
    """Returns the answer as a message of the kind that `response` makes.
    PlannerError: it is no such message."""
    try:
        message = response()
        read = message.MergeFromString(data)
        if read is not None and read != len(data):
            raise ValueError(f"{len(data) - read} bytes too many")
        return message
    except Exception as error:  # pylint: disable=broad-except
        raise PlannerError(grpc.StatusCode.DATA_LOSS,
                           f"the answer is no {response.DESCRIPTOR.name}: "
                           f"{error}") from None


# An address, or a function that returns the current address.
Target = Union[str, Callable[[], str]]


def address_file(path: str) -> Callable[[], str]:
    """Returns a target that is the first line of a file. The file is read again
    whenever the planner cannot be reached, as it may have moved. Until the file
    is there and has text, the address is not known, and calls fail as if the
    planner were not running: they are tried again."""

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            address = file.readline().strip()
        if not address:
            raise ValueError(f"the first line of {path} is empty")
        return address

    return read


def clean_token(token: str) -> str:
    """Returns the token without white space around it. TypeError, ValueError:
    it is none; the message does not have it, as messages are logged."""
    if not isinstance(token, str):
        raise TypeError(f"token is a {type(token).__name__}; it must be a str")
    cleaned = token.strip()
    if not cleaned:
        raise ValueError("token has white space only; it must be the text of "
                         "the service's --token-file")
    for i, c in enumerate(cleaned):
        if not " " <= c <= "~":
            raise ValueError(
                f"token has U+{ord(c):04X} as its character {i + 1}; all "
                "characters must be printable ASCII")
    return cleaned


class Client:
    """A connection to `pipeloom serve`. Threads: any.

    It is for tools, and for the time before a training: every call waits for
    its answer and may raise PlannerError. Training steps use pipeloom.Session,
    which does neither.

    Every call has a deadline (`timeout` seconds, with its retries). Calls are
    idempotent, so a call that fails for lack of a connection or of room is
    tried again, after the time that the service asks for or with growing
    pauses, until the deadline. PlannerError has the service's last error.

    `target` may be a function (address_file), which is called again after a
    call could not reach the service. It may raise as long as the address is not
    known.

    `token` is that of the service, such as the text of its --token-file: white
    space around it does not count. `tls_root_certificate` is the PEM text of
    the certificate that signed the service's, or of the service's own.
    ValueError: `target` is an empty string, or the token has characters that no
    call can carry.
    """

    def __init__(self, target: Target = "127.0.0.1:50551", *,
                 timeout: float = 60.0, token: Optional[str] = None,
                 tls_root_certificate: Optional[bytes] = None) -> None:
        if target == "":
            raise ValueError("target is empty; it must be an address, such as "
                             "127.0.0.1:50551")
        self._target = target
        self._tls = tls_root_certificate
        self.timeout = timeout
        self._metadata = ((("authorization", f"Bearer {clean_token(token)}"),)
                          if token else ())
        self._lock = threading.Lock()
        self._closed = False
        self._made = 0.0
        self.address = ""  # Empty: not known yet; then there is no channel.
        self._unknown = ""  # Why the address was not known at the last look.
        self._channel: Any = None
        self._calls: Dict[str, Callable[..., Any]] = {}
        self.retries = 0
        self.misfits = 0  # Answers that were not for what was asked.
        self.reconnect()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Calls under way, and later ones, end with
        CANCELLED."""
        with self._lock:
            self._closed = True
            channel = self._channel
        if channel is not None:
            channel.close()

    def reconnect(self, older_than: float = -1.0) -> None:
        """Asks for the address again. Makes a new connection if the address is
        another, or if the connection was made before `older_than`
        (time.monotonic), since gRPC's own attempts come seconds apart. Never
        raises.
        """
        address, unknown = self.address, ""
        if callable(self._target):
            try:
                found = self._target()
                address, unknown = found or address, "it is empty"
            except Exception as error:  # pylint: disable=broad-except
                unknown = f"{type(error).__name__}: {error}"
        else:
            address = self._target
        with self._lock:
            self._unknown = unknown
            if not address:  # gRPC would connect to nowhere for ever.
                return
            if self._closed or (address == self.address and
                                self._channel is not None and
                                self._made >= older_than):
                return
            self._made = time.monotonic()
            old, self.address, self._calls = self._channel, address, {}
            self._channel = self._connect(address)
        if old is not None:
            old.close()

    def _connect(self, address: str) -> Any:
        options = [("grpc.max_receive_message_length", 256 << 20),
                   ("grpc.max_send_message_length", 256 << 20),
                   # Not shared with other clients of this process.
                   ("grpc.use_local_subchannel_pool", 1),
                   # Half-open connections are detected.
                   ("grpc.keepalive_time_ms", 20000),
                   ("grpc.keepalive_timeout_ms", 5000),
                   ("grpc.initial_reconnect_backoff_ms", 100),
                   # Time within which an attempt must succeed.
                   ("grpc.min_reconnect_backoff_ms", 5000),
                   ("grpc.max_reconnect_backoff_ms", 2000)]
        if self._tls is not None:
            return grpc.secure_channel(
                address, grpc.ssl_channel_credentials(self._tls), options)
        return grpc.insecure_channel(address, options)

    # -- Calls -------------------------------------------------------------

    @staticmethod
    def _closed_error() -> PlannerError:
        return PlannerError(grpc.StatusCode.CANCELLED,
                            "the client is closed; make a new one")

    def _connected(self) -> Any:
        """Returns the channel; `_lock` is held. PlannerError: the client is
        closed (CANCELLED), or there is no address yet (UNAVAILABLE)."""
        if self._closed:
            raise self._closed_error()
        if self._channel is None:
            raise _NoAddress(grpc.StatusCode.UNAVAILABLE,
                             "the planner's address is not known yet: "
                             f"{self._unknown}")
        return self._channel

    def _stub(self, method: str) -> Any:
        with self._lock:
            channel = self._connected()
            if method not in self._calls:
                self._calls[method] = channel.unary_unary(
                    _SERVICE + method,
                    request_serializer=lambda m: m.SerializeToString())
            return self._calls[method]

    def begin(self, method: str, request: Any, timeout: float) -> Any:
        """Begins a call and returns its grpc.Future, whose result is the bytes
        of the answer."""
        return self._stub(method).future(request, timeout=timeout,
                                         metadata=self._metadata)

    def _call(self, method: str, request: Any, response: Any,
              timeout: Optional[float] = None) -> Any:
        deadline = time.monotonic() + (self.timeout if timeout is None
                                       else timeout)
        pause = 0.05
        while True:
            left = deadline - time.monotonic()
            try:
                return parsed(response, self._stub(method)(
                    request, timeout=max(left, 0.001),
                    metadata=self._metadata))
            except ValueError:
                if self._closed:  # Since the stub was made.
                    raise self._closed_error() from None
                raise
            except (grpc.RpcError, _NoAddress) as error:
                if isinstance(error, _NoAddress):
                    code, details, asked = error.code, error.message, None
                else:
                    code, details = error.code(), error.details() or ""
                    asked = retry_after(error)
                wait = asked or pause * random.uniform(0.5, 1.5)
                left = deadline - time.monotonic()
                again = code in _RETRIED or (
                    code == grpc.StatusCode.RESOURCE_EXHAUSTED and
                    asked is not None)
                if not again or left <= wait:
                    raise PlannerError(code, details) from None
                self.retries += 1
                begun = time.monotonic()
                time.sleep(wait)
                pause = min(2 * pause, 2.0)
                self.reconnect(begun if code == grpc.StatusCode.UNAVAILABLE
                               else -1.0)

    def open_job(self, job: Union[str, Any], samples: Sequence[Sample] = (),
                 *, stages: Sequence[Stage] = (),
                 module_names: Sequence[str] = (), job_id: str = "",
                 partition_time: Optional[float] = None,
                 defer_surplus: bool = False,
                 close_key: str = "", new_attempt: bool = False,
                 timeout: Optional[float] = None) -> Job:
        """Opens a shipped job by name, or a messages.Job. The partition is made
        from `samples` of typical sizes, or it is the trainer's own `stages`,
        with `module_names` to name its modules. `partition_time`: seconds in
        which to search for a better partition than the rule's, 0 for none;
        `timeout` has to be longer. Without it the service searches as long as
        it does by itself. `defer_surplus`: samples of a microbatch that has too many
        may go to a later one. `close_key`: only close_job with the same one
        closes the job. `job_id` names the run of a training, and is the same
        when that run starts again with the same job (not with another number of
        replicas: let the id have it then); without it, runs that open the same content
        get one job, whose planner each takes from the other. `new_attempt`: a
        training begins, maybe again, whose first batch ends what is left of
        earlier runs; one process says so and sends the Job to the others
        (pipeloom.torch.of_first_rank)."""
        request = open_request(
            job, samples, stages=stages, module_names=module_names,
            job_id=job_id, partition_time=partition_time,
            defer_surplus=defer_surplus, close_key=close_key)
        r = self._call("OpenJob", request, messages.OpenJobResponse, timeout)
        request.job_id = r.job_id
        request.resume.CopyFrom(r.partition)
        names = tuple(r.module_names)
        return Job(r.job_id, r.num_ranks, r.num_replicas, names,
                   stages_of(r.partition, names), request.SerializeToString(),
                   r.attempt + (new_attempt and r.existed))

    def submit_batch(self, job_id: str, step: int, samples: Iterable[Sample],
                     *, replica: Optional[int] = None,
                     microbatch_of: Sequence[int] = (), attempt: int = 0,
                     timeout: Optional[float] = None) -> None:
        """Queues a step for planning. `microbatch_of` is the microbatch of each
        sample, if the trainer has made the microbatches; it needs
        `replica`."""
        request = submit_request(job_id, step, samples, replica=replica,
                                 microbatch_of=microbatch_of, attempt=attempt)
        self._call("SubmitBatch", request, messages.SubmitBatchResponse,
                   timeout)

    def plan(self, job_id: str, step: int, replica: int = 0,
             timeout: Optional[float] = None, *,
             attempt: int = 0) -> plans.Plan:
        """Returns the plan of all ranks. Waits for it for at most `timeout`
        seconds, near the end of which the service cuts its search short.
        MisfitError: the answer is not that plan."""
        request = messages.GetPlanRequest(job_id=job_id, step=step,
                                          replica=replica, attempt=attempt)
        answer = self._call("GetPlan", request, messages.GetPlanResponse,
                            timeout)
        self._check(step, fit.other_plan(answer, request))
        return plans.from_response(answer)

    def rank_plan(self, job_id: str, step: int, replica: int, rank: int,
                  timeout: Optional[float] = None, *,
                  attempt: int = 0) -> plans.Plan:
        """Returns one rank's share of the plan; waits and checks as plan()
        does."""
        request = messages.GetRankPlanRequest(
            job_id=job_id, step=step, replica=replica, rank=rank,
            attempt=attempt)
        share = self._call("GetRankPlan", request, messages.RankPlan, timeout)
        self._check(step, fit.other_share(share, request))
        return plans.from_rank_plan(share)

    def _check(self, step: int, misfit: Optional[str]) -> None:
        """Counts and raises a MisfitError if there is a misfit."""
        if misfit is not None:
            self.misfits += 1
            raise MisfitError(step, misfit)

    def report(self, job_id: str, step: int, replica: int,
               checksum: Tuple[int, int],
               spans: Iterable[Tuple[int, int, int, int]], num_ranks: int,
               timeout: Optional[float] = None, *, attempt: int = 0) -> Any:
        """Reports measured times: (rank, task, start_ns, end_ns), counted from
        the start of the step."""
        request = report_request(job_id, step, replica, checksum, spans,
                                 num_ranks, attempt)
        return self._call("ReportTrace", request,
                          messages.ReportTraceResponse, timeout)

    def watch(self, job_id: str = "") -> Iterator[Any]:
        """Yields the statistics of each plan when it is made, without end."""
        with self._lock:
            call = self._connected().unary_stream(
                _SERVICE + "Watch",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=messages.PlanStatistics.FromString)
        try:
            yield from call(messages.WatchRequest(job_id=job_id),
                            metadata=self._metadata)
        except ValueError:
            if self._closed:
                raise self._closed_error() from None
            raise
        except grpc.RpcError as error:
            raise PlannerError(error.code(), error.details() or "") from None

    def list_jobs(self, timeout: Optional[float] = None) -> Sequence[Any]:
        """Returns what the service tells of each open job
        (messages.OpenJobInfo)."""
        return tuple(self._call("ListJobs", messages.ListJobsRequest(),
                                messages.ListJobsResponse, timeout).jobs)

    def close_job(self, job_id: str, timeout: Optional[float] = None, *,
                  close_key: str = "") -> None:
        self._call("CloseJob", messages.CloseJobRequest(job_id=job_id,
                                                        close_key=close_key),
                   messages.CloseJobResponse, timeout)
