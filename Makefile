# Every target works on a fresh Debian 12 as root with only Go and make: it installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help

CEPH_TAGS  = $(shell hack/ceph-tags.sh)
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS    = -s -w -X main.version=$(VERSION)
STATIC     = csi-node escached escache-cache kubectl-escache
OUT       ?= bin/release

# For hack/publish: where images are, what signs a release, and where its files will be.
export REGISTRY REPOSITORY INSECURE RELEASE_KEY RELEASE_URL

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install the Debian packages for building
	hack/setup.sh build

.PHONY: build
build: setup ## build all programs into bin/ (without -trimpath, so that tests share the compiled packages)
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/ $(foreach c,$(STATIC),$(if $(wildcard cmd/$(c)),./cmd/$(c)))
	go build -tags '$(CEPH_TAGS)' -ldflags '$(LDFLAGS)' -o bin/ ./cmd/csi-controller
	CGO_ENABLED=0 go build -o bin/lab ./test/lab

.PHONY: test
test: ## run the tests (HOST_SKIP= also runs those that take minutes each, ESCACHE_E2E_SHARD=7/3 a third of the longest lists)
	hack/test.sh

.PHONY: e2e
e2e: ## test the driver on a real Kubernetes in the lab (E2E_RUN=PATTERN selects tests)
	hack/e2e.sh

.PHONY: e2e-load
e2e-load: ## the same with 50 pods at once and 100 moves of three volumes (ESCACHE_E2E_PODS, ESCACHE_E2E_MOVES)
	hack/e2e.sh many moves

.PHONY: e2e-flush
e2e-flush: ## flush and drain volumes in use, break that in the middle, and empty a host of ESCACHE_E2E_PODS pods (10)
	hack/e2e.sh flush evacuate

.PHONY: e2e-recovery
e2e-recovery: ## lose hosts, copies and access to Ceph on real hosts, and test how the driver recovers by itself and on request
	hack/e2e.sh recovery

.PHONY: e2e-chart
e2e-chart: ## build the images, install the chart on bare hosts, lose a host, upgrade (UPGRADE_FROM=REVISION), raise each alert, uninstall
	hack/e2e-chart.sh

.PHONY: e2e-release
e2e-release: ## make a release, and install it by its own docs on bare hosts that pull from a registry with TLS (RELEASE_DIR=DIR: one that is made)
	hack/e2e-release.sh

.PHONY: e2e-operators
e2e-operators: ## test kubectl-escache on a terminal, the web page in a browser and the docs' commands, on a real API server with fake hosts
	hack/setup.sh build kubernetes screens
	go test -tags e2e -count 1 -timeout 20m ./test/e2e/operators

.PHONY: e2e-thousands
e2e-thousands: ## fill a real API server with 10,000 volumes in 100 groups, and measure kubectl escache status there
	hack/setup.sh build kubernetes
	ESCACHE_E2E_THOUSANDS=1 go test -tags e2e -count 1 -v -timeout 45m -run '^TestStatusOfThousands$$' ./test/e2e/operators

.PHONY: demo
demo: ## show what the driver does on real parts (KEEP=1 leaves it running)
	hack/demo.sh

.PHONY: bench
bench: ## measure performance and print tables, each ratio from one run
	hack/bench.sh

.PHONY: chaos
chaos: ## break every part at every moment, CHAOS_RUNS times (1), and count lost data
	hack/chaos.sh

.PHONY: fuzz
fuzz: setup ## fuzz parsers, the HTTP API and the CSI calls for FUZZ_MINUTES (10) in all; FUZZ_RUN=PATTERN selects targets
	hack/fuzz.sh

.PHONY: chaos-driver
chaos-driver: ## break hosts, disks and records under the whole driver, CHAOS_RUNS times (1), and count lost data
	hack/chaos.sh driver

.PHONY: chaos-larger-group
chaos-larger-group: ## lose hosts of a larger group under the whole driver, delete one, add another, and count lost data
	hack/chaos.sh larger-group

.PHONY: soak
soak: ## break the whole driver at random for SOAK_MINUTES (30) and count lost data; SOAK_SEED=N repeats a run
	hack/soak.sh

.PHONY: nightly
nightly: ## run every check, also those that are too slow for CI, and print what became of each (NIGHTLY_LIST=1 names them)
	hack/nightly.sh

.PHONY: lint
lint: setup ## run golangci-lint, shellcheck and the prose linter
	hack/lint.sh

.PHONY: graph
graph: ## print which folders import which, and fail if an import goes the wrong way
	go run ./test/graph

.PHONY: vulncheck
vulncheck: setup ## look for known vulnerabilities in the code that the programs call (VULNDB=file:///DIR: a copy of the database)
	go tool -modfile=hack/tools/govulncheck/go.mod govulncheck $(if $(VULNDB),-db '$(VULNDB)') -tags '$(CEPH_TAGS)' ./cmd/...

.PHONY: generate
generate: ## generate deepcopy functions and CRDs from api/v1alpha1, the chart's README from its values, docs/commands.md, and the pictures from their text
	go generate ./api/...
	go tool -modfile=hack/tools/helm-docs/go.mod helm-docs --chart-search-root charts --sort-values-order file --log-level warning
	go run ./test/picture
	go run ./test/commands

.PHONY: release
release: ## make a release: VERSION=v0.1.0 [OUT=DIR] [RELEASE_KEY=FILE] (as root, some minutes; docs/release.md)
	hack/publish/release.sh '$(OUT)' '$(VERSION)'

.PHONY: images
images: ## build the images as OCI archives in OUT, as root
	IMAGES_OCI='$(abspath $(OUT))' IMAGES_VERSION='$(VERSION)' hack/images.sh

.PHONY: push
push: ## push the images and the chart in OUT to REGISTRY=HOST [REPOSITORY=PATH] (INSECURE=1: without TLS)
	hack/publish/push.sh '$(OUT)' '$(REGISTRY)'

.PHONY: release-test
release-test: ## make a release with the images, check every file of it, and push it to a registry on this machine (as root)
	hack/setup.sh build release
	RELEASE_TEST=all go test -count 1 -timeout 60m -v ./test/release

.PHONY: images-test
images-test: ## build the images on base images made from Debian's packages, and try them (some minutes, as root)
	hack/images.sh

.PHONY: reproduce
reproduce: setup ## build the programs twice, in two places, and compare them byte for byte
	hack/reproduce.sh

.PHONY: lab
lab: ## start a lab: real Ceph and three hosts (go run ./test/lab --help)
	hack/setup.sh lab
	go run ./test/lab up
