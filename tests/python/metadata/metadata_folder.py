"""A folder of data sets for tests of pipeloom.metadata, and its command."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

import media_files as mf  # noqa: E402
from pipeloom import Sample, metadata  # noqa: E402
from pipeloom.metadata import packages  # noqa: E402

BINARY = os.environ.get("PIPELOOM_BINARY")


def have(module):
    return packages.optional(module) is not None


def clip(frames, width, height, seconds):
    return {"frames": frames, "width_px": width, "height_px": height,
            "seconds": seconds}


def run(*arguments, cwd=None, **options):
    """Runs the command; returns (code, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeloom.metadata", *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")},
        check=False, **options)
    return done.returncode, done.stdout, done.stderr


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def put(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return self.path(name)

    def read(self, *names, **options):
        return list(metadata.read(self.path(*names), **options))

    def shards(self, count, samples, broken=()):
        """Writes shards; sample n has an image of 100 + n x 50 pixels and n + 4
        bytes of text. `broken`: numbers of samples whose image is damaged."""
        for s in range(count):
            members = []
            for i in range(samples):
                n = s * samples + i
                image = mf.jpeg(100 + n, 50)
                members += [(f"{n:06d}.jpg", image[:9] if n in broken else
                             image), (f"{n:06d}.txt", b"x" * (n + 4))]
            mf.shard(self.path(f"shard-{s:03d}.tar"), members)
        return [Sample(-(-(n + 4) // 4), ((100 + n, 50),))
                for n in range(count * samples) if n not in broken]
