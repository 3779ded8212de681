#!/usr/bin/env bash
# Looks for long sentences, unusual words and wrong terms in the pages, in what the chart says and in what the programs say. The rules are in
# test/docs/style/Plain.
#   prose.sh [PAGE…]      default: all pages, CHANGELOG.md, the chart's README, comments and notes, the alerts, the escache API's
#                         description, and the programs' messages
set -euo pipefail
cd "$(dirname "$0")/.."

# vale links parsers of programming languages in C. They are large tables, which a compiler takes minutes to optimize; nothing here uses them.
export CGO_CFLAGS="-O0 -w" CGO_CXXFLAGS="-O0 -w"
style=test/docs/style
vale() {
  go tool -modfile=hack/tools/vale/go.mod vale --no-global --config="$style/vale.ini" --output=line --no-wrap "$@"
}

# A linter that finds nothing may have read nothing. Each rule must find its sentences in bad.md, and none may find one in good.md.
found=$(vale --no-exit "$style/bad.md" | awk -F: '{print $2 " " $4}')
for rule in "$style"/Plain/*.yml; do
  name=$(basename "$rule" .yml)
  lines=$(grep -n "^- \`$name\`: " "$style/bad.md" | cut -d: -f1)
  if [ -z "$lines" ]; then
    echo "prose.sh: $style/bad.md has no sentence for the rule $name" >&2
    exit 1
  fi
  for line in $lines; do
    if ! grep -qx "$line Plain.$name" <<<"$found"; then
      echo "prose.sh: $style/bad.md:$line: the rule $name does not find this sentence" >&2
      exit 1
    fi
  done
done
if ! vale "$style/good.md"; then
  echo "prose.sh: a rule finds something in $style/good.md, where nothing is wrong" >&2
  exit 1
fi

if [ $# != 0 ]; then
  vale "$@"
  exit
fi
failed=0
mapfile -t pages < <(git ls-files README.md CONTRIBUTING.md CHANGELOG.md 'docs/*.md' 'charts/*/README.md')
vale "${pages[@]}" || failed=1
# as_page FILE SED-SCRIPT: checks a file as the Markdown that the script makes of it, line by line.
as_page() {
  sed -E "$2" "$1" | vale --ext=.md | sed "s|^stdin.md:|$1:|" || failed=1
}
as_page charts/escache-csi/values.yaml 's/^[^#]*$//; s/^[^#]*#( --)? ?//'
as_page charts/escache-csi/templates/NOTES.txt 's/\{\{[^}]*\}\}//g; s/^  /    /'
as_page charts/escache-csi/files/alerts.yaml 's/\{\{[^}]*\}\}/X/g; s/^ *(summary|runbook): /- /; t; s/.*//'
as_page api/escache/openapi.yaml \
  "s/^ *(- )?(description|summary): *[|>]?-? *//; t; s/^ *(- )?[A-Za-z0-9_\$'\"{}\/.-]+:( .*)?$//; s/^ *- .*//; s/^ +//"

# Help, errors, Events, conditions and log lines; and the doc comments that become the CRDs' descriptions.
messages=$(mktemp -d)
trap 'rm -rf "$messages"' EXIT
mapfile -t sources < <(git ls-files 'api/*.go' 'cmd/*.go' 'internal/*.go' | grep -v -e '_test\.go$' -e 'test/')
go run ./test/docs/messages "$messages" "${sources[@]}"
vale "$messages" | sed -E "s|^$messages/([^:]*)\.md:|\1:|" || failed=1
exit "$failed"
