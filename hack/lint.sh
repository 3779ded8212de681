#!/usr/bin/env bash
# Runs the linters over everything; the list and the reasons for exceptions stand in .golangci.yml.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/setup.sh build lint
tags=$(hack/ceph-tags.sh)
go tool -modfile=hack/tools/golangci-lint/go.mod golangci-lint run --build-tags "e2e,lab,$tags" ./...
git ls-files '*.sh' .ci/run | xargs shellcheck -x
