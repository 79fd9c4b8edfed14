# Servers, peers and (under CI) build output live here, outside the tree. The
# tests look for their servers in the same place.
WINDLASS_CACHE ?= $(HOME)/.cache/windlass
export WINDLASS_CACHE

# Under CI each run has a fresh clone; a target directory in the cache lets it
# reuse what the run before built. A directory that was set by hand wins.
ifeq ($(CI),true)
CARGO_TARGET_DIR ?= $(WINDLASS_CACHE)/target
export CARGO_TARGET_DIR
endif
TARGET_DIR = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)

# Extra arguments for `windlass bench`: make bench BENCH_ARGS="--tasks 10000"
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo dev servers kubernetes cluster cluster-down crds image image-test check test suite bench stress chaos soak clusters clean

help: ## Say what each target does
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

demo: ## See it work: windlass dev on examples/demo, with work that succeeds, fails, retries, waits and dies
	cargo build
	@WINDLASS=$(TARGET_DIR)/debug/windlass examples/demo/run.sh

dev: ## Leave windlass dev running on examples/demo, until Ctrl-C
	cargo build
	@WINDLASS=$(TARGET_DIR)/debug/windlass examples/demo/run.sh --stay

servers: ## Get the Redis, Valkey and PostgreSQL servers the tests run against
	@tests/servers/install.sh

kubernetes: ## Build the Kubernetes that the tests run on (once; about a quarter of an hour on two cores)
	@tests/servers/install.sh --kubernetes

cluster: kubernetes ## Start a Kubernetes with two nodes (without root: with none) and say how to use it
	@tests/cluster/cluster.py start

cluster-down: ## End the cluster that `make cluster` started
	@tests/cluster/cluster.py stop

crds: ## Make the definitions under crds/ from the types in src/crd, and the chart's copies
	cargo run --quiet -- crd --dir crds
	cp crds/*.yaml charts/windlass/files/crds/

# IMAGE_ARCH: amd64 or arm64; this machine's by default.
image: ## Build the Dockerfile without Docker or a registry, and check the image (once up to a quarter of an hour)
	@tests/image/build.sh $(IMAGE_ARCH)

# The machine's own processor; IMAGE_ARCH is for `make image` alone. Without pods it would pass and have tested nothing.
image-test: ## Build the image, and install, upgrade and remove it in pods
	@$(MAKE) --no-print-directory servers
	@$(MAKE) --no-print-directory kubernetes
	@$(MAKE) --no-print-directory image IMAGE_ARCH=
	cargo build --bins --examples
	WINDLASS_TEST_REQUIRE_NODES=1 WINDLASS_TEST_IMAGE=$(WINDLASS_CACHE)/image/windlass-$$(dpkg --print-architecture).tar \
	  cargo test --test e2e_install -- --nocapture

check: ## Check formatting, lints and docs, and run the unit tests (needs no server)
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	cargo test --lib

# Files under tests/ that mostly wait, for pods and controllers, run four tests
# at a time; the others keep a core busy each, and run as many as there are cores.
TEST_FILES := $(basename $(notdir $(wildcard tests/*.rs)))
WAITING := cluster e2e_install e2e_pools operator operator_pools

# One after the other even under `make -j`. A machine that can run pods at the
# beginning can do so until the end: there no test of them is left out.
test: ## Run everything: check, then the integration and doc tests
	@$(MAKE) --no-print-directory servers
	@$(MAKE) --no-print-directory kubernetes
	@if tests/cluster/cluster.py check; then export WINDLASS_TEST_REQUIRE_NODES=1; fi; $(MAKE) --no-print-directory suite
	@tests/cluster/cluster.py check || true

# The cheap checks come first, and all cargo runs share one profile, so that
# nothing is compiled twice.
suite:
	@$(MAKE) --no-print-directory check
	cargo build --bins --examples
	cargo test --bins $(patsubst %,--test %,$(filter-out $(WAITING),$(TEST_FILES)))
	RUST_TEST_THREADS=4 cargo test $(patsubst %,--test %,$(WAITING))
	cargo test --doc

bench: ## Measure Windlass beside BullMQ and asynq (BENCH_ARGS="..." for more arguments)
	@tests/servers/install.sh --peers
	cargo build --release
	$(TARGET_DIR)/release/windlass bench $(BENCH_ARGS)

stress: servers kubernetes ## Run the long versions of the stress tests, and ten thousand queues under one operator
	WINDLASS_STRESS=full cargo test --release --test stress -- --nocapture
	WINDLASS_STRESS=full cargo test --release --test operator a_thousand -- --nocapture

chaos: servers kubernetes ## Kill workers, Redis and the operator, in the long version
	cargo build --bins --examples
	WINDLASS_CHAOS=full cargo test --test worker_chaos -- --nocapture
	WINDLASS_CHAOS=full cargo test --test operator --test operator_pools kills -- --nocapture

soak: servers kubernetes ## Ten minutes of work in pods while everything is restarted, one after the other
	WINDLASS_TEST_REQUIRE_NODES=1 WINDLASS_SOAK=full cargo test --test e2e_install soak -- --nocapture

clusters: kubernetes ## Start clusters and end or kill them, twenty times each
	WINDLASS_CLUSTER=full cargo test --test cluster lifecycle -- --nocapture

clean: ## Remove what cargo built (the servers in the cache stay)
	cargo clean
