#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests: the full suite optimised,
# search and runtime under the address and undefined-behaviour sanitizers, an
# install, and a short run of the fuzz targets of the parsers: some 80 minutes on
# two cores if nothing was compiled before. Three parts run only if they are
# named: asan-all, the full suite under these sanitizers (50 minutes), tsan, the
# threaded parts under the thread sanitizer (ten minutes more), and quick, for
# daily work: format, a build, and the tests of the folders that differ from
# PIPELOOM_QUICK_BASE (HEAD).
# usage: scripts/test.sh [format|dev|install|asan|fuzz|asan-all|tsan|quick ...]
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(format dev install asan fuzz)
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
jobs=$(nproc)
test_jobs=$((jobs + 1)) # Many tests wait for other processes.

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

# Builds a preset; further arguments go to cmake --build.
build() {
  local preset=$1 log=build/$1.configure.log options=()
  shift
  mkdir -p build
  if [ "$preset" = dev ]; then
    read -r -a options < <(scripts/python_tools.sh) || true
  fi
  cmake --preset "$preset" "${options[@]}" >"$log" 2>&1 ||
    { cat "$log"; return 1; }
  grep '^-- pipeloom:' "$log" || true
  cmake --build --preset "$preset" -j "$jobs" "$@" -- --quiet
}

# Runs the tests of a build folder; further arguments go to ctest. Those that
# fail run once more, alone: tests with real processes and sockets may starve
# next to others on a busy machine. The names of both runs are printed.
run_tests() {
  local options=(--test-dir "build/$1" --output-on-failure "${@:2}")
  PIPELOOM_PARTITION=rule ctest "${options[@]}" -j "$test_jobs" --progress &&
    return
  say "failed tests of $1, once more and alone"
  # Tests are known by number, which the options that leave some out change.
  PIPELOOM_PARTITION=rule ctest "${options[@]}" -j 1 --rerun-failed
}

# Prints the regular expression of the tests that sanitizer builds leave out.
left_out_with_sanitizers() {
  grep -v '^#' tests/not_with_sanitizers.txt | paste -sd'|'
}

# Prints the folders of tests/ for all files that differ from a commit.
changed_tests() {
  { git diff --name-only "${PIPELOOM_QUICK_BASE:-HEAD}"
    git ls-files --others --exclude-standard
  } | sed -E 's#^tests/##; s#^python/.*#python/#; s#/.*##' | sort -u |
    while read -r folder; do
      if [ -d "build/dev/tests/$folder" ]; then echo "$folder"; fi
    done
}

if [ "${parts[*]}" != quick ]; then
  say "packages"
  scripts/install_packages.sh --tests
fi
for part in "${parts[@]}"; do
  say "$part"
  case "$part" in
    format)
      git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror ;;
    dev)
      build dev
      run_tests dev ;;
    quick)
      git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror
      build dev
      ctest --preset dev -R '^(layering|locks|docs_words|docs_links)$'
      for folder in $(changed_tests); do
        ctest --test-dir "build/dev/tests/$folder" -j "$jobs" --progress \
          --output-on-failure
      done ;;
    install)
      build dev
      tests/install/run.sh build/dev ;;
    asan)
      build asan --target tests/base/all tests/planner/all tests/runtime/all
      for folder in base planner runtime; do
        run_tests "asan/tests/$folder" -E "$(left_out_with_sanitizers)"
      done ;;
    asan-all)
      build asan
      run_tests asan -E "$(left_out_with_sanitizers)" ;;
    tsan)
      # The threaded parts; libraries without instrumentation (gRPC, protobuf)
      # are ignored.
      build tsan --target runtime_tests emulator_tests planner_tests
      for folder in runtime emulator planner; do
        TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
          "build/tsan/tests/$folder/${folder}_tests" --gtest_brief=1
      done ;;
    fuzz)
      # All other targets would need the whole planner to be instrumented.
      scripts/fuzz.sh "${PIPELOOM_FUZZ_SECONDS:-10}" fuzz_batch fuzz_job \
        fuzz_task_graph fuzz_plan_proto fuzz_plan_text fuzz_measurements ;;
    *)
      echo "unknown part \"$part\"; parts: format dev install asan fuzz asan-all tsan quick" >&2
      exit 2 ;;
  esac
done
say "all passed: ${parts[*]}"
