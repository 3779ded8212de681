# shellcheck shell=bash
# Sourced by the scripts beside it.

# archive FILE DIR NAME…: writes files and folders of DIR into a tar, compressed if FILE ends in gz. The same files give the same bytes: names are
# sorted, owners are root, and every time is SOURCE_DATE_EPOCH.
archive() {
  local file=$1 dir=$2 compress=(cat)
  shift 2
  case $file in *gz) compress=(gzip -n -9) ;; esac
  tar --format=ustar --sort=name --owner=root:0 --group=root:0 --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" -C "$dir" -c "$@" |
    "${compress[@]}" >"$file"
}

# name_layout DIR NAME: gives the image of an OCI layout its whole name, in the annotation from which containerd takes it.
name_layout() {
  sed -i "s|\"org.opencontainers.image.ref.name\":|\"io.containerd.image.name\":\"$2\",&|" "$1/index.json"
  grep -qF "\"$2\"" "$1/index.json"
}
