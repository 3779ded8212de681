#!/usr/bin/env bash
# Builds the programs twice, in two directories and each time with an empty build cache, and fails if they differ: reproduce.sh [PROGRAM]…
# Takes some minutes on all cores, because everything is compiled twice.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
for place in here "some where/else"; do
  mkdir -p "$dir/$place/src"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$dir/$place/src"
  (cd "$dir/$place/src" && GOCACHE="$dir/$place/cache" hack/release.sh ../out test "$@")
done
for file in "$dir"/here/out/*; do
  name=$(basename "$file")
  cmp "$file" "$dir/some where/else/out/$name"
  sha256sum "$file" | sed "s|$dir/here/out/||"
  case $name in *.cdx.json) continue ;; esac
  # Each list has the modules that Go itself finds in the program.
  have=$(grep -c '"type": "library"' "$file.cdx.json")
  want=$(go version -m "$file" | grep -c $'^\tdep\t')
  [ "$have" = "$want" ] || {
    echo "reproduce.sh: $name.cdx.json has $have modules, and the program $want" >&2
    exit 1
  }
done
echo "reproduce.sh: the same from both directories"
