# One name for each thing that is done with this repository; `.ci/run` calls the same names.
CARGO ?= cargo
# The one tool that does not come with Rust: pinned, inside the build directory.
CARGO_DENY_VERSION := 0.20.2
CARGO_DENY := $(CURDIR)/target/tools/cargo-deny-$(CARGO_DENY_VERSION)

.PHONY: help demo test check audit build release

help:
	@echo "make demo     build, run a whole cluster on this repository's own history, show what it does"
	@echo "make test     all tests"
	@echo "make check    format, lints, documentation, with warnings denied"
	@echo "make audit    licences, banned packages, sources of dependencies"
	@echo "make build    the coppice command in target/debug; make release: in target/release"

demo: build
	@scripts/demo.sh target/debug/coppice

test:
	$(CARGO) test --workspace --locked

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

audit: $(CARGO_DENY)/bin/cargo-deny
	$(CARGO_DENY)/bin/cargo-deny --workspace --all-features --locked check licenses bans sources

build:
	$(CARGO) build --workspace --locked

release:
	$(CARGO) build --release --locked --bin coppice

# Built once for each version, without optimisation (a minute instead of six), and kept out of the way of `cargo build`.
$(CARGO_DENY)/bin/cargo-deny:
	$(CARGO) install cargo-deny --version $(CARGO_DENY_VERSION) --locked --debug --root $(CARGO_DENY)
