"""A real `pipeloom serve` process when things go wrong: a full disk, clock
jumps, half-open connections, hostile requests, wrong tokens, no TLS, a service
of another build."""
import glob
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from real_service import (BINARY, HAVE_ALL, METHODS, PREFIX, SERVICE, Caller,
                          Server, code_of, error_of, fill)

if HAVE_ALL:
    import grpc
    from pipeloom import messages


def spoil(message, rng):
    """Sets a field somewhere in the message to what nobody would send."""
    # A message without fields has nothing to spoil.
    field = rng.choice([f for f in message.DESCRIPTOR.fields
                        if f.message_type is None or f.message_type.fields])
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
            self.skipTest("libfaketime cannot be loaded together with ASan")
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
        """The connection behaves like a pulled cable: bytes go in, none come
        out."""
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
            "FAILED_PRECONDITION", "PERMISSION_DENIED"}, codes)
        self.assertIsNone(server.process.poll())
        self.assertLess(server.rss_mib() - before, 512)
        caller.open("after")
        caller.submit(0, "after")
        self.assertGreater(len(caller.share(0, 5.0, "after").tasks), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_large_message_costs_no_more_than_the_quota(self):
        """Which is 128 MiB here."""
        server = self.start("--max-message", "16MiB")
        before = server.rss_mib(peak=True)
        channel = grpc.insecure_channel(
            server.target, options=[("grpc.max_send_message_length", -1)])
        for size in (20, 600):
            code, details = error_of(lambda s=size: channel.unary_unary(
                PREFIX + "CloseJob")(bytes(s << 20), timeout=60))
            self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        channel.close()
        self.assertLess(server.rss_mib(peak=True) - before, 250)
        caller = Caller(server.target)
        caller.open()
        caller.submit(0)
        self.assertGreater(len(caller.share(0).tasks), 0)
        self.assertEqual(server.stop(), 0)

    def test_a_packed_message_costs_no_memory(self):
        """400 MB of zeros are 400 KB on the wire; the limit is 64 MiB."""
        server = self.start()
        caller = Caller(server.target)
        caller.open()
        before = server.rss_mib(peak=True)
        channel = grpc.insecure_channel(
            server.target, options=[("grpc.max_send_message_length", -1)])
        for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            code, details = error_of(lambda a=algorithm: channel.unary_unary(
                PREFIX + "CloseJob")(bytes(400 << 20), timeout=60,
                                     compression=a))
            self.assertEqual(code, grpc.StatusCode.UNIMPLEMENTED, details)
            self.assertIn("ompression", details)
        channel.close()
        self.assertLess(server.rss_mib(peak=True) - before, 100)
        caller.submit(0)
        self.assertGreater(len(caller.share(0).tasks), 0)
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


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class BuildTest(unittest.TestCase):

    def test_a_service_of_another_build_is_refused_by_both_names(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        pipeloom, service = (os.path.join(folder, n)
                             for n in ("pipeloom", "pipeloom-service"))
        shutil.copy(BINARY, pipeloom)
        with open(SERVICE, "rb") as f:
            content = f.read()
        mark = b"pipeloom build: "
        names = [n for n in re.findall(mark + rb"([0-9A-Za-z.-]+)\n", content)]
        self.assertEqual(len(set(names)), 1, names)
        own = names[0].decode()
        other = own[:-1] + ("0" if own[-1] != "0" else "1")

        def run(*args):
            return subprocess.run([pipeloom, *args], capture_output=True,
                                  text=True, timeout=60)

        for text, said in (
                (content.replace(mark + names[0], mark + other.encode()),
                 other),
                (b"#!/bin/sh\necho an older one\n", "unknown")):
            with open(service, "wb") as f:
                f.write(text)
            os.chmod(service, 0o755)
            for command in ("serve", "loadgen"):
                done = run(command)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"{service} is build {said}", done.stderr)
                self.assertIn(f"pipeloom is build {own}", done.stderr)
                self.assertNotIn("older", done.stdout)
        # A program of the same build starts, and misses its certificate.
        shutil.copy(SERVICE, service)
        self.assertIn("no/such/file",
                      run("serve", "--tls-cert", "no/such/file", "--tls-key",
                          "no/such/key").stderr)
        half = run("serve", "--tls-cert", "no/such/file")
        self.assertEqual(half.returncode, 2, half.stderr)
        self.assertIn("--tls-key is not given", half.stderr)
        os.remove(service)
        self.assertIn("cannot start", run("serve").stderr)


if __name__ == "__main__":
    unittest.main()
