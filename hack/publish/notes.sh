#!/usr/bin/env bash
# Writes the release notes: notes.sh OUT VERSION
# They are the version's section of CHANGELOG.md. A version such as 1.2.0-rc.1 without a section takes that of 1.2.0. If there is none either,
# "Unreleased" is taken. Links to pages of docs/ become addresses.
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
number=${version#v}
[ -n "$text" ] || text=$(section "${number%%-*}")
[ -n "$text" ] || text=$(section Unreleased)
[ -n "$text" ] || {
  echo "notes.sh: CHANGELOG.md has no section ${version#v} and nothing in \"Unreleased\": write what is new" >&2
  exit 1
}
docs=$(sed -n 's/^home: //p' charts/escache-csi/Chart.yaml)/blob/$version/docs
text=${text//'](docs/'/"]($docs/"}
printf '# escache-csi %s\n\n%s\n' "$version" "$text" >"$out/release-notes.md"
