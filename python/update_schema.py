"""Writes pipeloom/_schema.py from the .proto files, by protoc.

usage: update_schema.py [--check]

--check: 1 if the file is not what protoc makes of the .proto files now.
"""
import base64
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = ROOT / "python" / "pipeloom" / "_schema.py"


def render() -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "schema.binpb"
        subprocess.run(
            ["protoc", "--include_imports", f"-I{ROOT / 'proto'}",
             f"--descriptor_set_out={out}",
             str(ROOT / "proto/pipeloom/v1/planner_service.proto")],
            check=True)
        text = base64.b64encode(out.read_bytes()).decode()
    lines = [text[i:i + 76] for i in range(0, len(text), 76)]
    body = "\n".join(f'    "{line}"' for line in lines)
    return ('"""Generated from proto/pipeloom/v1 by update_schema.py."""\n'
            f"FILE_DESCRIPTOR_SET = (\n{body}\n)\n")


def main() -> int:
    text = render()
    if sys.argv[1:] == ["--check"]:
        same = TARGET.exists() and TARGET.read_text() == text
        if not same:
            print(f"{TARGET} is out of date: run {sys.argv[0]}")
        return 0 if same else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
