# CI (.ci/run) calls these same targets.

CARGO ?= cargo
CONTROL_PLANE := tests/control-plane/build

.PHONY: help demo product fmt lint test soak recordings doc control-plane e2e e2e-alone e2e-upstream compare fuzz bench bench-cluster bench-scale deny ci

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## run the controller on an in-memory cluster; needs only a Rust toolchain
	$(CARGO) run --release --locked -- demo

# The binary of the image, and the most bytes it may have.
PRODUCT := $(CURDIR)/target/product
PRODUCT_MOST := 16000000

product: ## the binary of the image, in target/product: no simulator, no demo; stripped, with its line tables in a separate file
	@command -v objcopy >/dev/null || { echo "objcopy is missing, which strips the binary: install binutils" >&2; exit 1; }
	$(CARGO) build --release --locked --no-default-features --bin ostrakon --target-dir $(CURDIR)/target
	@mkdir -p $(PRODUCT)
	cd target/release && objcopy --only-keep-debug ostrakon $(PRODUCT)/ostrakon.debug
	cd $(PRODUCT) && objcopy --strip-all --add-gnu-debuglink=ostrakon.debug ../release/ostrakon ostrakon
	@size=$$(wc -c < $(PRODUCT)/ostrakon); echo "$(PRODUCT)/ostrakon: $$size bytes, at most $(PRODUCT_MOST)"; test $$size -le $(PRODUCT_MOST) || { \
		echo "the binary has grown beyond its bound: find out by what, or raise PRODUCT_MOST in the Makefile" >&2; exit 1; }

fmt: ## check the formatting; `cargo fmt` fixes it
	$(CARGO) fmt --check

lint: ## run clippy on everything; warnings are errors
	$(CARGO) clippy --locked --all-targets
	$(CARGO) clippy --locked --no-default-features --lib --bins # what the image ships
	$(CARGO) clippy --locked --test e2e --test upstream --bench cluster --bench counts --bench scale # not part of --all-targets

test: ## unit, property and simulation tests, and scenarios on the embedded cluster; needs only a Rust toolchain
	$(CARGO) test --locked
	OSTRAKON_E2E=embedded $(CARGO) test --locked --test e2e

SEEDS ?= 10000
FROM ?= 0

soak: ## simulate SEEDS scenarios each of taints and drains, from seed FROM on; prints progress, failing seeds and how to replay one
	OSTRAKON_FROM=$(FROM) OSTRAKON_SOAK=$(SEEDS) $(CARGO) test --locked --test simulation -- --nocapture

doc: ## build the API documentation; broken links are errors
	$(CARGO) doc --locked --no-deps

control-plane: ## build etcd and Kubernetes for the tests, only once; needs Go
	@$(CONTROL_PLANE) || test $$? -eq 77

e2e: control-plane product ## scenarios that share a real control plane, with the binary of the image; skipped without Go
	OSTRAKON_BINARY=$(PRODUCT)/ostrakon OSTRAKON_E2E=shared $(CARGO) test --locked --test e2e

e2e-alone: control-plane product ## scenarios that need their own control plane: faults, kills, restarts; not in CI, 20 minutes
	OSTRAKON_BINARY=$(PRODUCT)/ostrakon OSTRAKON_E2E=alone $(CARGO) test --locked --test e2e

recordings: control-plane ## record a real control plane, to compare the embedded one with
	OSTRAKON_RECORD=1 $(CARGO) test --locked --test e2e -- likeness::

e2e-upstream: control-plane product ## Kubernetes' own NoExecute tests, with and without ostrakon; skipped without Go
	OSTRAKON_BINARY=$(PRODUCT)/ostrakon $(CARGO) test --locked --test upstream

compare: control-plane ## measure the built-in controller under the faults of e2e
	$(CARGO) test --locked --test e2e -- --ignored

# Time for each of the three targets, in seconds.
FUZZ_SECONDS ?= 60

fuzz: ## coverage-guided fuzzing of the decoders; needs cargo-fuzz and a C++ compiler
	for target in stream list object; do \
		mkdir -p tests/fuzz/corpus/$$target && \
		$(CARGO) fuzz run --fuzz-dir tests/fuzz --sanitizer none $$target tests/fuzz/corpus/$$target tests/data -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=8192 -timeout=5 -rss_limit_mb=512 -malloc_limit_mb=32 || exit 1; \
	done

bench: ## in-process benchmarks of parts; takes minutes
	$(CARGO) bench --locked

# Cluster size and number of runs. 5,000 nodes with 30 pods each take 10 GiB and 20 minutes.
NODES ?= 500
PODS_PER_NODE ?= 30
RUNS ?= 3

bench-cluster: control-plane product ## compare ostrakon with the built-in taint eviction; writes docs/benchmarks; needs Go and Linux
	OSTRAKON_BINARY=$(PRODUCT)/ostrakon NODES=$(NODES) PODS_PER_NODE=$(PODS_PER_NODE) RUNS=$(RUNS) $(CARGO) bench --locked --bench cluster

bench-scale: ## the controller with 5,000 to 65,000 nodes, on a simulated server; writes docs/benchmarks; needs Linux
	$(CARGO) bench --locked --bench scale

deny: ## check licences, sources and duplicates of dependencies; needs cargo-deny
	$(CARGO) deny --all-features check bans licenses sources

ci: test fmt lint doc e2e e2e-upstream ## everything that CI runs
