#!/usr/bin/env bash
# Build the C tests with a sanitizer and run them: sanitize.sh address,undefined|thread BUILD_DIR JOBS
#
# Without Python, since the interpreter is not built with the sanitizer. ThreadSanitizer runs the tests of what has threads; the others only
# make it slow.
set -euo pipefail
sanitizers=$1 build=$2 jobs=$3
here=$(dirname "$0")
mkdir -p "$(dirname "$build")"
if [ ! -f "$build/build.ninja" ]; then
    meson setup "$build" -Db_sanitize="$sanitizers" -Dpython=false -Dverify=true -Dbuildtype=debugoptimized -Db_lundef=false \
        -Dc_args=-fno-sanitize-recover=all >"$build.log" || { cat "$build.log"; exit 1; }
fi
python "$here/list_files.py" --refresh "$build"
ninja -C "$build" -j"$jobs" --quiet
tests=()
if [ "$sanitizers" = thread ]; then
    mapfile -t tests < <(meson test -C "$build" --list 2>/dev/null | sed 's/.* //' | grep -E 'ring|team|worker|controller|engine|comm|client|future')
fi
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
meson test -C "$build" --no-rebuild --print-errorlogs --num-processes "$jobs" --timeout-multiplier 5 "${tests[@]}"
