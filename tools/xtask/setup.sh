#!/bin/sh
# Looks for what a build needs and says how to get what is missing; then fetches the crates.
#
#   setup.sh [--quiet] [--lints]     --quiet: speak only of what is missing
#                                    --lints: rustfmt and clippy are needed too
set -u
cd "$(dirname "$0")/../.." || exit 1

quiet=no
lints=no
for option in "$@"; do
    case "$option" in
    --quiet) quiet=yes ;;
    --lints) lints=yes ;;
    *) echo "setup: unknown option $option" >&2; exit 2 ;;
    esac
done

missing=0
say() { [ "$quiet" = yes ] || printf '  %-12s %s\n' "$1" "$2"; }
lacks() {
    printf 'setup: %s\n  fix: %s\n' "$1" "$2" >&2
    missing=1
}

# The one place that names the oldest Rust is the workspace's manifest.
needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null 2>&1 || ! command -v rustc >/dev/null 2>&1; then
    lacks "there is no Rust toolchain (cargo, rustc) in PATH" \
        "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env"
else
    version=$(rustc --version | cut -d ' ' -f 2 | cut -d - -f 1)
    oldest=$(printf '%s\n%s\n' "$needed" "$version" | sort -V | head -n 1)
    if [ "$oldest" != "$needed" ]; then
        lacks "Rust $version is too old, Penstock needs $needed" "rustup update stable"
    fi
    say rust "$version (needs $needed)"
    if [ "$lints" = yes ]; then
        for tool in rustfmt clippy; do
            command="cargo-$([ "$tool" = rustfmt ] && echo fmt || echo clippy)"
            command -v "$command" >/dev/null 2>&1 || lacks "$tool is not installed" "rustup component add $tool"
        done
    fi
fi

if command -v cc >/dev/null 2>&1; then
    say "C compiler" "$(cc --version | head -n 1)"
else
    lacks "there is no C compiler (cc); Rust links with it" "sudo apt-get install -y build-essential"
fi

if command -v git >/dev/null 2>&1; then
    say git "$(git --version | cut -d ' ' -f 3)"
else
    lacks "there is no git" "sudo apt-get install -y git"
fi

[ "$missing" = 0 ] || exit 1

if ! cargo fetch --quiet --locked; then
    lacks "the crates could not be fetched (cargo's message is above)" \
        "with a network: run this again; if Cargo.lock is said to need an update: run 'cargo metadata' and commit it"
    exit 1
fi
say crates "fetched"
