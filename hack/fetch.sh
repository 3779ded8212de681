#!/usr/bin/env bash
# Downloads what `make test` needs on a fresh machine: Debian packages, and the Go modules of the tools. CI runs it beside the linters, which
# need the processors and no network. What it cannot get, the tests fetch themselves, and fail with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

hack/setup.sh build lab kubernetes screens
go run ./test/buildtools --fetch-all
for name in gotestsum helm-docs promtool; do go list -modfile="hack/tools/$name/go.mod" -deps tool >/dev/null; done
