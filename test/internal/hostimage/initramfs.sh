#!/bin/busybox sh
# shellcheck shell=dash
# First program of a lab machine: loads what the root disk needs, mounts it and goes there.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do
  /bin/busybox insmod "/modules/$module"
done </modules/order
while [ ! -b /dev/vda ]; do /bin/busybox usleep 20000; done
# A host can lose its power at any time: without delayed allocation and with a short commit interval, files written at boot are not found empty after it.
/bin/busybox mount -t ext4 -o nodelalloc,commit=1 /dev/vda /root || exec /bin/busybox sh
/bin/busybox umount /dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /sbin/init
