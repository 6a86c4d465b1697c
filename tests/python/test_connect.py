"""pipeloom.connect: address, token and certificate from the environment."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import grpc
    import pipeloom
    from fake_planner import SharePlanner
    HAVE_ALL = True
except ImportError:
    HAVE_ALL = False

VARIABLES = ("PIPELOOM_ADDRESS_FILE", "PIPELOOM_TOKEN_FILE",
             "PIPELOOM_TLS_ROOT")


@unittest.skipUnless(HAVE_ALL, "grpcio is missing")
class ConnectTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)
        clean = {k: v for k, v in os.environ.items() if k not in VARIABLES}
        environment = mock.patch.dict(os.environ, clean, clear=True)
        environment.start()
        self.addCleanup(environment.stop)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def opens(self, *args, **options):
        """Returns whether the client reaches a planner."""
        with pipeloom.connect(*args, timeout=10.0, **options) as client:
            return client.open_job("dip-vlm-s", job_id="run").job_id == "run"

    def test_the_address_is_given_or_in_a_file(self):
        planner = SharePlanner()
        self.addCleanup(planner.close)
        path = self.file("address", planner.target + "\n")
        self.assertTrue(self.opens(planner.target))
        self.assertTrue(self.opens("@" + path))
        os.environ["PIPELOOM_ADDRESS_FILE"] = path
        self.assertTrue(self.opens())

    def test_without_an_address_it_says_which_variable_names_one(self):
        with self.assertRaisesRegex(ValueError, "set PIPELOOM_ADDRESS_FILE"):
            pipeloom.connect()

    def test_the_token_is_sent_without_its_line_end(self):
        os.environ["PIPELOOM_TOKEN_FILE"] = self.file("token", "open sesame\n")
        with pipeloom.connect("127.0.0.1:1") as client:
            self.assertEqual(client._metadata,
                             (("authorization", "Bearer open sesame"),))
        with pipeloom.connect("127.0.0.1:1", token="mine") as client:
            self.assertEqual(client._metadata,
                             (("authorization", "Bearer mine"),))

    def test_a_file_that_cannot_be_used_is_named(self):
        for variable in ("PIPELOOM_TOKEN_FILE", "PIPELOOM_TLS_ROOT"):
            for path, why in ((os.path.join(self.folder, "none"),
                               "No such file"), (self.file("empty", " \n"),
                                                 "is empty")):
                with mock.patch.dict(os.environ, {variable: path}):
                    with self.assertRaisesRegex(
                            ValueError, f"{variable}: {path} .*{why}"):
                        pipeloom.connect("127.0.0.1:1")

    def test_a_planner_without_tls_is_not_called_in_the_clear(self):
        """Who names a certificate wants TLS."""
        planner = SharePlanner()
        self.addCleanup(planner.close)
        os.environ["PIPELOOM_TLS_ROOT"] = self.file(
            "root", "-----BEGIN CERTIFICATE-----\nAAAA\n"
            "-----END CERTIFICATE-----\n")
        with pipeloom.connect(planner.target, timeout=1.0) as client:
            with self.assertRaises(pipeloom.PlannerError) as caught:
                client.open_job("dip-vlm-s", job_id="run")
        self.assertEqual(caught.exception.code, grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(planner.asked("OpenJob"), [])


# Runs without grpcio, whether it is installed or not.
WITHOUT_GRPC = """
import pydoc, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            raise ModuleNotFoundError("No module named 'grpc'", name=name)
sys.meta_path.insert(0, Hidden())
import pipeloom
pydoc.render_doc(pipeloom)
assert "Sample" in dir(pipeloom) and "Client" not in dir(pipeloom)
try:
    from pipeloom import Client
except ImportError as error:
    print(error)
"""


class WithoutGrpcTest(unittest.TestCase):

    def test_help_works_and_the_client_names_the_packages_it_needs(self):
        said = subprocess.run(
            [sys.executable, "-c", WITHOUT_GRPC], check=True, text=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")})
        self.assertEqual(
            said.stdout, "pipeloom.Client needs grpcio and protobuf (No module "
            "named 'grpc'); install them, or the package with [client]\n")


if __name__ == "__main__":
    unittest.main()
