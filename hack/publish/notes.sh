#!/usr/bin/env bash
# Writes the release notes, which are the version's section of CHANGELOG.md, or "Unreleased" if it has none: notes.sh OUT VERSION
set -euo pipefail
out=$(realpath "$1") version=$2
cd "$(dirname "$0")/../.."

section() { # TITLE: what is below "## TITLE", or "## TITLE (DATE)"
  awk -v title="$1" '
    /^## / { inside = ($2 == title); next }
    inside && (NF || said) { said = 1; print }
  ' CHANGELOG.md
}
text=$(section "${version#v}")
[ -n "$text" ] || text=$(section "$version")
[ -n "$text" ] || text=$(section Unreleased)
[ -n "$text" ] || {
  echo "notes.sh: CHANGELOG.md has no section ${version#v} and nothing in \"Unreleased\": write what is new" >&2
  exit 1
}
printf '# escache-csi %s\n\n%s\n' "$version" "$text" >"$out/release-notes.md"
