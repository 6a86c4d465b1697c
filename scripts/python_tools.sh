#!/usr/bin/env bash
# Prints the options of cmake that build the Python extension too, if nanobind is
# there; otherwise one line on stderr. nanobind is no package of Debian 12, so
# this installs it into a virtual environment in build/python_tools, once.
# usage: cmake --preset dev $(scripts/python_tools.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
tools=build/python_tools
log=build/python_tools.log

skip() { echo "pipeloom: no Python extension: $*" >&2; exit 0; }
headers=$(/usr/bin/python3 -c 'import sysconfig as s; print(s.get_path("include"))')
[ -e "$headers/Python.h" ] || skip "python3-dev is missing"
if ! "$tools/bin/python" -m nanobind --version >/dev/null 2>&1; then
  mkdir -p build
  { /usr/bin/python3 -m venv "$tools" &&
    "$tools/bin/pip" install --quiet --disable-pip-version-check \
      'nanobind>=2.4'; } >"$log" 2>&1 || skip "$(tail -1 "$log")"
fi
echo "-DPIPELOOM_BUILD_PYTHON=ON" \
  "-Dnanobind_ROOT=$("$tools/bin/python" -m nanobind --cmake_dir)"
