#!/usr/bin/env bash
# Runs the linters on everything. .golangci.yml has the list for Go, with a reason for each exception. prose.sh reads what people read.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/setup.sh build lint
tags=$(hack/ceph-tags.sh)
go tool -modfile=hack/tools/golangci-lint/go.mod golangci-lint run --build-tags "e2e,lab,$tags" ./...
git ls-files '*.sh' .ci/run hack/publish/kubectl_complete-escache | xargs shellcheck -x
# Dead links in pages, and pages that programs name.
go test -count 1 ./test/docs
hack/prose.sh
