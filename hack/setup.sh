#!/usr/bin/env bash
# Installs the Debian packages for a group of tasks: setup.sh [build|lab|kubernetes|screens|release|lint]…  (default: build lab kubernetes)
# Prints what it installs. If nothing is missing, it does nothing, and does not update the package lists.
set -euo pipefail

packages() {
  case $1 in
    build) echo ca-certificates git gcc libc6-dev librbd-dev librados-dev ;;
    lab) echo ca-certificates ceph-common ceph-mgr ceph-mon ceph-osd cpio e2fsprogs gzip iproute2 kmod lz4 nbdkit nftables procps \
      qemu-system-x86 util-linux ;;
    kubernetes) echo ca-certificates git ;;
    screens)
      echo chromium tmux
      command -v npm >/dev/null || echo npm # Node.js of another origin has it, too
      ;;
    release) echo skopeo ;;
    lint) echo g++ git shellcheck ;;
    *)
      echo "setup.sh: unknown group '$1' (one of: build lab kubernetes screens release lint)" >&2
      return 2
      ;;
  esac
}

missing=()
for group in "${@:-build lab kubernetes}"; do
  for name in $group; do
    wanted=$(packages "$name")
    for package in $wanted; do
      state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
      [ "$state" = installed ] || missing+=("$package")
    done
  done
done
[ ${#missing[@]} = 0 ] && exit 0

if [ "$(id -u)" != 0 ]; then
  echo "setup.sh: these packages are missing, and installing them needs root: ${missing[*]}" >&2
  exit 1
fi
echo "setup.sh: installing $(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')"
export DEBIAN_FRONTEND=noninteractive
# Another apt may run at the same time: wait for it instead of failing. A second setup.sh also waits with its download: Debian's container
# images delete all downloaded packages after each installation.
options=(-q -y -o DPkg::Lock::Timeout=600)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
exec 9</var/lib/apt/lists
flock 9
if ! { apt-get "${options[@]}" update &&
  apt-get "${options[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null 9<&-; then
  tail -n 40 "$log" >&2
  echo "setup.sh: apt-get failed; see above" >&2
  exit 1
fi
echo "setup.sh: done"
