#!/usr/bin/env bash
# Tries a release as a new user would: makes one, starts a lab with bare hosts that have no image of the driver, pushes the release to a
# registry with TLS there, and follows the docs of the release with nothing but its directory, up to a pod with a volume.
# RELEASE_DIR=DIR takes a release that is made, and RELEASE_PUB=FILE the public half of its key (DIR/checksums.txt.pub).
# KEEP=1 leaves the lab up after a success. IMAGES_DIR=DIR keeps the base images, which saves minutes the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/step.sh

export LAB_NAME=${LAB_NAME:-release-$$}
. hack/with-lab.sh

make_release() {
  rm -rf bin/e2e-release
  mkdir -p bin/e2e-release
  openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out bin/e2e-release/key.pem
  openssl pkey -in bin/e2e-release/key.pem -pubout -out "$RELEASE_PUB"
  # Nothing that the caller's `make` has set reaches it. The plugin for other machines takes minutes, and nobody runs it here.
  env -u MAKEFLAGS -u REGISTRY -u REPOSITORY -u RELEASE_URL PLATFORMS=linux/amd64 make --no-print-directory release \
    VERSION=v0.0.1-test OUT="$RELEASE_DIR" RELEASE_KEY=bin/e2e-release/key.pem
}

step "install packages" hack/setup.sh build lab kubernetes
step "build lab" env CGO_ENABLED=0 go build -o bin/ ./test/lab
step "build the test" env CGO_ENABLED=0 go test -c -tags e2e -o bin/ ./test/e2e/release
if [ -n "${RELEASE_DIR:-}" ]; then
  RELEASE_DIR=$(realpath "$RELEASE_DIR")
  RELEASE_PUB=$(realpath "${RELEASE_PUB:-$RELEASE_DIR/checksums.txt.pub}")
else
  RELEASE_DIR=$PWD/bin/e2e-release/release
  RELEASE_PUB=$PWD/bin/e2e-release/release.pub
  step "make a release" make_release
fi
CRANE=$(go tool -modfile=hack/tools/crane/go.mod -n crane)
go tool -modfile=hack/tools/helm/go.mod -n helm >/dev/null # push.sh wants it, and in the lab there is no network to fetch it
export RELEASE_DIR RELEASE_PUB CRANE
step "lab up: Ceph, Kubernetes, three bare hosts" lab up --bare --kubernetes --memory 1024
unset REGISTRY REPOSITORY INSECURE # push.sh reads them
step "install from the release alone" lab run -- bin/release.test -test.v -test.failfast -test.timeout 60m
