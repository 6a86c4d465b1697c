#!/usr/bin/python3
"""Runs the commands that the documents show.

usage: docs_commands.py PIPELOOM_BINARY SOURCE_DIR [DOCUMENT...]

Documents are README.md and docs/**/*.md of SOURCE_DIR, or those named. In each,
in a temporary folder of its own and in the order of the text:

    ```console            lines that begin with "$ pipeloom" or "$ python3" are
                          run; a line that ends in a backslash goes on; a
                          command that ends in " &" runs until the end of the
                          document; all other lines are output
    ```console no-run     shown only: needs a network, a GPU, a long time or
                          files of the reader
    ```json file=NAME     (or python, text) the block is written to that file

A command that exits with another code than 0 fails the test, and so does a
`pipeloom` command line in a block of another kind. The address 127.0.0.1:50551
stands for a free port. A `python3` command whose file imports pipeloom is left
out where grpcio is missing.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PYTHON = sys.executable
ADDRESS = "127.0.0.1:50551"
SECONDS = 300


def blocks(text):
    """Yields (line number, info string, lines) of every fenced block."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"^\s*```(.*)$", line)
        if match and fence is None:
            fence = (number, match.group(1).strip(), [])
        elif match:
            yield fence
            fence = None
        elif fence is not None:
            fence[2].append(line)
    if fence is not None:
        raise ValueError(f"line {fence[0]}: a fence is never closed")


def commands(lines):
    """Yields the commands of a console block, continued lines joined."""
    joined = None
    for line in lines:
        if joined is not None:
            joined += " " + line.strip()
        elif line.startswith("$ "):
            joined = line[2:].strip()
        else:
            continue
        if joined.endswith("\\"):
            joined = joined[:-1].rstrip()
        else:
            yield joined
            joined = None


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


def wait_for(address):
    host, port = address.split(":")
    for _ in range(300):
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.1)


class Document:
    def __init__(self, path, binary, source):
        self.path = path
        self.name = os.path.relpath(path, source)
        self.folder = tempfile.mkdtemp(prefix="docs_commands.")
        self.address = free_address()
        self.background = []
        self.failures = 0
        self.ran = 0
        self.need_grpc = set()  # Files that import pipeloom.
        tools = os.path.join(self.folder, ".bin")
        os.mkdir(tools)
        os.symlink(os.path.abspath(binary), os.path.join(tools, "pipeloom"))
        os.symlink(PYTHON, os.path.join(tools, "python3"))
        for folder in ("examples", "workloads"):  # As in the source tree.
            os.symlink(os.path.join(source, folder),
                       os.path.join(self.folder, folder))
        self.environment = dict(
            os.environ, PATH=tools + os.pathsep + os.environ["PATH"],
            PIPELOOM_DATA_DIR=os.path.join(source, "workloads"),
            PYTHONPATH=os.path.join(source, "python"),
            PYTHONDONTWRITEBYTECODE="1")

    def fail(self, line, what):
        self.failures += 1
        print(f"{self.name}:{line}: {what}")

    def run_command(self, line, command):
        command = command.replace(ADDRESS, self.address)
        if command.endswith(" &"):
            self.background.append(subprocess.Popen(
                command[:-2], shell=True, cwd=self.folder,
                env=self.environment, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            wait_for(self.address)
            self.ran += 1
            return
        begin = time.monotonic()
        try:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command], cwd=self.folder,
                env=self.environment, timeout=SECONDS, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            self.fail(line, f"takes over {SECONDS} s: {command}")
            return
        self.ran += 1
        print(f"{self.name}:{line}: {time.monotonic() - begin:.1f} s: "
              f"{command}")
        if done.returncode != 0:
            self.fail(line, f"exit code {done.returncode}: {command}\n"
                      + done.stdout[-2000:])

    def run(self, with_grpc):
        with open(self.path, encoding="utf-8") as file:
            text = file.read()
        for line, info, lines in blocks(text):
            words = info.split()
            kind = words[0] if words else ""
            names = [w[5:] for w in words if w.startswith("file=")]
            if names:
                with open(os.path.join(self.folder, names[0]), "w",
                          encoding="utf-8") as out:
                    out.write("\n".join(lines).replace(ADDRESS, self.address)
                              + "\n")
                if any(re.match(r"(import|from) pipeloom", x) for x in lines):
                    self.need_grpc.add(names[0])
            elif kind != "console":
                for shown in lines:
                    if re.match(r"^\s*(\$ )?pipeloom [a-z]+ ", shown):
                        self.fail(line, "a command outside of a ```console "
                                  f"block: {shown.strip()}")
            elif "no-run" not in words:
                for command in commands(lines):
                    program, *rest = command.split()
                    if program not in ("pipeloom", "python3"):
                        self.fail(line, "neither pipeloom nor python3; mark "
                                  f"the block no-run: {command}")
                    elif with_grpc or not self.need_grpc.intersection(rest):
                        self.run_command(line, command)

    def close(self):
        for process in self.background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    binary, source = sys.argv[1], os.path.abspath(sys.argv[2])
    documents = [os.path.abspath(p) for p in sys.argv[3:]]
    if not documents:
        documents = [os.path.join(source, "README.md")]
        for folder, _, files in sorted(os.walk(os.path.join(source, "docs"))):
            documents += [os.path.join(folder, f) for f in sorted(files)
                          if f.endswith(".md")]
    with_grpc = subprocess.run(
        [PYTHON, "-c", "import grpc, google.protobuf"],
        stderr=subprocess.DEVNULL).returncode == 0
    if not with_grpc:
        print("programs that import pipeloom are left out: no grpcio")
    failures = ran = 0
    for path in documents:
        document = Document(path, binary, source)
        try:
            document.run(with_grpc)
        finally:
            document.close()
        failures += document.failures
        ran += document.ran
    print(f"{ran} commands of {len(documents)} documents, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
