#!/usr/bin/env python3
"""Checks who includes whom; fails on the first thing that is not allowed.

  folders   a folder includes only those that the table below lists
  rooms     between the rooms (subfolders) of a folder arrows go one way
  units     no unit (a header with its source) is in a ring of includes
  size      no room has more than MAX_FILES headers and sources
  document  every room has its line in docs/architecture.md

usage: layering.py SOURCE_DIR
"""

import collections
import os
import re
import sys

MAX_FILES = 25
ALLOWED = {
    "base": "base",
    "ir": "base ir",
    "emulator": "base ir emulator",
    "adapters": "base ir adapters",
    "runtime": "base ir runtime",
    "formats": "base ir formats",
    "proto": "base ir proto pipeloom",
    "partition": "base ir emulator partition",
    "planner": "base ir emulator partition planner",
    "trace": "base ir emulator runtime formats partition planner trace",
    "studies": "base ir emulator formats proto partition planner studies",
    "service": "base ir emulator formats proto pipeloom partition planner service",
    "cli": ("base ir emulator adapters runtime formats proto pipeloom partition planner "
            "trace studies service cli"),
    "python": ("base ir emulator adapters runtime formats proto pipeloom partition planner "
               "trace studies cli python"),
}
# Folders whose files lie side by side by nature: one idea, few enough to know.
UNROOMED = {"runtime", "runtime/torch"}
INCLUDE = re.compile(r'^#include "([a-z_]+/[^"]+)"', re.MULTILINE)


def read_includes(root):
    """Returns the project's headers that each source file includes, with paths
    relative to the root."""
    includes = {}
    for top in ALLOWED:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith((".h", ".cc")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
                    includes[os.path.relpath(path, root)] = INCLUDE.findall(text)
    return includes


def unit_of(path):
    """Returns the name that a header and its source share."""
    return os.path.splitext(path)[0]


def find_rings(graph):
    """Strongly connected sets of more than one node (Tarjan, iterative)."""
    index, low, on_stack, stack, rings = {}, {}, set(), [], []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(sorted(graph.get(successor, ())))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    ring = []
                    while not ring or ring[-1] != node:
                        ring.append(stack.pop())
                        on_stack.discard(ring[-1])
                    if len(ring) > 1:
                        rings.append(sorted(ring))
    return rings


def check(root):
    """All faults, a line each."""
    includes = read_includes(root)
    faults = []
    rooms = collections.defaultdict(set)
    units = collections.defaultdict(set)
    files = collections.Counter()
    for path, targets in sorted(includes.items()):
        top, room = path.split("/")[0], os.path.dirname(path)
        files[room] += 1
        for target in targets:
            into = target.split("/")[0]
            if into not in ALLOWED and into not in ("pipeloom", "tests", "benchmarks"):
                continue
            if into not in ALLOWED[top].split():
                faults.append(f"{path}: {top}/ must not include {target}")
            if os.path.dirname(target) != room and into == top:
                rooms[room].add(os.path.dirname(target))
            if unit_of(target) != unit_of(path) and target in includes:
                units[unit_of(path)].add(unit_of(target))
    for ring in find_rings({room: into for room, into in rooms.items()}):
        faults.append("rooms in a ring: " + ", ".join(ring))
    for ring in find_rings(units):
        faults.append("units in a ring: " + ", ".join(ring))
    for room, count in sorted(files.items()):
        if count > MAX_FILES and room not in UNROOMED:
            faults.append(f"{room}/ has {count} files; at most {MAX_FILES}")
    with open(os.path.join(root, "docs/architecture.md"), encoding="utf-8") as file:
        document = file.read()
    for room in sorted(files):
        if f"`{room}/`" not in document:
            faults.append(f"docs/architecture.md has no line for `{room}/`")
    if len(includes) < 300:
        faults.append(f"only {len(includes)} files were found: is this the project?")
    return faults


def main():
    """Prints the faults; status 1 if there are any."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    faults = check(sys.argv[1])
    for fault in faults:
        print(fault)
    if not faults:
        print("layering: folders, rooms, units and the document agree")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
