#!/usr/bin/env bash
# The Python package with the planner, installed by pip into a fresh virtual
# environment: the tests of the planner, the examples of python/README.md and of
# the tutorial, the programs. `pip install .` takes a whole build, so no test of
# ctest runs it.
# usage: wheel_test.sh PIPELOOM [WHEEL | pip options, such as
#   --config-settings=cmake.build-type=RelWithDebInfo]
# PIPELOOM is the binary whose plans the package's plans must equal. WHEEL is of
# scripts/wheel.sh; it is installed instead of the source tree and must use no
# library of the system that is not on every Linux.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
pipeloom=$(realpath "$1")
shift
wheel=
if [[ ${1:-} == *.whl ]]; then
  wheel=$(realpath "$1")
  shift
fi
work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

/usr/bin/python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$@" \
  "${wheel:-$root}"
cd "$work" # So that the package is the installed one.
unset PIPELOOM_DATA_DIR PYTHONPATH
"$work/venv/bin/pipeloom" --version
"$work/venv/bin/python" -m pipeloom validate dip-vlm-s
"$work/venv/bin/pipeloom" bench --problems minmem --strategies v-min \
  --budgets 10ms >"$work/bench.log"
"$work/venv/bin/python" - <<'PY'
import importlib.util
import pipeloom
assert "/venv/" in pipeloom.__file__, pipeloom.__file__
assert importlib.util.find_spec("grpc") is None
PY
package=$(echo "$work"/venv/lib/python*/site-packages/pipeloom)
if [ -n "$wheel" ]; then
  ldd "$package"/_native*.so "$package"/_prefix/bin/* >"$work/libraries"
  everywhere='lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+]|z)[.]so'
  if grep '=>' "$work/libraries" | grep -v " => $work/venv/" |
    grep -vE "^[[:space:]]*$everywhere"; then
    echo "the wheel uses these libraries of the system"
    exit 1
  fi
fi
for part in native native_process; do
  PIPELOOM_BINARY=$pipeloom PIPELOOM_NATIVE=installed \
    "$work/venv/bin/python" "$root/tests/python/test_$part.py"
done
if [ -e "$package/_prefix/bin/pipeloom-service" ]; then
  "$work/venv/bin/pipeloom" serve --listen 127.0.0.1:0 --log-level off \
    >"$work/serve.out" &
  server=$!
  for _ in $(seq 100); do
    grep -q listening "$work/serve.out" && break
    sleep 0.1
  done
  grep listening "$work/serve.out"
fi
echo "ok"
