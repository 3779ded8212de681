#!/usr/bin/env bash
# Pushes the images and the chart of a release to a registry: push.sh DIR REGISTRY. DIR has OCI archives (`make images` or `make release`).
# Each image becomes REGISTRY/REPOSITORY/NAME:VERSION (REPOSITORY: escache), with the digest that it has in its archive; the chart becomes
# oci://REGISTRY/REPOSITORY/charts/escache-csi. INSECURE=1 talks to a registry without TLS, or whose certificate is not trusted.
# The credentials are those of `docker login` or `crane auth login`. SSL_CERT_FILE names a certificate authority of yours.
set -euo pipefail
dir=$1 registry=${2:-} repository=${REPOSITORY:-escache}
fail() {
  echo "push.sh: $*" >&2
  exit 1
}
[ -n "$registry" ] || fail "set REGISTRY to the registry, for example REGISTRY=registry.example.com"
shopt -s nullglob
archives=("$dir"/*_linux_*.oci.tar)
[ ${#archives[@]} -gt 0 ] || fail "there are no images in $dir: run make images OUT=$dir, or make release"
dir=$(realpath "$dir")
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
crane=("$(go tool -modfile=hack/tools/crane/go.mod -n crane)")
plain=()
if [ "${INSECURE:-}" = 1 ]; then
  crane+=(--insecure)
  plain=(--plain-http)
fi

# Archives of one image for several processors get one index, with the name that nodes pull.
declare -A platforms=()
for file in "$dir"/*_linux_*.oci.tar; do
  name=$(basename "$file" .oci.tar)
  platforms[${name%_linux_*}]+=" ${name##*_linux_}"
done
for image in $(printf '%s\n' "${!platforms[@]}" | sort); do
  name=$registry/$repository/${image%%_*}:${image#*_}
  parts=()
  for arch in ${platforms[$image]}; do
    rm -rf "$work/layout"
    mkdir "$work/layout"
    tar -xf "$dir/${image}_linux_$arch.oci.tar" -C "$work/layout"
    digest=$(grep -o '"digest":"sha256:[0-9a-f]*"' "$work/layout/index.json" | cut -d '"' -f 4)
    timeout 1800 "${crane[@]}" push "$work/layout" "$name-$arch" >"$work/pushed" 2>"$work/log" || fail "push $name-$arch: $(cat "$work/log")"
    [ "$(sed 's/.*@//' "$work/pushed")" = "$digest" ] || fail "$name-$arch: pushed $(cat "$work/pushed"), and the archive has $digest"
    parts+=("$registry/$repository/${image%%_*}@$digest")
  done
  case ${#parts[@]} in
    1) timeout 300 "${crane[@]}" tag "${parts[0]}" "${image#*_}" 2>"$work/log" || fail "tag $name: $(cat "$work/log")" ;;
    *)
      timeout 300 "${crane[@]}" index append "${parts[@]/#/--manifest=}" --tag "$name" >/dev/null 2>"$work/log" ||
        fail "index $name: $(cat "$work/log")"
      ;;
  esac
  echo "$name@$(timeout 300 "${crane[@]}" digest "$name")"
done

charts=("$dir"/escache-csi-*.tgz)
if [ ${#charts[@]} -gt 0 ]; then
  helm=$(go tool -modfile=hack/tools/helm/go.mod -n helm)
  for chart in "${charts[@]}"; do
    HELM_CACHE_HOME=$work timeout 600 "$helm" push "${plain[@]}" "$chart" "oci://$registry/$repository/charts" 2>"$work/log" >&2 ||
      fail "push $(basename "$chart"): $(cat "$work/log")"
    echo "oci://$registry/$repository/charts/escache-csi $(basename "$chart" .tgz | sed 's/^escache-csi-//')"
  done
fi
