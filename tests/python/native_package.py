"""The planner in the Python package and the command line, for tests that compare
them. Importing this ends the process where the extension was not built."""
import glob
import json
import os
import subprocess
import sys
import warnings

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                     "../.."))
PYTHON = os.path.join(ROOT, "python")
WORKLOADS = os.path.join(ROOT, "workloads")
BINARY = os.environ.get("PIPELOOM_BINARY", "")
# The folder of the extension; empty: that of an installed package.
NATIVE = os.environ.get("PIPELOOM_NATIVE", "")
if NATIVE != "installed" and not glob.glob(os.path.join(NATIVE, "_native*")):
    print("skipped: the Python extension was not built")
    sys.exit(0)

START = "import pipeloom\n"
if NATIVE != "installed":
    START = (f"import sys; sys.path.insert(0, {PYTHON!r})\n"
             f"import pipeloom; pipeloom.__path__.append({NATIVE!r})\n")
exec(START)  # As the processes that tests start.
import pipeloom  # noqa: E402
from pipeloom import planner  # noqa: E402

warnings.simplefilter("ignore", planner.PlanningWarning)
SEARCH = {"evaluations": 20, "seed": 3, "threads": 2}
FLAGS = ["--evaluations", "20", "--seed", "3", "--threads", "2"]


def command(*arguments):
    """Returns what the command prints."""
    return subprocess.run(
        [BINARY, *arguments], check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PIPELOOM_DATA_DIR": WORKLOADS}).stdout


def command_json(*arguments):
    return json.loads(command(*arguments, "--format", "json"))


def without_times(value):
    """Returns JSON without the wall times that it has."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items()
                if k not in ("search_us", "emulation_us")}
    if isinstance(value, list):
        return [without_times(v) for v in value]
    return value


def python(code, **options):
    """Returns the output of a process that runs `code`."""
    return subprocess.run([sys.executable, "-c", START + code], text=True,
                          check=True, stdout=subprocess.PIPE,
                          timeout=120, **options).stdout
