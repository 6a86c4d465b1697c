#!/usr/bin/env bash
# `pip install ./python`, the client alone, in a fresh virtual environment, and
# the client's example of python/README.md as printed, against a service that
# runs. tests/python/wheel_test.sh does the same for `pip install .`.
# usage: install_test.sh PIPELOOM      (says "skipped: ..." where pip has no
#                                       registry to get grpcio from)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
pipeloom=$1
work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

skip() { echo "skipped: $*"; exit 0; }
[ -x "$(dirname "$pipeloom")/pipeloom-service" ] || skip "no service was built"
/usr/bin/python3 -m venv "$work/venv" 2>/dev/null || skip "no venv module"
# A copy: pip leaves a build folder in the source folder.
cp -r "$root/python" "$work/python"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  "$work/python" >"$work/pip.log" 2>&1 || {
  grep -qiE "could not find a version|connection|network|resolve" \
    "$work/pip.log" && skip "pip reaches no package registry"
  cat "$work/pip.log"
  exit 1
}
sed -n '/^## Planning by a service$/,$p' "$root/python/README.md" |
  sed -n '/^```python$/,/^```$/p' | sed '1d;$d' >"$work/example.py"
[ "$(wc -l <"$work/example.py")" -ge 5 ]
# The example names the default port; a free one is put in its place.
"$pipeloom" serve --listen 127.0.0.1:0 --log-level error >"$work/serve.out" &
server=$!
for _ in $(seq 100); do
  grep -q listening "$work/serve.out" && break
  sleep 0.1
done
address=$(sed -n 's/^listening on //p' "$work/serve.out")
[ -n "$address" ]
sed -i "s/127.0.0.1:50551/$address/" "$work/example.py"
cd "$work" # So that the package is the installed one.
printed=$("$work/venv/bin/python" example.py)
echo "printed: $printed"
[ "$printed" = pipeloom ] || [ "$printed" = dip ]
"$work/venv/bin/python" - <<'PY'
import pipeloom
assert "/venv/" in pipeloom.__file__, pipeloom.__file__
try:  # The planner is not in this package, which says where it is.
    pipeloom.plan("dip-vlm-s", "mixed")
except ImportError as error:
    assert "pip install ." in str(error), error
else:
    raise AssertionError("a planner that was not built has planned")
PY
echo "ok"
