"""Health checking and reflection of a real `pipeloom serve` process: what a
caller that knows nothing learns, and the clients that others use."""
import time
import unittest

from real_service import HAVE_ALL, METHODS, PREFIX, Caller, Server, code_of

if HAVE_ALL:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool
    from pipeloom import messages


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


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
class PeerClientTest(unittest.TestCase):
    """The clients that others use, where they are installed."""

    def start(self):
        server = Server()
        self.addCleanup(server.process.kill)
        self.addCleanup(server.process.stdout.close)
        return server

    def test_the_health_package_understands_us(self):
        try:
            from grpc_health.v1 import health_pb2, health_pb2_grpc
        except ImportError:
            self.skipTest("grpcio-health-checking is missing")
        server = self.start()
        stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(server.target))
        status = health_pb2.HealthCheckResponse

        def ask(name):
            return health_pb2.HealthCheckRequest(service=name)

        for name in ("", "pipeloom.v1.PlannerService", "grpc.health.v1.Health"):
            self.assertEqual(stub.Check(ask(name), timeout=10).status,
                             status.SERVING, name)
        self.assertEqual(
            code_of(lambda: stub.Check(ask("nobody"), timeout=10)),
            grpc.StatusCode.NOT_FOUND)
        watched = stub.Watch(ask(""), timeout=30)
        unknown = stub.Watch(ask("nobody"), timeout=30)
        self.assertEqual(next(watched).status, status.SERVING)
        self.assertEqual(next(unknown).status, status.SERVICE_UNKNOWN)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(next(watched).status, status.NOT_SERVING)

    def test_the_reflection_package_finds_every_type(self):
        try:
            from grpc_reflection.v1alpha import (
                proto_reflection_descriptor_database as database)
        except ImportError:
            self.skipTest("grpcio-reflection is missing")
        server = self.start()
        peer = database.ProtoReflectionDescriptorDatabase(
            grpc.insecure_channel(server.target))
        self.assertIn("pipeloom.v1.PlannerService", peer.get_services())
        pool = descriptor_pool.DescriptorPool(peer)
        service = pool.FindServiceByName("pipeloom.v1.PlannerService")
        self.assertTrue(set(METHODS) <= {m.name for m in service.methods})
        rank_plan = pool.FindMessageTypeByName("pipeloom.v1.RankPlan")
        self.assertIn("program", rank_plan.fields_by_name)
        with self.assertRaises(KeyError):
            pool.FindMessageTypeByName("no.such")
        with self.assertRaises(KeyError):
            peer.FindFileByName("no/such.proto")
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
