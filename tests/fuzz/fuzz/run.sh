#!/bin/sh
# Throws bytes at one target, or at all in turn, guided by the coverage they reach.
#
#   run.sh TARGET SECONDS     TARGET: a folder of tests/fuzz/corpus, or "all"
#
# Works with a stable toolchain. Counting coverage is a pass of the compiler that any release has; the address
# sanitizer is taken where the toolchain brings its runtime (PENSTOCK_FUZZ_SANITIZER=none leaves it out).
set -eu
cd "$(dirname "$0")"

target=${1:-all}
seconds=${2:-60}
root=$(cd ../../.. && pwd)
build=${CARGO_TARGET_DIR:-$root/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

for place in ../corpus/*/; do names="${names:-} $(basename "$place")"; done
case " all $names " in
*" $target "*) ;;
*) echo "fuzz: \`$target\` is not a target; there are:$names" >&2; exit 2 ;;
esac
case "$seconds" in
'' | *[!0-9]*) echo "fuzz: SECONDS=$seconds is not a number" >&2; exit 2 ;;
esac
if ! command -v c++ >/dev/null 2>&1; then
    echo "fuzz: there is no C++ compiler (c++), which libFuzzer is built with" >&2
    echo "  fix: sudo apt-get install -y g++" >&2
    exit 1
fi

flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares -Cforce-frame-pointers=yes"
sanitizer=${PENSTOCK_FUZZ_SANITIZER:-address}
if [ "$sanitizer" = address ] && ls "$(rustc --print sysroot)/lib/rustlib/$host/lib/"*asan.a >/dev/null 2>&1; then
    # The option is not among the stable ones. It is asked for here only, in a build that is never shipped.
    export RUSTC_BOOTSTRAP=1
    flags="$flags -Zsanitizer=address"
else
    sanitizer=none
fi
echo "fuzz: building with sanitizer $sanitizer"
# A target triple keeps the flags away from build scripts, which have no fuzzer to report to.
RUSTFLAGS="$flags" cargo build --quiet --locked --release --target "$host" --target-dir "$build"

# Runs one target; what it finds stays in the build folder until somebody moves it to the corpus.
run() {
    work=$build/$1
    mkdir -p "$work/corpus" "$work/found"
    status=0
    PENSTOCK_FUZZ_TARGET=$1 "$build/$host/release/penstock-fuzz-guided" "$work/corpus" "../corpus/$1" \
        -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
        -artifact_prefix="$work/found/" >"$work/log" 2>&1 || status=$?
    start=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$work/log" | head -n 1)
    end=$(sed -n 's/.* cov: \([0-9]*\).*/\1/p' "$work/log" | tail -n 1)
    rounds=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$work/log" | tail -n 1)
    if [ "$status" != 0 ]; then
        tail -n 30 "$work/log" >&2
        echo "fuzz: $1 failed; the input is in $work/found, the log in $work/log" >&2
        echo "  keep it: cp the input to tests/fuzz/corpus/$1/ under a name that says what it showed" >&2
        return 1
    fi
    # Without counters every input looks alike and nothing guides the fuzzer: that is no run.
    if [ "${end:-0}" -lt 20 ]; then
        echo "fuzz: $1 counted no coverage, see $work/log" >&2
        return 1
    fi
    echo "fuzz: $1: ${rounds:-?} runs, coverage $start at the start, $end at the end"
}

failed=0
for name in $names; do
    if [ "$target" = all ] || [ "$target" = "$name" ]; then
        run "$name" || failed=1
    fi
done
exit "$failed"
