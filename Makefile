# The only door. `make help` says what is behind it.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help build plugin symbols demo test test-real lint fmt bench fuzz test-all proto lab lab-test truenas-test cluster cluster-down cluster-test image release release-test image-test engine-test chart-test monitoring-test
# One target at a time: they share a target directory, two cores and the machine's mounts.
.NOTPARALLEL:
# Of the image.
ARCH ?= $(shell uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
# A target's own words are what one wants to read.
MAKEFLAGS += --no-print-directory

help: ## this list
	@echo 'make <target>, as root on Debian for everything; Rust and make are all it needs to begin.'
	@echo 'As root on Debian, what else is missing is installed; elsewhere it is named.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo
	@echo '  OMNIBUS_REQUIRE_ALL=1   a part that could not run is a failure (what .ci/run does)'
	@echo '  FUZZ_SECONDS=n          for each fuzz target: 10 in test-real, 600 in fuzz and test-all'
	@echo '  FORCE=1                 test-all runs again what already passed at this commit'
	@echo '  OMNIBUS_ADVISORY_DB=dir a clone of the RustSec advisory database, where github.com is not'

build: ## the release binary, target/release/omnibus-csi
	@scripts/needs build
	cargo build --locked --release -p omnibus-csi

# Apart from the driver, which would otherwise be built with the features of both.
plugin: ## the plugin of kubectl for your machine, target/release/kubectl-omnibus (docs/kubectl.md)
	@scripts/needs build
	cargo build --locked --release -p kubectl-omnibus

symbols: ## the symbols of the release binary, target/symbols/omnibus-csi.debug
	@scripts/needs build
	cargo build --locked --profile symbols -p omnibus-csi
	objcopy --only-keep-debug "$${CARGO_TARGET_DIR:-target}"/symbols/omnibus-csi "$${CARGO_TARGET_DIR:-target}"/symbols/omnibus-csi.debug

image: ## the container image as an OCI archive, target/image; needs python3 and Go, no engine, no root; ARCH=arm64
	@program=$$(scripts/program $(ARCH)) && kopia=$$(scripts/tool kopia $(ARCH)) && \
	deploy/image/build image --out target/image --program $(ARCH)=$$program --kopia $(ARCH)=$$kopia

release: ## what is published: images for amd64 and arm64, programs, chart, notes, checksums, in target/dist
	@scripts/release

image-test: ## the image twice, and every program in it; ARCH=arm64 by qemu
	@scripts/image-test $(ARCH)

engine-test: ## the image run by Debian's podman, and its Containerfile built by buildah; as root
	@scripts/engine-test

release-test: ## what the workflows run: the chart packaged, image and chart pushed to a registry on this machine
	@scripts/release-test

chart-test: ## the Helm chart: rendered by helm, checked against the Kubernetes API
	@scripts/chart-test

monitoring-test: ## alerts, dashboard and metrics, by promtool
	@scripts/monitoring-test

demo: ## watch a volume live its whole life, on this machine, in a temporary folder
	@scripts/demo

test: ## is it sound: unit, contract, whole program, csi-sanity, simulators, the chart
	@scripts/test

test-real: ## real storage in the lab, a cluster, seconds of fuzzing, kopia, Prometheus, Chromium
	@scripts/test-real

lint: ## format, clippy, allowed imports, licences, advisories, docs, scripts
	@scripts/lint

fmt: ## format the code
	cargo fmt --all
	@if [ -e fuzz/Cargo.toml ]; then cargo fmt --manifest-path fuzz/Cargo.toml; fi

bench: ## latencies, throughput, memory, each next to its floor; as root, on a quiet machine
	@scripts/bench

fuzz: ## every fuzz target for FUZZ_SECONDS (600) each
	@scripts/needs build test
	@scripts/fuzz $${FUZZ_SECONDS:-600}

test-all: ## everything, long, recorded in docs/test-results.md, resumable; CELLS='lab:*' for some of it
	@set -f; scripts/test-all $(CELLS)

proto: ## generate proto/'s Rust code again from csi.proto
	@scripts/needs build
	OMNIBUS_REGENERATE=1 cargo test --locked -p csi-proto --test it bootstrap

lab: ## virtual machines with real storage (docs/lab.md)
	@vagrant/lab up

lab-test: ## the tests in the lab alone; CELLS='a b' for some of its cells (docs/lab.md)
	@scripts/lab-tests $(CELLS)

truenas-test: ## the suites against a TrueNAS of yours, OMNIBUS_TRUENAS_CONFIG=driver.yaml (docs/truenas-tasks.md)
	@scripts/truenas-test

cluster: ## a real Kubernetes on this machine, with our driver (docs/cluster.md); NODES=2, RELEASES='local proxy'
	@integration/cluster/cluster up --nodes $${NODES:-1}
	@for release in $${RELEASES:-local proxy}; do RELEASE_BY=$${RELEASE_BY:-chart} integration/cluster/cluster install $$release || exit 1; done
	@integration/cluster/cluster status

cluster-down: ## end it
	@integration/cluster/cluster down

cluster-test: ## the tests in such a cluster; CELLS='a b' for some of its cells, CELLS=short for the quick ones
	@scripts/cluster-tests $(CELLS)
