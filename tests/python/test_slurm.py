"""The job script of examples/slurm, with programs in the place of Slurm's: the
trainer's client, as the script describes it, reaches the planner that the
script starts."""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

from real_service import BINARY, HAVE_ALL, ROOT

SCRIPT = os.path.join(ROOT, "examples/slurm/train.sbatch")


def documented_client():
    """Returns the code in the comment of the script."""
    with open(SCRIPT, encoding="utf-8") as file:
        lines = re.findall(r"^#(   .*\n)", file.read(), re.MULTILINE)
    return textwrap.dedent("".join(lines))


@unittest.skipUnless(HAVE_ALL, "grpcio or the service is missing")
@unittest.skipUnless(shutil.which("openssl"), "openssl is missing")
class SlurmTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def program(self, name, text):
        os.makedirs(self.path("bin"), exist_ok=True)
        path = os.path.join(self.path("bin"), name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + text)
        os.chmod(path, 0o755)

    def test_the_documented_client_reaches_the_planner(self):
        self.program("scontrol", "echo localhost\n")
        self.program("srun", 'while [[ "$1" == --* ]]; do shift; done\n'
                     'exec "$@"\n')
        self.program("pipeloom", f'exec "{BINARY}" "$@"\n')
        self.program("python3", f'exec "{sys.executable}" "$@"\n')
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
             "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
             "-keyout", self.path("key"), "-out", self.path("cert")],
            check=True, capture_output=True)
        with open(self.path("token"), "w", encoding="ascii") as file:
            file.write("open sesame\n")
        os.chmod(self.path("token"), 0o600)
        with open(self.path("train.py"), "w", encoding="utf-8") as file:
            file.write(documented_client() +
                       "job = client.open_job('dip-vlm-s', "
                       "[pipeloom.Sample(500)] * 64, partition_time=0)\n"
                       "print('opened', job.job_id)\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "PATH": f"{self.path('bin')}:{os.environ['PATH']}",
               "PYTHONPATH": os.path.join(ROOT, "python"),
               "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "localhost",
               "SLURM_SUBMIT_DIR": self.folder, "PIPELOOM_PORT": str(port),
               "PIPELOOM_TOKEN_FILE": self.path("token"),
               "PIPELOOM_TLS_CERT": self.path("cert"),
               "PIPELOOM_TLS_KEY": self.path("key"),
               "TRAIN": self.path("train.py")}
        done = subprocess.run(["bash", SCRIPT], env=env, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertIn("opened dip-vlm-s", done.stdout, done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("open sesame", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
