# The commands of a day's work. `make` alone lists them.

CARGO ?= cargo
XTASK := $(CARGO) run --quiet --locked --package xtask --
SETUP := tools/xtask/setup.sh

.DEFAULT_GOAL := help
.PHONY: help setup run test sim labs lab-rdma lab-dpdk check fuzz bench scoreboard guard cbindgen header dpdk install wheel fmt clean
MAKEFLAGS += --no-print-directory

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## look for what a build needs, say how to get it, fetch the crates
	@$(SETUP)

run: setup ## build and let Penstock test itself on this machine
	@echo "building the penstock command; the first time takes a minute or two"
	@$(CARGO) build --quiet --locked --release --package penstock-cli
	@$(CARGO) run --quiet --locked --release --package penstock-cli -- selftest

test: ## run every test that needs neither root nor a prepared machine
	@$(SETUP) --quiet
	@$(XTASK) test

# Each seed is a run of its own: whole engines, of which some fail, over simulated links and clocks.
SEEDS ?= 10000

sim: ## run many seeds of the simulation and up to 1,000 fresh ones, then find its broken variants: SEEDS=10000
	@$(SETUP) --quiet
	@$(XTASK) sim $(SEEDS)

labs: ## run the tests that need root, other users or devices
	@$(SETUP) --quiet
	@$(XTASK) labs

lab-rdma: ## run only those labs that boot a guest with RDMA devices
	@$(SETUP) --quiet
	@$(XTASK) labs lab_rdma

lab-dpdk: ## run only the labs of DPDK, on virtual devices
	@$(SETUP) --quiet
	@$(XTASK) labs lab_dpdk

check: ## formatting, lints, house rules, licences
	@$(SETUP) --quiet --lints
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --locked --workspace --all-targets -- -D warnings
	@$(XTASK) tidy
	@$(XTASK) licences

# Without TARGET all targets take their turn, each for SECONDS.
TARGET ?= all
SECONDS ?= 60

fuzz: ## throw bytes at the parsers, guided by coverage: TARGET=frame SECONDS=60
	@$(SETUP) --quiet
	@tests/fuzz/fuzz/run.sh "$(TARGET)" "$(SECONDS)"

bench: ## measure the engine's smallest parts, each by itself, in a minute
	@$(SETUP) --quiet
	@$(CARGO) run --quiet --locked --release --package penstock-lab --bin penstock-lab -- bench

scoreboard: ## measure beside the engines of others and keep the result in bench/results
	@$(SETUP) --quiet
	@$(CARGO) build --quiet --locked --release --package penstock-lab
	-@ffi/python/wheel.sh
	-@$(CARGO) run --quiet --locked --release --package penstock-lab --bin penstock-lab -- peers install
	@$(CARGO) run --quiet --locked --release --package penstock-lab --bin penstock-lab -- scoreboard --save

guard: ## count the instructions of the hot path (needs valgrind) and hold them to the baseline
	@$(SETUP) --quiet
	@$(CARGO) build --quiet --locked --release --package penstock-micro --package penstock-lab --package penstock-capi
	@$(CARGO) run --quiet --locked --release --package penstock-lab --bin penstock-lab -- guard

# A tool of its own, built without optimisation, which takes longer than its run; what it writes is committed.
CBINDGEN_VERSION := 0.29.2
CBINDGEN := target/tools/bin/cbindgen

$(CBINDGEN):
	@$(CARGO) install --quiet --debug --locked --version $(CBINDGEN_VERSION) --root target/tools cbindgen

cbindgen: $(CBINDGEN)

HEADER ?= ffi/capi/penstock.h

header: $(CBINDGEN) ## write the C header anew from the sources of ffi/capi
	@$(CBINDGEN) --quiet --config ffi/capi/cbindgen.toml --output $(HEADER) ffi/capi
	@sed -i 's/^\( *\)# Safety$$/\1The caller sees to it:/' $(HEADER)

# The library between Penstock and DPDK, made for the release of DPDK that is installed. It is linked into nothing: the same programs run without it.
DPDK_SHIM := target/dpdk/libpenstock-dpdk.so.1
DPDK_SOURCES := ffi/dpdk-shim/shim/penstock_dpdk

dpdk: ## build the library between Penstock and DPDK: target/dpdk/libpenstock-dpdk.so.1 (installs libdpdk-dev as root)
	@pkg-config --exists libdpdk || apt-get install --yes --no-install-recommends libdpdk-dev pkg-config gcc
	@install -d $(dir $(DPDK_SHIM))
	@$(CC) -std=gnu11 -O2 -g -Wall -Wextra -Werror -shared -fPIC $$(pkg-config --cflags libdpdk) \
	  -Wl,-soname,$(notdir $(DPDK_SHIM)) -Wl,--version-script=$(DPDK_SOURCES).map -Wl,-z,defs -o $(DPDK_SHIM) $(DPDK_SOURCES).c \
	  -lrte_net_ring -lrte_ethdev -lrte_mempool -lrte_mbuf -lrte_ring -lrte_eal
	@echo "for programs here: export PENSTOCK_DPDK_SHIM=$(abspath $(DPDK_SHIM))"

# Where C and C++ find Penstock: include/penstock.h, lib/libpenstock.{so,a} and lib/pkgconfig/penstock.pc.
PREFIX ?= /usr/local
DESTDIR ?=
LIBRARIES := $(DESTDIR)$(PREFIX)/lib
SONAME := libpenstock.so.0

install: setup ## build the C library and put it, its header and penstock.pc under PREFIX=/usr/local
	@echo "building the library; the first time takes a minute or two"
	@$(CARGO) build --quiet --locked --release --package penstock-capi
	@install -d $(DESTDIR)$(PREFIX)/include $(LIBRARIES)/pkgconfig
	@install -m 644 ffi/capi/penstock.h $(DESTDIR)$(PREFIX)/include/penstock.h
	@strip --strip-debug -o $(LIBRARIES)/$(SONAME) target/release/libpenstock.so
	@strip --strip-debug -o $(LIBRARIES)/libpenstock.a target/release/libpenstock.a
	@ln -sf $(SONAME) $(LIBRARIES)/libpenstock.so
	@sed 's|@PREFIX@|$(PREFIX)|' ffi/capi/penstock.pc.in > $(LIBRARIES)/pkgconfig/penstock.pc
	@echo "Penstock for C is under $(DESTDIR)$(PREFIX): cc program.c \$$(pkg-config --cflags --libs penstock)"

wheel: ## build the Python package for other machines: target/wheels/penstock-*.whl (needs the network once)
	@$(SETUP) --quiet
	@ffi/python/wheel.sh

fmt: ## format all sources
	@$(CARGO) fmt --all

clean: ## remove everything that was built
	@$(CARGO) clean --quiet
