#!/usr/bin/env python3
"""Published step times -> the tables of `pipeloom backtest`.

usage: convert_step_times.py SOURCE_DIR OUTPUT_DIR [NAME...]

Reads the tables as their authors published them (one known file name each,
see scripts/step_times) and writes one CSV each with the columns of
docs/validation.md. Rows that the format cannot say (state-space layers,
rows that contradict themselves) are left out and counted on stderr.
"""

import csv
import os
import sys

sys.dont_write_bytecode = True  # The source tree stays as it is.
from step_times import CONVERTERS

COLUMNS = ["framework", "run", "cluster", "shape", "layout", "setup",
           "microbatch", "global_batch", "sequence", "step_ms", "peak_gib",
           "split"]

# Tables of another program's predictions (docs/evaluation/emulator.md).
PREDICTED = {"vtrain_single"}


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    source, output = arguments[:2]
    for name in arguments[2:]:
        if name not in CONVERTERS:
            sys.exit(f"there is no table {name}; there is "
                     + ", ".join(CONVERTERS))
    for name in arguments[2:] or CONVERTERS:
        file, convert, origin = CONVERTERS[name]
        path = os.path.join(source, file)
        if not os.path.exists(path):
            print(f"{name}: no {file}", file=sys.stderr)
            continue
        with open(path, newline="") as f:
            rows = [f.read()] if file.endswith(".md") else list(csv.DictReader(f))
        converted = []
        for made in map(convert, rows):  # A row, a list of rows or None.
            converted += made if isinstance(made, list) else [made] * bool(made)
        with open(os.path.join(output, name + ".csv"), "w", newline="") as f:
            kind = "Predicted" if name in PREDICTED else "Measured"
            f.write(f"# {kind} step times. From {origin}.\n"
                    f"# Changed: columns and units (docs/validation.md), by "
                    f"scripts/convert_step_times.py.\n")
            writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(converted)
        print(f"{name}: {len(converted)} of {len(rows)} rows",
              file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
