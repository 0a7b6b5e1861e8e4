#!/bin/sh
# Builds target/wheels/penstock-VERSION-cp311-abi3-manylinux_2_28_x86_64.whl.
#
#   wheel.sh [--tools]     --tools: only provides the tools
#
# Ends with status 75 where the tools cannot be downloaded.
set -eu
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
tools=$target/tools/python
platform=x86_64-unknown-linux-gnu
# The oldest glibc that the wheel runs with, and the tag that says so.
glibc=2.28
tag=cp311-abi3-manylinux_2_28_x86_64

fail() {
    printf 'wheel: %s\n  fix: %s\n' "$1" "$2" >&2
    exit "${3:-1}"
}

[ "$(uname -sm)" = "Linux x86_64" ] || fail "wheels are built on Linux on x86-64 only" "use another machine"
command -v python3 >/dev/null 2>&1 || fail "there is no python3" "sudo apt-get install -y python3-venv"

if ! cmp -s ffi/python/tools.txt "$tools/tools.txt"; then
    rm -rf "$tools"
    python3 -m venv "$tools" || fail "python3 cannot make an environment" "sudo apt-get install -y python3-venv"
    "$tools/bin/pip" --quiet --disable-pip-version-check install --requirement ffi/python/tools.txt ||
        fail "the tools cannot be downloaded (pip's message is above)" "with a network: run this again" 75
    cp ffi/python/tools.txt "$tools/tools.txt"
fi
[ "${1:-}" != --tools ] || exit 0

# cargo-zigbuild finds zig by the Python of this environment.
PATH=$(cd "$tools" && pwd)/bin:$PATH
export PATH
"${CARGO:-cargo}" zigbuild --quiet --locked --profile wheel --target "$platform.$glibc" \
    --package penstock-capi --package penstock-python

# The workspace's manifest is the one place that has them.
package() { sed -n "/^\[workspace.package\]/,/^\[/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml; }
version=$(package version)
built=$target/$platform/wheel
staged=$target/wheels/staged
info=$staged/penstock-$version.dist-info

rm -rf "$staged"
mkdir -p "$staged/penstock" "$info/licenses"
cp ffi/python/penstock/*.py ffi/python/penstock/*.pyi ffi/python/penstock/py.typed "$staged/penstock/"
cp "$built/libpenstock.so" "$staged/penstock/libpenstock.so.0"
cp "$built/lib_penstock.so" "$staged/penstock/_penstock.abi3.so"
cp LICENSE "$info/licenses/LICENSE"
"${CARGO:-cargo}" run --quiet --locked --package xtask -- notices penstock-capi penstock-python >"$info/licenses/THIRD-PARTY"
# The standard library is linked in too.
cp "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" "$info/licenses/RUST-LIBRARY.html" ||
    fail "the Rust toolchain is without the licences of its library" "use a toolchain that rustup has installed"
sed "s|@VERSION@|$version|; s|@LICENSE@|$(package license)|" ffi/python/METADATA.in >"$info/METADATA"
printf 'Wheel-Version: 1.0\nGenerator: wheel.sh\nRoot-Is-Purelib: false\nTag: %s\n' "$tag" >"$info/WHEEL"

# Times in the archive are those of the commit: the same sources make the same wheel.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
wheel pack --dest-dir "$target/wheels" "$staged" >/dev/null
rm -rf "$staged"
file=$target/wheels/penstock-$version-$tag.whl
echo "wheel: $file, $(($(wc -c <"$file") / 1024)) KiB"
