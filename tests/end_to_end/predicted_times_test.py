#!/usr/bin/env python3
"""The times of vtrain_single are a program's predictions: no measurement is so
even. Fails if its rows no longer show it, as then its description is wrong.

  microbatches  of three rows that differ in the number of microbatches alone,
                the one between is on the line of the others
  replicas      two rows without pipeline that differ in replicas alone differ
                by a time that depends on neither microbatches nor their size
"""
import collections
import csv
import pathlib
import sys

TABLE = pathlib.Path(__file__).resolve().parent.parent.parent / "workloads" / \
    "validation" / "vtrain_single.csv"
ROUNDING_MS = 0.001  # Of the published times, or the table's.


def rows():
    with open(TABLE, newline="") as file:
        for row in csv.DictReader(line for line in file if line[0] != "#"):
            layout = dict(word.split("=") for word in row["layout"].split())
            replicas = int(layout.pop("dp"))
            batches = int(row["global_batch"]) // int(row["microbatch"]) // replicas
            yield (row["shape"], layout["tp"], layout["pp"], replicas,
                   row["microbatch"], batches, float(row["step_ms"]))


def main():
    by_batches = collections.defaultdict(dict)
    by_replicas = collections.defaultdict(lambda: collections.defaultdict(list))
    for shape, tp, pp, replicas, size, batches, time in rows():
        by_batches[shape, tp, pp, replicas, size][batches] = time
        if pp == "1":
            by_replicas[shape, tp][size, batches].append((replicas, time))
    lines = differences = 0
    worst = 0
    for times in by_batches.values():
        if len(times) < 3:
            continue
        (a, x), *between, (c, z) = sorted(times.items())
        for b, y in between:
            lines += 1
            worst = max(worst, abs(x + (z - x) * (b - a) / (c - a) - y))
    for alike in by_replicas.values():
        between = collections.defaultdict(list)
        for times in alike.values():
            for few, x in times:
                for many, y in times:
                    if few < many:
                        between[few, many].append(y - x)
        for values in between.values():
            differences += len(values) - 1
            worst = max(worst, max(values) - min(values))
    print(f"{lines} rows on lines, {differences} equal differences, worst "
          f"{worst:.4f} ms")
    return 0 if lines >= 30 and differences >= 20 and worst <= 3 * ROUNDING_MS \
        else 1


if __name__ == "__main__":
    sys.exit(main())
