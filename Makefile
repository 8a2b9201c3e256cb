# What a person types and what .ci/run calls are the same recipes.

CARGO ?= cargo
CONTROL_PLANE := tests/control-plane/build

.PHONY: help demo fmt lint test soak recordings doc control-plane e2e e2e-alone e2e-upstream compare fuzz bench bench-cluster bench-scale deny ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## the controller at work on a cluster in the process; needs a Rust toolchain and nothing else
	$(CARGO) run --release --locked -- demo

fmt: ## check the format; `cargo fmt` mends it
	$(CARGO) fmt --check

lint: ## clippy over everything, warnings denied
	$(CARGO) clippy --locked --all-targets
	$(CARGO) clippy --locked --no-default-features --lib --bins # what the image ships
	$(CARGO) clippy --locked --test e2e --test upstream --bench cluster --bench counts --bench scale # left out of the above, to be run by name only

test: ## unit, property and simulation tests, and scenarios on the embedded cluster; needs a Rust toolchain and nothing else
	$(CARGO) test --locked
	OSTRAKON_E2E=embedded $(CARGO) test --locked --test e2e

SEEDS ?= 10000
FROM ?= 0

soak: ## SEEDS stories of taints and as many of drains, with progress, from seed FROM on; failing seeds are printed, with how to replay one
	OSTRAKON_FROM=$(FROM) OSTRAKON_SOAK=$(SEEDS) $(CARGO) test --locked --test simulation -- --nocapture

doc: ## build the API documentation, broken links denied
	$(CARGO) doc --locked --no-deps

control-plane: ## build etcd and Kubernetes for the tests, once; needs Go
	@$(CONTROL_PLANE) || test $$? -eq 77

e2e: control-plane ## scenarios that share a real control plane; skipped without Go
	OSTRAKON_E2E=shared $(CARGO) test --locked --test e2e

e2e-alone: control-plane ## scenarios that need a control plane to themselves: faults, kills, restarts; by hand, 20 minutes
	OSTRAKON_E2E=alone $(CARGO) test --locked --test e2e

recordings: control-plane ## what a real control plane does, with which the embedded one is compared
	OSTRAKON_RECORD=1 $(CARGO) test --locked --test e2e -- likeness::

e2e-upstream: control-plane ## Kubernetes' own NoExecute cases, with and without ostrakon; skipped without Go
	$(CARGO) test --locked --test upstream

compare: control-plane ## the built-in manager under the faults of e2e, for its figures
	$(CARGO) test --locked --test e2e -- --ignored

# For how long each of the three targets is fuzzed, in seconds.
FUZZ_SECONDS ?= 60

fuzz: ## coverage-guided fuzzing of what reads the API server's bytes; needs cargo-fuzz and a C++ compiler
	for target in stream list object; do \
		mkdir -p tests/fuzz/corpus/$$target && \
		$(CARGO) fuzz run --fuzz-dir tests/fuzz --sanitizer none $$target tests/fuzz/corpus/$$target tests/data -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=32 || exit 1; \
	done

bench: ## benchmarks of the parts, in-process; minutes
	$(CARGO) bench --locked

# Cluster size, and how often each is measured. 5,000 nodes of 30 pods want 10 GiB and 20 minutes.
NODES ?= 500
PODS_PER_NODE ?= 30
RUNS ?= 3

bench-cluster: control-plane ## ostrakon beside the built-in taint eviction; writes docs/benchmarks; needs Go and Linux
	NODES=$(NODES) PODS_PER_NODE=$(PODS_PER_NODE) RUNS=$(RUNS) $(CARGO) bench --locked --bench cluster

bench-scale: ## the controller at 5,000 to 65,000 nodes on a server that makes them up; writes docs/benchmarks; Linux
	$(CARGO) bench --locked --bench scale

deny: ## licences, sources and duplicates of the dependencies; needs cargo-deny
	$(CARGO) deny --all-features check bans licenses sources

ci: test fmt lint doc e2e e2e-upstream ## all that CI runs
