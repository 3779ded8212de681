#!/usr/bin/env bash
# Writes krew's manifest of the plugin for the archives in a release: krew.sh DIR VERSION URL HOMEPAGE. The archives will be in URL.
set -euo pipefail
dir=$1 version=$2 url=${3%/} home=$4

{
  cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: escache
spec:
  version: $version
  homepage: $home
  shortDescription: See, flush and evacuate the caches of escache-csi
  description: |
    Shows the state of the write-back caches that escache-csi puts in front of Ceph RBD volumes,
    flushes them before a migration, evacuates hosts, and explains what a volume waits for.
  caveats: |
    For completion in your shell, put this file on your PATH. krew keeps it in its store only:
      cp "\${KREW_ROOT:-\$HOME/.krew}"/store/escache/*/kubectl_complete-escache /usr/local/bin/
  platforms:
END
  for file in "$dir"/kubectl-escache_"${version}"_*.tar.gz; do
    name=$(basename "$file" .tar.gz)
    platform=${name#kubectl-escache_"${version}"_}
    suffix=
    [ "${platform%_*}" != windows ] || suffix=.exe
    cat <<END
    - selector:
        matchLabels:
          os: ${platform%_*}
          arch: ${platform#*_}
      uri: $url/$name.tar.gz
      sha256: $(sha256sum "$file" | cut -d ' ' -f 1)
      bin: kubectl-escache$suffix
      files:
        - {from: kubectl-escache$suffix, to: .}
        - {from: LICENSE, to: .}
END
    # kubectl runs it by name. Windows has no shell for it.
    [ "${platform%_*}" = windows ] || echo '        - {from: kubectl_complete-escache, to: .}'
  done
} >"$dir/escache.yaml"
