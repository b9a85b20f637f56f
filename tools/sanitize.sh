#!/usr/bin/env bash
# Build the C tests with a sanitizer and run them: sanitize.sh SANITIZERS BUILD_DIR JOBS
# No Python in this build: the interpreter itself is not built with the sanitizer.
set -euo pipefail
sanitizers=$1 build=$2 jobs=$3
here=$(dirname "$0")
[ -f "$build/build.ninja" ] || meson setup "$build" -Db_sanitize="$sanitizers" -Dpython=false -Dbuildtype=debugoptimized -Db_lundef=false >/dev/null
python "$here/list_files.py" --refresh "$build"
ninja -C "$build" -j"$jobs" --quiet
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "$jobs" --timeout-multiplier 5
