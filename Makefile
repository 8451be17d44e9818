# One name for each thing that is done with this repository; `.ci/run` calls the same names.
CARGO ?= cargo
# The one tool that does not come with Rust: pinned, inside the build directory.
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := $(CURDIR)/target/tools/cargo-deny-$(CARGO_DENY_VERSION)

# Where Go is usually installed, for programs that are built from pinned Go modules.
export PATH := $(PATH):/usr/local/go/bin

# The features that tests switch on in libraries: programs for development share all that tests have compiled.
AS_IN_TESTS := --features coppice-process/as-in-tests

# Faults follow from the seed; the same seed gives the same plan of them.
CHAOS_SECONDS ?= 600
CHAOS_SEED ?= 1

.PHONY: lint-revm wasm test-wasm console console-pictures test-console test-clients crds charts e2e help demo test test-sha test-go test-state test-state-killed test-loadtest test-alerts test-k6 test-chaos test-adversaries chaos load bench bench-cluster check audit build release sim sim-bugs versions

help:
	@echo "make demo     build, run a whole cluster on this repository's own history, show what it does"
	@echo "make test     all tests"
	@echo "make wasm     the verifier of proof files as one WebAssembly module for all languages (docs/proof-files.md)"
	@echo "make test-wasm  that module in Node, Chromium, Python and Go, that two builds of it have the same bytes, and the clients for JavaScript and Python"
	@echo "make console  the pages of the console (docs/console.md), whose files in cluster/console/dist are committed"
	@echo "make test-console  these pages in Chromium: access, lying servers, hostile keys and values, sizes"
	@echo "make test-clients  the examples of docs/clients.md in curl, Python, JavaScript, Go and Java; CLIENTS=\"curl go\" takes some"
	@echo "make chaos    a cluster of real processes under real faults for CHAOS_SECONDS=600; the plan follows from CHAOS_SEED=1"
	@echo "make test-go  vet, staticcheck and all tests of the SDK for Go, against a real coppice dev"
	@echo "make test-state  go-ethereum, Hyperledger Fabric and revm on a ledger, by their own suites; ETHEREUM_TESTS=DIR has the fixtures of Ethereum's tests"
	@echo "make lint-revm  clippy over the crate for revm, which is a workspace of its own"
	@echo "make test-state-killed  some of these suites on three processes, while the leading coordinator is killed; KILLED_FLAGS=\"--only dbtest\" takes one"
	@echo "make test-adversaries  a cluster of processes under attack while others go on with their work; ADVERSARY_FLAGS=\"--only silent\" takes some"
	@echo "make load SCENARIO=payment  a load test by k6 that verifies proofs meanwhile; TARGET=dev, processes or an endpoint; docs/load-testing.md lists scenarios and parameters"
	@echo "make dashboard  the chart's dashboard and alerts before a real Prometheus, on a cluster of processes whose nodes are killed"
	@echo "make e2e      installed by its charts on a real Kubernetes of three nodes on this machine, under load and faults; needs root"
	@echo "make bench    the engine beside RocksDB, redb, fjall, NOMT and QMDB, in 40 minutes; QUICK=1 takes less than 5 minutes, AGAINST=FILE compares with a former bench-report.json, of which you keep a copy; FIREWOOD=1 adds Firewood, whose licence you read first (loadtest/README.md)"
	@echo "make bench-cluster  Coppice beside etcd, immudb and Tessera; QUICK=1 takes less than 6 minutes, BASE=DIR adds the servers of an earlier build"
	@echo "make bench-ledger  ledgers of members beside plain batches and immudb; QUICK=1 takes some 2 minutes"
	@echo "make bench-cosigner  how far three members with auditors are behind a ledger, what they cost commits, and their memory; COSIGNER_FLAGS=\"--seconds 10 --entries 20000\" takes two minutes"
	@echo "make bench-purge  a ledger of JOURNALS=1000000 is purged but for 1,000 of them: time, memory and disk of each step"
	@echo "make bench-structures  the engine's forest beside other authenticated structures; QUICK=1 takes less than 2 minutes, DATA=DIR has the real data"
	@echo "make bench-state  a ledger as the state of Fabric, go-ethereum and revm, beside goleveldb, Pebble and RocksDB; QUICK=1 takes some minutes"
	@echo "make bench-pim  placements of trees in emulated memory modules beside each other; QUICK=1 takes seconds"
	@echo "make readers-demo  three voters, a reader and a reader with emulated memory modules: who answers 100,000 reads; N=1000000 records"
	@echo "make benchmarks-page  docs/benchmarks.md from the reports of these; PAGE_FLAGS are those of loadtest/page.py"
	@echo "make crds     the custom resource definitions of the chart, and docs/fields.md, from the operator's types"
	@echo "make charts   lint the charts, and compare what they render with charts/golden; BLESS=1 replaces that"
	@echo "make sim      a whole cluster under faults from SEED=n; SEEDS=k runs so many seeds, one prints its trace"
	@echo "make sim-bugs plants each deliberate bug and shows the first seed that finds it; BUG=name for one"
	@echo "make versions recovery of the engine with VERSIONS=n kept versions"
	@echo "make check    format, lints, documentation, with warnings denied"
	@echo "make audit    licences, banned packages, sources of dependencies"
	@echo "make dist     all that a release publishes, in target/dist, with checksums (docs/releasing.md); PARTS=\"docs npm\" makes some"
	@echo "make test-dist  tries each artefact of target/dist from a clean folder; make test-dist-sample makes and tries the quick ones"
	@echo "make build    coppice, coppice-shard-node and coppice-coordinator in target/debug; make release: in target/release"

# One program is enough: `coppice dev` is a whole cluster in one process.
demo:
	$(CARGO) build --locked --bin coppice $(AS_IN_TESTS)
	@scripts/demo.sh target/debug/coppice

# Processes of a build for development: a release is built in 12 minutes.
.PHONY: readers-demo
readers-demo: build
	@scripts/readers-demo.sh

test: test-loadtest test-go test-state
	@scripts/install-etcd.sh >/dev/null
	@scripts/install-timestamp-authority.sh >/dev/null
	$(CARGO) test --workspace --locked
	@$(MAKE) --no-print-directory test-sha test-wasm test-console test-alerts test-k6 test-chaos
	@$(MAKE) --no-print-directory test-clients CLIENTS="curl python js go"
	@$(MAKE) --no-print-directory test-adversaries ADVERSARY_FLAGS=--sample

# The SDK for Go, against a real `coppice dev`. The pinned linter is built at the first time, which takes a minute.
test-go: build
	cd cluster/sdk/go && go vet ./... && go tool -modfile=tools/go.mod staticcheck ./... && go test ./...
	cd cluster/sdk/go/tools && go vet ./... && go tool staticcheck ./...
	cd cluster/verify/interop/judge && go vet ./... && go test -count=1 ./...

# A ledger as the state of other platforms, judged by their own suites: go-ethereum's, Fabric's on a patched copy in target/, and
# Ethereum's state tests by revm, which is in a workspace of its own. The first build takes some minutes. scripts/ethereum-tests.sh
# finds the fixtures of Ethereum's tests.
REVM := cluster/adapters/revm/Cargo.toml
test-state: build
	cd cluster/adapters/geth && go vet -tags fixtures ./... \
		&& go tool -modfile=../../sdk/go/tools/go.mod staticcheck -tags fixtures ./...
	@fixtures=$$(scripts/ethereum-tests.sh) && cd cluster/adapters/geth && if [ -n "$$fixtures" ]; then \
		ETHEREUM_TESTS=$$fixtures go test -tags fixtures ./...; \
	else \
		echo "THE BLOCK TESTS OF GO-ETHEREUM WERE NOT RUN: set ETHEREUM_TESTS to a checkout of github.com/ethereum/tests"; \
		go test ./...; \
	fi
	cd cluster/adapters/fabric && go vet -tags suites ./... \
		&& go tool -modfile=../../sdk/go/tools/go.mod staticcheck -tags suites ./... \
		&& go test -tags suites -timeout 40m ./...
	cd loadtest/state && go vet ./... && go tool -modfile=../../cluster/sdk/go/tools/go.mod staticcheck ./... && go test ./...
	@fixtures=$$(scripts/ethereum-tests.sh) && if [ -n "$$fixtures" ]; then \
		ETHEREUM_TESTS=$$fixtures $(CARGO) test --locked --manifest-path $(REVM) --features fixtures; \
	else \
		echo "THE STATE TESTS OF ETHEREUM WERE NOT RUN: set ETHEREUM_TESTS to a checkout of github.com/ethereum/tests"; \
		$(CARGO) test --locked --manifest-path $(REVM); \
	fi

# The lints of the crate for revm compile some 300 crates for themselves: 3 minutes that CI does not have.
lint-revm:
	$(CARGO) clippy --locked --manifest-path $(REVM) --all-targets --features fixtures -- -D warnings

# The same platforms on three processes, of which the leading coordinator is killed every 5 s.
test-state-killed: build
	python3 loadtest/state_killed.py $(KILLED_FLAGS)

# The package with the `unsafe` that every server runs, calls of what is compiled for the processor's instructions for SHA: with
# AddressSanitizer, which stable Rust has behind a switch and for a named target alone; and without the instructions.
test-sha:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(CARGO) test --locked --package coppice-verify --lib \
		--target $(shell rustc -vV | sed -n 's/^host: //p') --target-dir target/sanitized
	RUSTFLAGS='--cfg sha2_backend="soft"' $(CARGO) test --locked --package coppice-verify --lib --target-dir target/soft

# The module goes into the packages for JavaScript and Python. It is built by Debian's compiler, which scripts/install-web.sh
# installs as root, with all else that this needs.
wasm:
	@cluster/verify/wasm/build.sh

test-wasm: wasm build
	@cluster/verify/wasm/test.sh

# The program has these files in it, so that cargo needs no npm: they are committed, and a test compares them.
console: wasm
	WEB_TOOLS=$$(scripts/install-web.sh build) node cluster/console/page/build.mjs

console-pictures: build
	WEB_TOOLS=$$(scripts/install-web.sh test) node cluster/console/tests/pictures.mjs

test-console: wasm build
	@cluster/console/test.sh

# Java takes its pinned artefacts from Maven at the first time, which takes a minute: `make test` has the others.
CLIENTS ?= curl python js go java
test-clients: wasm build
	WEB_TOOLS=$$(scripts/install-web.sh test) python3 cluster/sdk/examples/test_walks.py $(CLIENTS)

# The judge of recorded histories must be able to refuse: known-bad ones are put before it. Then the plan, the network and
# the clocks of the chaos test, and what the comparison concludes.
test-loadtest:
	cd loadtest/checker && go test ./...
	cd loadtest/drive && go test ./...
	cd loadtest/tessera && go test ./...
	cd loadtest && python3 -m unittest -q harness.test_harness test_bench test_bench_state test_page

# The alerts of the chart before Prometheus' own tool, which is built at the first time.
test-alerts:
	@scripts/alerts.sh

# A few seconds of each load test, and that they fail when they should. Builds k6 at the first time, which takes two minutes.
# The flags are those of scripts/go-tool.sh, so that k6 is compiled once.
test-k6: build
	cd scripts/k6 && export CGO_ENABLED=0 GOFLAGS=-trimpath && go vet ./... && go test ./...
	cd loadtest/k6 && python3 -m unittest -q test_k6

# A short run, as a part of `make test`.
test-chaos: build
	python3 loadtest/chaos.py --seconds 90 --seed $(CHAOS_SEED)

# Unread streams, unfinished messages, idle connections, floods, impostors; then, unless flags take a part of these, a server that
# lies to clients, processes that lie to each other, and resources that lead out of their namespace. Twelve minutes; `make test`
# has a sample of two minutes, and all of the second part.
test-adversaries: build
	python3 loadtest/adversaries.py $(ADVERSARY_FLAGS)
	$(if $(ADVERSARY_FLAGS),,$(CARGO) test --workspace --locked --lib --test hostile_server --test processes -- --nocapture \
		each_command_ends_in_time peers:: no_name_in_a_resource)

chaos: build
	python3 loadtest/chaos.py --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

# Parameters such as DURATION=1m RATE=50/s are passed on. RELEASE=1 takes release binaries.
TARGET ?= dev
load: $(if $(RELEASE),release,build)
	@python3 loadtest/k6/load.py $(SCENARIO) --target $(TARGET) $(if $(RELEASE),--binaries target/release)

# Builds Kubernetes from pinned Go modules at the first time, which takes two cores 11 minutes.
e2e: build
	python3 e2e/run.py

# A workspace of its own, whose first build takes many minutes: RocksDB is C++.
BENCH := target/engines/release/coppice-engines
BENCH_DIR ?= target/bench/data
bench:
	LIBCLANG_PATH=$$(scripts/libclang.sh) BINDGEN_EXTRA_CLANG_ARGS="$${BINDGEN_EXTRA_CLANG_ARGS:--I$$(cc -print-file-name=include)}" \
		$(CARGO) build --release --locked --manifest-path loadtest/engines/Cargo.toml --target-dir target/engines \
		$(if $(FIREWOOD),--features firewood)
	$(if $(ROCKSDB_LIB_DIR),LD_LIBRARY_PATH=$(ROCKSDB_LIB_DIR)) $(BENCH) run --dir $(BENCH_DIR) --out target/bench --revision "$$(git describe --always --dirty)" \
		$(if $(QUICK),--quick) $(if $(AGAINST),--against $(AGAINST)) $(BENCH_FLAGS)

# Workload R of blocks through revm, on a ledger and on RocksDB.
.PHONY: workload-r
workload-r:
	LIBCLANG_PATH=$$(scripts/libclang.sh) BINDGEN_EXTRA_CLANG_ARGS="$${BINDGEN_EXTRA_CLANG_ARGS:--I$$(cc -print-file-name=include)}" \
		$(CARGO) build --release --locked --manifest-path $(REVM) --features bench --example workload-r

bench-cluster: release
	python3 loadtest/bench.py $(if $(BASE),--base $(BASE))

.PHONY: bench-ledger
bench-ledger: release
	python3 loadtest/bench_ledger.py

.PHONY: bench-cosigner
bench-cosigner: release
	$(CARGO) build --release --locked -p coppice-client --example load
	python3 loadtest/cosigners.py $(COSIGNER_FLAGS)

.PHONY: bench-purge
bench-purge: release
	python3 loadtest/bench_ledger.py --purge $(or $(JOURNALS),1000000)

# Times are modelled, so a build for development gives the same figures, but for the host's part.
.PHONY: bench-pim
bench-pim:
	$(CARGO) build --locked -p coppice-pim-bench
	target/debug/coppice-pim-bench --out target/bench-pim $(if $(QUICK),--quick)

# Go programs are built at the first time, which takes some minutes.
.PHONY: bench-state
bench-state: release
	python3 loadtest/bench_state.py $(STATE_FLAGS)

# The reports of all six benchmarks must be in `target/`.
.PHONY: benchmarks-page
benchmarks-page:
	python3 loadtest/page.py $(PAGE_FLAGS)

# A workspace of its own, which continuous integration does not build: whoever changes it, or what it uses of the engine, runs its tests.
.PHONY: bench-structures test-structures
STRUCTURES := --locked --manifest-path loadtest/structures/Cargo.toml --target-dir target/structures
bench-structures:
	$(CARGO) build --release $(STRUCTURES)
	target/structures/release/coppice-structures --out target/bench-structures $(if $(QUICK),--quick) $(if $(DATA),--data $(DATA))

test-structures:
	$(CARGO) fmt --manifest-path loadtest/structures/Cargo.toml --check
	$(CARGO) clippy $(STRUCTURES) --all-targets -- -D warnings
	$(CARGO) test $(STRUCTURES)

# Builds Prometheus from its pinned Go module at the first time, which takes minutes. BLESS=1 replaces the picture in docs.
.PHONY: dashboard
dashboard: build
	python3 loadtest/dashboard.py $(if $(BLESS),--picture docs/dashboard.svg)

crds:
	$(CARGO) run --locked --bin coppice-operator $(AS_IN_TESTS) -- crd charts/coppice-operator/crds
	$(CARGO) run --locked --bin coppice-operator $(AS_IN_TESTS) -- fields docs/fields.md

# Builds helm at the first time, which takes minutes: not a part of `make check`, and last in CI.
charts:
	@scripts/charts.sh $(if $(BLESS),--bless)

# The same seed is the same run, event by event. COPPICE_LOG=info adds what the processes log.
SEED ?= 1
SEEDS ?= 1
sim:
	$(CARGO) run --locked --example sim $(AS_IN_TESTS) -- $(SEED) $(SEEDS)

# The engine with many kept versions: recovery, prune and rollback across blocks of rows, fsck. In memory, 2 KB a version.
VERSIONS ?= 200000
versions:
	COPPICE_VERSIONS=$(VERSIONS) $(CARGO) test --locked -p coppice-engine --test costs versions

# Builds for development have the switch that plants bugs; a release has none.
BUG ?= all
sim-bugs:
	BUG=$(BUG) $(CARGO) run --locked --example sim $(AS_IN_TESTS)

# Other workspaces are not built here; their lock files follow the crates that they use all the same.
check:
	$(CARGO) fmt --all --check
	$(foreach workspace,loadtest/engines loadtest/structures cluster/adapters/revm cluster/verify/wasm,$(CARGO) update --quiet --workspace --locked --manifest-path $(workspace)/Cargo.toml &&) true
	$(CARGO) fmt --manifest-path cluster/verify/wasm/Cargo.toml --check
	$(CARGO) fmt --manifest-path $(REVM) --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --manifest-path cluster/verify/wasm/Cargo.toml --locked --target-dir target/wasm-clippy -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

audit: $(CARGO_DENY)/bin/cargo-deny
	$(CARGO_DENY)/bin/cargo-deny --workspace --all-features --locked check licenses bans sources
	$(CARGO_DENY)/bin/cargo-deny --manifest-path cluster/verify/wasm/Cargo.toml --config deny.toml --locked check licenses bans sources
	$(CARGO_DENY)/bin/cargo-deny --manifest-path $(REVM) --all-features --config deny.toml --locked check licenses bans sources

build:
	$(CARGO) build --workspace --locked --bins $(AS_IN_TESTS)

# Each program is optimised as a whole, which takes two cores some 12 minutes.
release:
	$(CARGO) build --release --locked --bins

# All that a release publishes. The programs take two cores most of 20 minutes; PARTS leaves them out.
.PHONY: dist test-dist test-dist-sample
PARTS ?=
dist:
	scripts/dist/dist.py --out target/dist $(PARTS)

DIST ?= $(CURDIR)/target/dist
test-dist:
	cd scripts/dist && DIST=$(DIST) python3 -m unittest -q test_version test_docs.Links test_dist

# Without programs, image and bill of materials, which take minutes. It follows the tests of what these parts hold.
test-dist-sample:
	rm -rf target/dist-sample
	scripts/dist/dist.py --out target/dist-sample second wasm npm python charts docs
	@$(MAKE) --no-print-directory test-dist DIST=$(CURDIR)/target/dist-sample

# Built once for each version, and kept out of the way of `cargo build`.
$(CARGO_DENY)/bin/cargo-deny:
	@scripts/cargo-tool.sh cargo-deny $(CARGO_DENY_VERSION) >/dev/null
