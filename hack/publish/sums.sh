#!/usr/bin/env bash
# Writes the SHA-256 sums of all files of a release: sums.sh DIR
set -euo pipefail
cd "$1"
files=(*)
sha256sum "${files[@]}" >.checksums
mv .checksums checksums.txt
