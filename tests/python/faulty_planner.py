"""A real `pipeloom serve` with faults on demand: killed, stopped, behind a
proxy that cuts connections, or behind a service that answers wrongly."""
import concurrent.futures
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import grpc

from real_service import BINARY, PREFIX

from pipeloom import messages


OTHER_JOB = "other"  # That a liar answers from.


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Planner:
    """The process, at one port, with or without a state folder."""

    def __init__(self, state=False):
        self.port = free_port()
        self.folder = tempfile.mkdtemp() if state else None
        self.process = None
        self.start()

    def start(self):
        command = [BINARY, "serve", "--listen", f"127.0.0.1:{self.port}",
                   "--log-level", "off", "--threads", "1"]
        if self.folder:
            command += ["--state", self.folder]
        end = time.monotonic() + 60
        while True:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True)
            if "listening on" in self.process.stdout.readline():
                return
            self.end()
            if time.monotonic() > end:
                raise AssertionError("the planner does not start again")
            time.sleep(0.1)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def kill_and_restart(self, pause, forget):
        """`forget`: what it has on disk, too."""
        self.end()
        if forget and self.folder:
            shutil.rmtree(self.folder, True)
        time.sleep(pause)
        self.start()

    def freeze(self, seconds):
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.end()
        if self.folder:
            shutil.rmtree(self.folder, True)


class CuttingProxy:
    """TCP to the planner; `cut` resets every connection after some more bytes,
    in the middle of whatever is sent then."""

    def __init__(self, port, seed=0):
        self._to = port
        self._rng = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left = {}  # Bytes until the cut, by pair; None: no cut.
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        with self._lock:
            for pair in self._left:
                if self._left[pair] is None:
                    self._left[pair] = self._rng.randrange(1, 4000)

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            try:
                outer = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                inner.close()
                continue
            pair = (inner, outer)
            with self._lock:
                self._left[pair] = None
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self._pump, args=(source, target, pair),
                                 daemon=True).start()

    def _pump(self, source, target, pair):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                with self._lock:
                    left = self._left.get(pair)
                    if left is not None:
                        self._left[pair] = left - len(data)
                if left is not None and left <= len(data):
                    target.sendall(data[:max(0, left)])
                    self.cuts += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            known = self._left.pop(pair, "gone") != "gone"
        if known:
            for s in pair:
                try:  # A reset, not an orderly end.
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                 struct.pack("ii", 1, 0))
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                s.close()


class LyingService(grpc.GenericRpcHandler):
    """Only in a process of its own (LyingProcess): gRPC and fork do not mix.

    Hands calls on to the planner. While it lies, a rank's share is now and
    then another step's (as it is, or relabelled), that of a job with another
    partition, or garbage."""

    KINDS = ("step", "partition", "garbage")

    def __init__(self, port, seed=0):
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 100)])
        self._rng = random.Random(seed)
        self._other = None  # How the job of OTHER_JOB was opened.
        self._answers = {}  # By rank and replica: earlier ones.
        self.kind = None
        self.lies = 0
        # As many calls wait as there are ranks and steps ahead.
        self._pool = concurrent.futures.ThreadPoolExecutor(64)
        self.server = grpc.server(self._pool)
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def close(self):
        self.server.stop(0)
        self._channel.close()

    def service(self, details):
        method = details.method

        def forward(raw, context, to=method):
            call = self._channel.unary_unary(to).future(
                raw, timeout=min(60.0, context.time_remaining() or 60.0))
            context.add_callback(call.cancel)
            try:
                return call.result()
            except grpc.FutureCancelledError:
                context.abort(grpc.StatusCode.CANCELLED, "")
            except grpc.RpcError as error:
                context.set_trailing_metadata(
                    tuple(error.trailing_metadata() or ()))
                context.abort(error.code(), error.details() or "")
            return b""

        def open_job(raw, context):
            if messages.OpenJobRequest.FromString(raw).job_id == OTHER_JOB:
                self._other = raw
            return forward(raw, context)

        def submit(raw, context):
            answer = forward(raw, context)
            if self._other is not None:
                request = messages.SubmitBatchRequest.FromString(raw)
                request.job_id = OTHER_JOB
                data = request.SerializeToString()
                for path, message in ((method, data),
                                      (PREFIX + "OpenJob", self._other),
                                      (method, data)):
                    try:
                        self._channel.unary_unary(path)(message, timeout=10)
                        if path == method:
                            break
                    except grpc.RpcError:
                        pass  # The planner has forgotten the job.
            return answer

        def share(raw, context):
            kind = self.kind
            request = messages.GetRankPlanRequest.FromString(raw)
            key = (request.rank, request.replica)
            if kind is not None and self._rng.random() < 0.7:
                lie = self._lie(kind, request, self._answers.get(key))
                if lie is not None:
                    self.lies += 1
                    return lie
            answer = forward(raw, context)
            self._answers[key] = answer
            return answer

        handler = {PREFIX + "OpenJob": open_job,
                   PREFIX + "SubmitBatch": submit,
                   PREFIX + "GetRankPlan": share}.get(method, forward)
        return grpc.unary_unary_rpc_method_handler(handler)

    def _lie(self, kind, request, earlier):
        if kind == "partition":
            if self._other is None:
                return None
            asked = messages.GetRankPlanRequest()
            asked.CopyFrom(request)
            asked.job_id = OTHER_JOB
            try:
                answer = messages.RankPlan.FromString(
                    self._channel.unary_unary(PREFIX + "GetRankPlan")(
                        asked.SerializeToString(), timeout=5))
            except grpc.RpcError:
                return None
            answer.job_id = request.job_id
            return answer.SerializeToString()
        if kind == "garbage":
            size = self._rng.randrange(0, 4000)
            if earlier is None or self._rng.random() < 0.3:
                return bytes(self._rng.randrange(256) for _ in range(size))
            if self._rng.random() < 0.5:  # An end is missing.
                return earlier[:self._rng.randrange(len(earlier))]
            at = self._rng.randrange(len(earlier))
            return (earlier[:at] + bytes(self._rng.randrange(256)
                                         for _ in range(20)) +
                    earlier[at + 20:])
        if earlier is None:
            return None
        answer = messages.RankPlan.FromString(earlier)
        if answer.step == request.step:
            return None
        if self._rng.random() < 0.5:
            answer.step = request.step
        return answer.SerializeToString()


class LyingProcess:
    """A LyingService; `kind` is what it lies about, None: nothing."""

    def __init__(self, port, seed):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", os.path.abspath(__file__),
             str(port), str(seed)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())
        self.lies = 0

    def lie(self, kind):
        """Returns when it does; counts the lies so far."""
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        self.lies = int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()


def lie_as_told():
    port, seed = sys.argv[1:]
    service = LyingService(int(port), int(seed))
    print(service.port, flush=True)
    for line in sys.stdin:
        service.kind = line.strip() or None
        print(service.lies, flush=True)


class Faults:
    """A planner and what stands before it. `port` is where trainers find it;
    `strike` makes a fault and undoes it."""

    KINDS = ("kill-state", "kill-empty", "stop", "cut", "other-step",
             "other-partition", "garbage")
    LIES = {"other-step": "step", "other-partition": "partition",
            "garbage": "garbage"}

    def __init__(self, kinds, seed, longest_stop):
        self._rng = random.Random(seed)
        self._longest_stop = longest_stop
        self.planner = Planner(state="kill-state" in kinds)
        self.port = self.planner.port
        self.liar = self.proxy = None
        if set(kinds) & set(self.LIES):
            self.liar = LyingProcess(self.port, seed)
            self.port = self.liar.port
        if "cut" in kinds:
            self.proxy = CuttingProxy(self.port, seed)
            self.port = self.proxy.port

    def strike(self, kind):
        if kind in ("kill-state", "kill-empty"):
            self.planner.kill_and_restart(self._rng.uniform(0.0, 0.6),
                                          kind == "kill-empty")
        elif kind == "stop":
            self.planner.freeze(self._rng.uniform(
                min(0.5, self._longest_stop), self._longest_stop))
        elif kind == "cut":
            before = self.proxy.cuts
            self._until(lambda: self.proxy.cuts > before, self.proxy.cut)
        else:
            before = self.liar.lies
            self._until(lambda: self.liar.lies > before,
                        lambda: self.liar.lie(self.LIES[kind]))
            self.liar.lie("")

    def _until(self, struck, act, patience=30.0):
        """Acts until it has struck a message on its way."""
        end = time.monotonic() + patience
        while True:
            act()
            time.sleep(self._rng.uniform(0.01, 0.2))
            act()
            if struck():
                return
            if time.monotonic() > end:
                raise AssertionError("the fault strikes nobody")

    def close(self):
        for part in (self.proxy, self.liar):
            if part is not None:
                part.close()
        if self.planner.process.poll() is None:
            self.planner.process.send_signal(signal.SIGCONT)
        self.planner.close()


if __name__ == "__main__":
    lie_as_told()
