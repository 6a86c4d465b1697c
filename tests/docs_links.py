#!/usr/bin/python3
"""Checks that what documents point to is there.

usage: docs_links.py SOURCE_DIR

 - relative links of README.md, CONTRIBUTING.md, docs/**/*.md and the README.md
   files of other folders: the file exists, and so does the heading of an anchor;
 - files that CONTRIBUTING.md names in backquotes, such as `ir/ids.h`;
 - documents that any tracked file names as docs/NAME.md.
"""
import os
import re
import subprocess
import sys


def without_fences(text):
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", text, flags=re.S | re.M)


def anchors(path):
    """The anchors of a document's headings, as GitHub and others make them."""
    seen = {}
    found = set()
    with open(path, encoding="utf-8") as file:
        text = without_fences(file.read())
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        found.add(anchor if count == 0 else f"{anchor}-{count}")
    return found


def main():
    source = os.path.abspath(sys.argv[1])
    tracked = subprocess.run(
        ["git", "-C", source, "ls-files", "--cached", "--others",
         "--exclude-standard"], capture_output=True, text=True)
    names = tracked.stdout.splitlines()
    if tracked.returncode != 0 or not names:  # An unpacked archive.
        names = [os.path.relpath(os.path.join(folder, f), source)
                 for folder, _, files in os.walk(source) for f in files
                 if "/build" not in folder and "/.git" not in folder]
    failures = 0

    def fail(name, what):
        nonlocal failures
        failures += 1
        print(f"{name}: {what}")

    for name in names:
        path = os.path.join(source, name)
        if not os.path.isfile(path) or name == "tests/docs_links.py":
            continue
        try:
            with open(path, encoding="utf-8") as file:  # Data are longer.
                text = file.read() if name.endswith(".md") else file.read(200000)
        except UnicodeDecodeError:
            continue
        for document in re.findall(r"\bdocs/[A-Za-z0-9_/.-]+\.md\b", text):
            if not os.path.exists(os.path.join(source, document)):
                fail(name, f"there is no {document}")
        if not name.endswith(".md"):
            continue
        prose = without_fences(text)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", target):
                continue
            file_part, _, anchor = target.partition("#")
            pointed = os.path.normpath(
                os.path.join(os.path.dirname(path), file_part)
                if file_part else path)
            if not os.path.exists(pointed):
                fail(name, f"link to {target}: no such file")
            elif anchor and pointed.endswith(".md") and \
                    anchor not in anchors(pointed):
                fail(name, f"link to {target}: no such heading")
        if name == "CONTRIBUTING.md":
            for code in re.findall(r"`([A-Za-z0-9_./-]+/[A-Za-z0-9_.-]+)`",
                                   prose):
                if "NAME" in code or "." not in code.rsplit("/", 1)[1]:
                    continue
                if not os.path.exists(
                        os.path.join(source, code)):
                    fail(name, f"there is no {code}")
    print(f"links: {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
