#!/usr/bin/env python3
"""Gives every command and the Python API what users give them by mistake, and
compares what they answer with table.json.

usage: bad_inputs.py PIPELOOM NATIVE [--update]

PIPELOOM is the program, NATIVE the folder of the Python extension ("": the rows
of Python are left out; without pipeloom-service those that need it). Each row of
the table has a command line or a line of Python, the files that it changes, the
exit code (Python: 1 for an exception) and what the message says. No row may end
by a signal, leave a file behind or change one. --update writes the codes and
messages as they are now; read them before you keep them. In the table's files a
value is the content, or changes of the fields of a JSON file; null removes a
field.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
TABLE = HERE / "table.json"
# Commands that search get few evaluations, unless they are given a plan.
SEARCHING = ("plan", "compare", "emulate", "whatif", "explain")
LONGEST_MESSAGE = 400
HINT = "` lists the options"
PYTHON = """
import sys, warnings
sys.path.insert(0, {python!r})
import pipeloom
pipeloom.__path__.append({native!r})
job = pipeloom.Job("llama3-8b", "h100-sxm", tp=2, pp=4, microbatches=8,
                   microbatch_tokens=8192)
texts = [{{"text_tokens": 4000}}] * 64
few = dict(evaluations=20, partition="rule")
try:
    {code}
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
    sys.exit(1)
"""


def read(folder, name):
    return json.loads((ROOT / "workloads" / folder / f"{name}.json").read_text())


def make_files(folder, pipeloom, environment):
    """Writes the inputs that the rows change."""
    text, images, omni = (read("jobs", name) for name in
                          ("llama3-8b", "qwen2.5-vl-7b", "qwen2.5-omni-7b"))
    text["parallel"] = {"tp": 2, "pp": 4, "dp": 1}
    text["training"]["microbatches"] = 8
    images["training"]["microbatches"] = 4
    for job in (images, omni):
        job["parallel"]["dp"] = 1
    for name, value in {
            "job.json": text, "vlm.json": images, "omni.json": omni,
            "model.json": read("models", "qwen2.5-vl-7b"),
            "cluster.json": read("clusters", "h100-sxm")}.items():
        (folder / name).write_text(json.dumps(value))
    (folder / "odd.jsonl").write_text('{"id": 3, "size": 7}')
    (folder / "b.jsonl").write_text('{"text_tokens": 4000}\n' * 64)
    (folder / "v.jsonl").write_text(
        '{"text_tokens": 900, "images": [[640, 480]]}\n' * 64)
    (folder / "folder").mkdir()
    for line in ("plan job.json --batch b.jsonl --evaluations 50 --out plan.txt "
                 "--trace measured.json",
                 "export plan.txt --to graph-json --out graph.json"):
        subprocess.run([pipeloom, *line.split()], cwd=folder, check=True,
                       env=environment, stdout=subprocess.DEVNULL)
    whole = (folder / "plan.txt").read_text()
    (folder / "half.txt").write_text(whole[:len(whole) // 2])


def change(path, changes):
    """Changes fields, named like "modules.1.name", of a JSON file."""
    document = json.loads(path.read_text())
    for field, value in changes.items():
        at = document
        *parts, last = field.split(".")
        for part in parts:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(
                part, {})
        last = int(last) if isinstance(at, list) else last
        if value is None:
            del at[last]
        else:
            at[last] = value
    path.write_text(json.dumps(document))


def contents(folder):
    return {path.name: path.read_bytes()
            for path in folder.iterdir() if path.is_file()}


def answer(row, folder, pipeloom, native, environment):
    """Returns the exit code, the message, and which files were touched."""
    for name, value in row.get("files", {}).items():
        if isinstance(value, str):
            (folder / name).write_bytes(value.encode("latin-1"))
        else:
            change(folder / name, value)
    before = contents(folder)
    if "python" in row:
        command = [sys.executable, "-c", PYTHON.format(
            python=str(ROOT / "python"), native=native, code=row["python"])]
    else:
        line = row["command"]
        command = [pipeloom, *line.split()]
        if (line.startswith(SEARCHING) and "--batch" in line
                and "--evaluations" not in line and "--deadline" not in line):
            command += ["--evaluations", "20"]
    done = subprocess.run(command, cwd=folder, env=environment, text=True,
                          capture_output=True, timeout=300)
    said = done.stderr.splitlines()
    # These two print what they find in files.
    if done.returncode != 0 and row.get("command", "").startswith(
            ("validate", "model")):
        said = done.stdout.splitlines() + said
    message = "\n".join(line for line in said if not line.endswith(HINT))
    after = contents(folder)
    touched = sorted(name for name in before.keys() | after.keys()
                     if before.get(name) != after.get(name))
    return done.returncode, message[:LONGEST_MESSAGE], touched


def main():
    pipeloom, native = os.path.abspath(sys.argv[1]), sys.argv[2]
    updates = sys.argv[3:] == ["--update"]
    rows = json.loads(TABLE.read_text())
    failures = left_out = 0
    has_service = os.path.exists(
        os.path.join(os.path.dirname(pipeloom), "pipeloom-service"))
    with tempfile.TemporaryDirectory() as made:
        base = pathlib.Path(made) / "base"
        base.mkdir()
        environment = {**os.environ, "PIPELOOM_PARTITION": "rule",
                       "PIPELOOM_CACHE_DIR": str(pathlib.Path(made) / "cache"),
                       "PIPELOOM_DATA_DIR": str(ROOT / "workloads"),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        make_files(base, pipeloom, environment)
        for row in rows:
            line = row.get("command", "")
            needs_service = line.startswith(("serve", "loadgen")) or (
                "--service" in line)
            if ("python" in row and not native) or (
                    needs_service and not has_service):
                left_out += 1
                continue
            folder = pathlib.Path(made) / "row"
            shutil.copytree(base, folder)
            code, message, touched = answer(row, folder, pipeloom, native,
                                            environment)
            shutil.rmtree(folder)
            wrong = []
            if code not in (0, 1, 2):
                wrong.append(f"ended with {code}")
            if not message:
                wrong.append("said nothing")
            if touched:
                wrong.append(f"wrote {', '.join(touched)}")
            if updates:
                row["code"], row["says"] = code, message
            elif code != row["code"]:
                wrong.append(f"exit code {code}, not {row['code']}")
            elif message != row["says"]:
                wrong.append(f"said:\n  {message}\ninstead of:\n  {row['says']}")
            if wrong:
                failures += 1
                print(f"{row['what']}: {'; '.join(wrong)}")
    if updates:
        TABLE.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(rows) - left_out} bad inputs, {failures} failures"
          + (f"; {left_out} rows left out" if left_out else ""))
    return 1 if failures or len(rows) - left_out < 150 else 0


if __name__ == "__main__":
    sys.exit(main())
