"""A real `pipeloom serve` process when things go wrong: a full disk, clock
jumps, half-open connections, hostile requests, wrong tokens, no TLS; and what a caller
that knows nothing learns by reflection."""
import glob
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
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
    from google.protobuf import descriptor_pb2, descriptor_pool
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

    def rss_mib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            for line in f:
                if line.startswith("VmRSS:"):
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


def spoil(message, rng):
    """Sets a field somewhere in the message to what nobody would send."""
    fields = message.DESCRIPTOR.fields
    field = rng.choice(fields)
    repeated = field.label == field.LABEL_REPEATED
    if field.message_type is not None:
        if not repeated:
            return spoil(getattr(message, field.name), rng)
        items = getattr(message, field.name)
        return spoil(rng.choice(items) if items and rng.random() < 0.7
                     else items.add(), rng)
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        value = rng.choice((float("nan"), float("inf"), -1.0, 1e300))
    elif field.cpp_type == field.CPPTYPE_STRING:
        value = rng.choice(("../../etc/passwd", "x" * 100000, "\0", "no one"))
        value = value.encode() if field.type == field.TYPE_BYTES else value
    elif field.cpp_type == field.CPPTYPE_BOOL:
        value = True
    elif field.cpp_type == field.CPPTYPE_ENUM:
        value = 99
    elif field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        value = rng.choice((1 << 20, (1 << 32) - 1))
    else:
        value = rng.choice((-1, 1 << 20, (1 << 31) - 1, -(1 << 31)))
    if repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def error_of(action):
    """Status and details."""
    try:
        action()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def code_of(action):
    return error_of(action)[0]


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class FaultTest(unittest.TestCase):

    def folder(self):
        path = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, path, True)
        return path

    def start(self, *flags, **kwargs):
        server = Server(*flags, **kwargs)

        def end():
            if server.process.poll() is None:
                server.process.kill()
                server.process.wait()
            server.process.stdout.close()

        self.addCleanup(end)
        return server

    def test_a_full_disk_costs_durability_only(self):
        state = self.folder()
        server = self.start("--state", state)
        caller = Caller(server.target)
        caller.open()
        # From now on no file may be larger than 2 KiB: writes fail.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                         (2048, resource.RLIM_INFINITY))
        caller.submit(0)
        share = caller.share(0)
        self.assertFalse(share.durable)
        self.assertGreater(len(share.program.instructions), 0)
        self.assertGreater(server.metric("pipeloom_state_errors_total"), 0)
        self.assertEqual(caller.share(0).plan_checksum, share.plan_checksum)
        # There is room again.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        caller.submit(1)
        kept = caller.share(1)
        self.assertTrue(kept.durable)
        self.assertEqual(server.stop(), 0)
        again = self.start("--state", state)
        self.assertEqual(Caller(again.target).share(1), kept)

    def test_clock_jumps_move_no_deadline(self):
        found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
        if not found:
            self.skipTest("libfaketime is missing")
        probe = subprocess.run(
            [BINARY, "serve", "--help"], stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "LD_PRELOAD": found[0]})
        if "AddressSanitizer" in probe.stderr:
            self.skipTest("libfaketime cannot be loaded beside ASan")
        clock = os.path.join(self.folder(), "clock")

        def set_clock(offset):
            with open(clock + ".new", "w", encoding="ascii") as f:
                f.write(f"{offset}\n")
            os.replace(clock + ".new", clock)

        set_clock("+0")
        server = self.start(env={
            "LD_PRELOAD": found[0], "FAKETIME_TIMESTAMP_FILE": clock,
            "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
        caller = Caller(server.target)
        caller.open()
        for step, offset in enumerate(("+36000", "-36000", "+0")):
            # Waits for a batch that comes after the jump.
            answers = []
            waiting = threading.Thread(target=lambda s=step: answers.append(
                caller.share(s, 20.0)))
            waiting.start()
            time.sleep(0.3)
            set_clock(offset)
            time.sleep(0.3)
            self.assertEqual(answers, [], offset)
            caller.submit(step)
            waiting.join(30)
            self.assertEqual(len(answers), 1, offset)
            # One that nothing comes for ends at its time.
            begin = time.monotonic()
            code = code_of(lambda s=step: caller.share(100 + s, 1.0))
            self.assertEqual(code, grpc.StatusCode.DEADLINE_EXCEEDED)
            self.assertGreater(time.monotonic() - begin, 0.5)
            self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(server.stop(), 0)

    def test_half_open_connections_disturb_nobody(self):
        server = self.start()
        caller = Caller(server.target)
        caller.open()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        # Half a header frame: 100 bytes are announced.
        half = b"\x00\x00\x64\x01\x04\x00\x00\x00\x01\x82"
        silent = []
        for i in range(200):
            s = socket.create_connection(("127.0.0.1", server.port))
            s.sendall((b"", preface, preface + settings,
                       preface + settings + half)[i % 4])
            silent.append(s)
        for step in range(3):
            caller.submit(step)
            self.assertGreater(len(caller.share(step).tasks), 0)
        self.assertLess(server.rss_mib(), 1024)
        for s in silent:
            s.close()
        self.assertEqual(server.stop(), 0)

    def test_a_client_behind_a_frozen_connection_is_told_in_time(self):
        """What a pulled cable looks like: bytes go in, none come out."""
        import pipeloom
        server = self.start()
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        frozen = threading.Event()

        def pump(source, target):
            try:
                while True:
                    data = source.recv(1 << 16)
                    while frozen.is_set():
                        time.sleep(0.05)
                    if not data:
                        break
                    target.sendall(data)
            except OSError:
                pass
            finally:
                target.close()

        def relay():
            while True:
                try:
                    inner, _ = listener.accept()
                except OSError:
                    return
                outer = socket.create_connection(("127.0.0.1", server.port))
                for pair in ((inner, outer), (outer, inner)):
                    threading.Thread(target=pump, args=pair,
                                     daemon=True).start()

        threading.Thread(target=relay, daemon=True).start()
        Caller(server.target).open()
        Caller(server.target).submit(0)
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        with pipeloom.Client(target) as client:
            plan = client.plan("job", 0, timeout=20.0)
            frozen.set()
            begin = time.monotonic()
            with self.assertRaises(pipeloom.PlannerError):
                client.plan("job", 0, timeout=1.0)
            self.assertLess(time.monotonic() - begin, 5)
            frozen.clear()
            again = client.plan("job", 0, timeout=20.0)
            self.assertEqual(again.checksum, plan.checksum)

    def test_hostile_requests_are_refused_and_cost_nothing(self):
        server = self.start()
        caller = Caller(server.target)
        caller.open()
        caller.submit(0)
        caller.share(0)
        before = server.rss_mib()
        codes = {}
        for seed in range(1000):
            rng = random.Random(seed)
            method = rng.choice(METHODS[:-1])
            request = getattr(messages, method + "Request")()
            if "job_id" in request.DESCRIPTOR.fields_by_name:
                request.job_id = "job"
            if method == "OpenJob":
                request.shipped_job, request.job_id = "dip-vlm-s", "other"
                fill(request.sample)
            if method == "SubmitBatch":
                request.replica = 0
                fill(request.batch)
            if method == "WhatIf":
                fill(request.batch)
            for _ in range(rng.randrange(1, 4)):
                spoil(request, rng)
            data = bytearray(request.SerializeToString())
            if seed % 3 == 0:  # No message at all, mostly.
                for _ in range(rng.randrange(1, 8)):
                    at = rng.randrange(len(data) + 1)
                    data[at:at + rng.randrange(4)] = bytes(
                        rng.randrange(256) for _ in range(rng.randrange(6)))
            code, why = error_of(lambda m=method, d=bytes(data): caller.raw(
                m, d, 0.5))
            codes[code.name] = codes.get(code.name, 0) + 1
            if code == grpc.StatusCode.INVALID_ARGUMENT:
                self.assertRegex(why, "[a-z_]{3,}", f"seed {seed}")
        print(f"hostile requests: {codes}, "
              f"{server.rss_mib() - before:+.0f} MiB")
        self.assertGreater(codes["INVALID_ARGUMENT"], 200)
        self.assertTrue(set(codes) <= {
            "INVALID_ARGUMENT", "NOT_FOUND", "OK",
            "DEADLINE_EXCEEDED", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION"}, codes)
        self.assertIsNone(server.process.poll())
        self.assertLess(server.rss_mib() - before, 512)
        caller.open("after")
        caller.submit(0, "after")
        self.assertGreater(len(caller.share(0, 5.0, "after").tasks), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_wrong_token_is_refused_by_every_call(self):
        token = os.path.join(self.folder(), "token")
        with open(token, "w", encoding="ascii") as f:
            f.write("open sesame\n")
        server = self.start("--token-file", token)
        for wrong in (None, "", "open", "open sesame!"):
            caller = Caller(server.target, wrong)
            for method in METHODS:
                self.assertEqual(
                    code_of(lambda c=caller, m=method: c.raw(m, b"", 10.0)),
                    grpc.StatusCode.UNAUTHENTICATED, f"{wrong} {method}")
        Caller(server.target, "open sesame").open()

    def test_without_tls_nobody_gets_in(self):
        if shutil.which("openssl") is None:
            self.skipTest("openssl is missing")
        folder = self.folder()
        key, cert = (os.path.join(folder, n) for n in ("key", "cert"))
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
             "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", key, "-out", cert], check=True, capture_output=True)
        server = self.start("--tls-cert", cert, "--tls-key", key)
        self.assertEqual(
            code_of(lambda: Caller(server.target).raw("CloseJob", b"", 5.0)),
            grpc.StatusCode.UNAVAILABLE)
        with open(cert, "rb") as f:
            credentials = grpc.ssl_channel_credentials(f.read())
        Caller(server.target, credentials=credentials).open()


def reflection_messages():
    """grpc.reflection.v1alpha, as much of it as is asked here."""
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r",
                                              syntax="proto3")

    def add(name, *fields):
        message = file.message_type.add(name=name)
        for number, field, kind, repeated, type_name in fields:
            f = message.field.add(name=field, number=number, type=kind,
                                  label=3 if repeated else 1)
            if type_name:
                f.type_name = f".r.{type_name}"

    add("Request", (3, "file", 9, False, ""), (4, "symbol", 9, False, ""),
        (7, "list", 9, False, ""))
    add("Service", (1, "name", 9, False, ""))
    add("Services", (1, "service", 11, True, "Service"))
    add("Files", (1, "file", 12, True, ""))
    add("Response", (4, "files", 11, False, "Files"),
        (6, "services", 11, False, "Services"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return [messages._message_class(pool.FindMessageTypeByName(f"r.{n}"))
            for n in ("Request", "Response")]


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class StandardServicesTest(unittest.TestCase):

    @staticmethod
    def name_of(service):
        return b"\x0a" + bytes([len(service)]) + service.encode()

    def test_health_watchers_are_told_when_the_service_stops(self):
        server = Server()
        self.addCleanup(server.process.kill)
        channel = grpc.insecure_channel(server.target)
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        planner = self.name_of("pipeloom.v1.PlannerService")
        for service in (b"", planner):
            self.assertEqual(check(service, timeout=10), b"\x08\x01")
        with self.assertRaises(grpc.RpcError) as caught:
            check(self.name_of("nobody.v1.Service"), timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        answers = watch(planner, timeout=30)
        self.assertEqual(next(answers), b"\x08\x01")
        unknown = watch(self.name_of("nobody.v1.Service"), timeout=30)
        self.assertEqual(next(unknown), b"\x08\x03")
        self.assertEqual(server.stop(), 0)
        self.assertEqual(next(answers), b"\x08\x02")
        with self.assertRaises(grpc.RpcError):
            next(answers)

    def test_who_waits_for_a_step_that_goes_is_told_at_once(self):
        server = Server("--keep-steps", "2")
        self.addCleanup(server.process.kill)
        caller = Caller(server.target)
        caller.open()
        share = messages.GetRankPlanRequest(job_id="job", step=0)
        future = caller.channel.unary_unary(PREFIX + "GetRankPlan").future(
            share.SerializeToString(), timeout=60)
        time.sleep(0.3)
        self.assertFalse(future.done())
        caller.submit(5, "job")
        begin = time.monotonic()
        self.assertEqual(future.exception().code(), grpc.StatusCode.NOT_FOUND)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertGreater(len(caller.share(5, 30.0, "job").tasks), 0)
        self.assertEqual(server.stop(), 0)

    def test_other_methods_and_bytes_are_refused(self):
        server = Server()
        self.addCleanup(server.process.kill)
        channel = grpc.insecure_channel(server.target)
        for method in ("/pipeloom.v1.PlannerService/Nothing", "/", "/a/b"):
            with self.assertRaises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", timeout=10)
            self.assertEqual(caught.exception.code(),
                             grpc.StatusCode.UNIMPLEMENTED, method)
        for method in METHODS:
            with self.assertRaises(grpc.RpcError) as caught:
                channel.unary_unary(f"/pipeloom.v1.PlannerService/{method}")(
                    b"\xff" * 9, timeout=10)
            self.assertEqual(caught.exception.code(),
                             grpc.StatusCode.INVALID_ARGUMENT, method)
        self.assertEqual(server.stop(), 0)

    def test_both_versions_of_reflection_answer_in_order(self):
        server = Server()
        self.addCleanup(server.process.kill)
        channel = grpc.insecure_channel(server.target)
        request_class, response_class = reflection_messages()
        asked = [request_class(list="*"), request_class(symbol="no.such"),
                 request_class(symbol="grpc.health.v1.Health.Check"),
                 request_class(file="pipeloom/v1/plan.proto")]
        seen = []
        for version in ("v1alpha", "v1"):
            ask = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/"
                "ServerReflectionInfo")
            seen.append([response_class.FromString(a) for a in ask(
                iter([r.SerializeToString() for r in asked]), timeout=10)])
        self.assertEqual(seen[0], seen[1])
        services, unknown, health, file = seen[0]
        self.assertEqual(len(services.services.service), 3)
        self.assertFalse(unknown.files.file)
        self.assertEqual(len(health.files.file), 1)
        self.assertEqual(len(file.files.file), 2)  # And what it imports.
        self.assertEqual(server.stop(), 0)


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class ReflectionTest(unittest.TestCase):

    def test_a_caller_finds_its_way_by_reflection_alone(self):
        """List the services, describe one, call it: as grpcurl does."""
        server = Server()
        self.addCleanup(server.process.kill)
        channel = grpc.insecure_channel(server.target)
        request_class, response_class = reflection_messages()
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")

        def reflect(**fields):
            data = request_class(**fields).SerializeToString()
            return response_class.FromString(next(iter(
                ask(iter([data]), timeout=10))))

        names = [s.name for s in reflect(list="*").services.service]
        self.assertIn("pipeloom.v1.PlannerService", names)
        self.assertIn("grpc.health.v1.Health", names)
        files, wanted = {}, []
        first = reflect(symbol="pipeloom.v1.PlannerService").files.file
        for data in first:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
            wanted += file.dependency
        while wanted:
            name = wanted.pop()
            if name in files:
                continue
            for data in reflect(file=name).files.file:
                file = descriptor_pb2.FileDescriptorProto.FromString(data)
                files[file.name] = file
                wanted += file.dependency
        pool = descriptor_pool.DescriptorPool()

        def load(name):
            for needed in files[name].dependency:
                load(needed)
            pool.AddSerializedFile(files[name].SerializeToString())

        load("pipeloom/v1/planner_service.proto")
        service = pool.FindServiceByName("pipeloom.v1.PlannerService")
        methods = {m.name: m for m in service.methods}
        self.assertTrue(set(METHODS) <= set(methods))
        close = methods["CloseJob"]
        request = messages._message_class(close.input_type)(job_id="nobody")
        answer = channel.unary_unary(f"/{service.full_name}/{close.name}")(
            request.SerializeToString(), timeout=10)
        messages._message_class(close.output_type).FromString(answer)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
