"""A real `pipeloom serve` process and callers of it, for tests."""
import os
import random
import resource
import signal
import subprocess
import sys
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

BINARY = os.environ.get("PIPELOOM_BINARY", "")
SERVICE = os.path.join(os.path.dirname(BINARY), "pipeloom-service")

try:
    import google.protobuf  # noqa: F401
    import grpc
    HAVE_ALL = os.path.exists(SERVICE)
except ImportError:
    HAVE_ALL = False

if HAVE_ALL:
    from pipeloom import messages

PREFIX = "/pipeloom.v1.PlannerService/"
METHODS = ("OpenJob", "SubmitBatch", "GetRankPlan", "GetPlan", "ReportTrace",
           "Emulate", "WhatIf", "CloseJob")


class Server:
    """`pipeloom serve` on a free port, with a folder for its state."""

    def __init__(self, *flags, env=None, limit=None):
        def prepare():
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE,
                                   (limit, resource.RLIM_INFINITY))

        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--metrics-port", "0",
             "--log-level", "off", *flags], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, preexec_fn=prepare,
            env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        if "listening on" not in line:
            raise AssertionError(f"the service did not start: {line!r}")
        self.target = line.split()[-1]
        self.port = int(self.target.rsplit(":", 1)[1])
        self.metrics_target = self.process.stdout.readline().split()[-1]

    def metric(self, name):
        with urllib.request.urlopen(
                f"http://{self.metrics_target}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def rss_mib(self, peak=False):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            for line in f:
                if line.startswith("VmHWM:" if peak else "VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0

    def stop(self):
        self.process.terminate()
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


class Caller:
    """Calls by bytes or messages, without retries."""

    def __init__(self, target, token=None, credentials=None):
        self.channel = (grpc.insecure_channel(target) if credentials is None
                        else grpc.secure_channel(target, credentials))
        self.metadata = ((("authorization", f"Bearer {token}"),) if token
                         else ())

    def raw(self, method, data, timeout):
        return self.channel.unary_unary(PREFIX + method)(
            data, timeout=timeout, metadata=self.metadata)

    def call(self, method, request, timeout=20.0):
        response = {"OpenJob": "OpenJobResponse",
                    "SubmitBatch": "SubmitBatchResponse",
                    "GetRankPlan": "RankPlan",
                    "CloseJob": "CloseJobResponse"}[method]
        return getattr(messages, response).FromString(
            self.raw(method, request.SerializeToString(), timeout))

    def open(self, job_id="job"):
        request = messages.OpenJobRequest(shipped_job="dip-vlm-s",
                                          job_id=job_id)
        fill(request.sample)
        return self.call("OpenJob", request, 60.0)

    def submit(self, step, job_id="job"):
        request = messages.SubmitBatchRequest(job_id=job_id, step=step,
                                              replica=0)
        fill(request.batch, step)
        return self.call("SubmitBatch", request)

    def share(self, step, timeout=5.0, job_id="job"):
        return self.call("GetRankPlan", messages.GetRankPlanRequest(
            job_id=job_id, step=step), timeout)


def fill(batch, seed=0):
    rng = random.Random(seed)
    for _ in range(8):
        sample = batch.samples.add(text_tokens=rng.randrange(200, 1500))
        sample.images.add(width_px=448, height_px=448)


def error_of(action):
    """Status and details."""
    try:
        action()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def code_of(action):
    return error_of(action)[0]
