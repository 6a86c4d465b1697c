"""Runs the `pipeloom` command of this package: `python -m pipeloom plan ...`."""
import os
import sys


def main() -> int:
    """Replaces this process by the command. Returns only if there is none."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                           "_prefix", "bin", "pipeloom")
    if not os.path.exists(program):
        print("pipeloom: this package has no programs, as it is the client "
              "alone; `pip install .` at the project's root builds them",
              file=sys.stderr)
        return 1
    os.execv(program, ["pipeloom", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
