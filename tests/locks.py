#!/usr/bin/env python3
"""Checks that clang can check the locks (base/mutex.h).

  standard  the standard library's mutexes and locks, which carry no annotations,
            are used only where ALLOWED gives a reason; a reason that no file
            needs any more is a fault
  guarded   whoever declares a mutex says in the same file what it guards, with
            ABSL_GUARDED_BY or ABSL_PT_GUARDED_BY

usage: locks.py SOURCE_DIR
"""

import os
import re
import sys

# Files, or folders with a slash at the end.
ALLOWED = {
    "base/mutex.h": "adds the annotations",
}
TOPS = ("adapters base benchmarks cli emulator examples formats ir partition planner "
        "proto python runtime service tests")
STANDARD = re.compile(
    r"\bstd::(?:(?:recursive_|timed_|recursive_timed_|shared_|shared_timed_)?mutex"
    r"|condition_variable(?:_any)?|lock_guard|unique_lock|scoped_lock|shared_lock)\b"
    r"|#include <(?:mutex|shared_mutex|condition_variable)>")
DECLARED = re.compile(
    r"^\s*(?:mutable |static )*(?:absl::)?(?:Shared)?Mutex (\w+)(?:\{\})?;", re.MULTILINE)
COMMENT = re.compile(r"//.*")


def read_sources(root):
    """Returns the text of each C++ file, less its comments; paths are relative to
    the root."""
    sources = {}
    for top in TOPS.split():
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith((".h", ".cc")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        sources[os.path.relpath(path, root)] = COMMENT.sub("", file.read())
    return sources


def entry_of(path):
    """Returns the entry of ALLOWED that covers a file, or None."""
    for entry in ALLOWED:
        if path == entry or (entry.endswith("/") and path.startswith(entry)):
            return entry
    return None


def check(sources):
    """Returns all faults, a line each."""
    faults = []
    needed = set()
    for path, text in sorted(sources.items()):
        entry = entry_of(path)
        found = STANDARD.search(text)
        if found and entry:
            needed.add(entry)
        elif found:
            line = text.count("\n", 0, found.start()) + 1
            faults.append(f"{path}:{line}: {found.group()}: use base/mutex.h, or add the file "
                          "to ALLOWED in tests/locks.py with a reason")
        for name in DECLARED.findall(text):
            if not re.search(rf"GUARDED_BY\((?:\w+(?:\.|->))?{name}\)", text):
                faults.append(f"{path}: nothing is ABSL_GUARDED_BY({name})")
    for entry in ALLOWED:
        if entry not in needed:
            faults.append(f"tests/locks.py: {entry} needs no exception any more; delete it")
    return faults


def check_self():
    """Returns what the check itself would overlook."""
    bad = {
        "a.cc": "std::mutex m;",
        "b.cc": "const std::lock_guard lock(m);",
        "c.h": "#include <condition_variable>",
        "d.h": "struct S {\n  mutable Mutex mutex_{};\n  int x = 0;\n};",
        "e.h": "absl::Mutex mutex_;",
    }
    good = {
        "f.h": "Mutex m{};\nint x ABSL_GUARDED_BY(m) = 0;",
        "g.h": "std::atomic<int> x;\nstd::jthread t;\nMutex* const mutex_;",
    }
    found = "\n".join(check(bad | good))
    return ([f"{path} is not reported" for path in bad if f"{path}:" not in found] +
            [f"{path} is reported" for path in good if f"{path}:" in found])


def main():
    """Prints the faults; status 1 if there are any."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    sources = read_sources(sys.argv[1])
    faults = check_self() + check(sources)
    if len(sources) < 300:
        faults.append(f"only {len(sources)} files were found: is this the project?")
    for fault in faults:
        print(fault)
    if not faults:
        print(f"locks: {len(sources)} files, all mutexes are annotated or have a reason")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
