// Package hostimage builds the disk image that the lab's machines boot. It unpacks Debian's kernel,
// modules and tools from their packages and adds a small start script. It does not change the
// building machine, and caches the result.
package hostimage

import (
	"context"
	"slices"
	"strconv"
)

// Flavour says what a kind of host consists of. A flavour for more than plain hosts is Base with
// things added.
type Flavour struct {
	Name string
	// Packages are Debian packages; what they depend on is unpacked too.
	Packages []string
	// Files are paths or globs in the unpacked packages that go into the image, each with the
	// shared libraries it needs.
	Files []string
	// Modules are kernel modules, put in with those they depend on.
	Modules []string
	// Extra are files from elsewhere. Their contents are part of the image's key.
	Extra []Extra
	// Hook, if set, is called with the finished root tree before it becomes an image.
	// HookKey must name all that the hook's result depends on.
	Hook    func(ctx context.Context, root string) error
	HookKey string
	// SizeMiB is the size of the root file system; only what is used takes room.
	SizeMiB int
}

// Extra is a file or a tree of files that no package brings.
type Extra struct {
	Source string // on this machine
	Path   string // in the image
}

// Base is a host for escached: block tools, file systems, DRBD, device-mapper and krbd.
func Base() Flavour {
	return Flavour{
		Name: "base",
		Packages: []string{
			"busybox-static", "ca-certificates", "cryptsetup-bin", "curl", "dmsetup", "drbd-utils", "e2fsprogs", "fdisk", "iproute2",
			"iptables", "kmod",
			"libc-bin", "lvm2", "mount", "nftables", "parted", "procps", "sqlite3", "util-linux", "xfsprogs",
		},
		Files: []string{
			"/bin/busybox",
			"/bin/kmod", "/sbin/{depmod,insmod,lsmod,modinfo,modprobe,rmmod}",
			"/bin/{findmnt,lsblk,mount,mountpoint,umount,dmesg}",
			"/sbin/{blkdiscard,blkid,blockdev,fsck,fsfreeze,fstrim,losetup,sfdisk,swapoff,swapon,wipefs}",
			"/usr/bin/{flock,ionice,nsenter,setpriv,setsid,taskset,unshare}",
			"/sbin/{badblocks,debugfs,dumpe2fs,e2fsck,e2image,fsck.ext4,mke2fs,mkfs.ext2,mkfs.ext3,mkfs.ext4,resize2fs,tune2fs}",
			"/sbin/{fsck.xfs,mkfs.xfs,xfs_repair}", "/usr/sbin/{xfs_admin,xfs_db,xfs_freeze,xfs_growfs,xfs_io,xfs_info}",
			"/sbin/dmsetup", "/sbin/cryptsetup", "/sbin/parted", "/usr/sbin/partprobe",
			"/sbin/{lvm,lvchange,lvconvert,lvcreate,lvdisplay,lvextend,lvreduce,lvremove,lvrename,lvresize,lvs,lvscan}",
			"/sbin/{pvchange,pvcreate,pvmove,pvremove,pvresize,pvs,pvscan}",
			"/sbin/{vgcfgrestore,vgchange,vgck,vgcreate,vgextend,vgimportclone,vgreduce,vgremove,vgrename,vgs,vgscan}",
			"/sbin/{drbdadm,drbdmeta,drbdmon,drbdsetup}", "/lib/drbd/*-84", "/etc/drbd.conf",
			"/bin/ip", "/sbin/{bridge,ip,tc}", "/bin/ss", "/usr/bin/curl",
			"/usr/sbin/nft", "/usr/sbin/{iptables*,ip6tables*,xtables-nft-multi}", "/usr/lib/x86_64-linux-gnu/xtables/*",
			"/bin/ps", "/usr/bin/{free,pgrep,pkill,top,vmstat,w}", "/sbin/sysctl", "/usr/bin/sqlite3",
			"/etc/{mke2fs.conf,services,protocols}", "/usr/bin/{getent,ldd}", "/lib/x86_64-linux-gnu/libnss_{dns,files}.so*",
		},
		Modules: []string{
			"virtio_pci", "virtio_net", "virtio_blk", "virtio_rng", "virtio_balloon",
			"drbd", "rbd", "nbd", "loop", "brd", "ext4", "xfs", "overlay", "fuse",
			"dm-mod", "dm-writecache", "dm-delay", "dm-flakey", "dm-log-writes", "dm-snapshot", "dm-crypt", "dm-thin-pool",
			"dm-cache-smq", "dm-integrity",
			"veth", "bridge", "br_netfilter", "dummy", "vxlan", "sch_netem", "sch_tbf", "sch_fq_codel",
			"nf_conntrack", "nf_nat", "nf_tables", "nft_compat", "nft_chain_nat", "nft_ct", "nft_nat", "nft_masq", "nft_limit",
			"nft_numgen", "nft_hash",
			"nft_reject_inet", "nft_fib_inet", "nft_redir",
			"ip_tables", "ip6_tables", "iptable_nat", "iptable_filter", "iptable_mangle", "ip6table_filter", "ip6table_nat",
			"xt_comment", "xt_conntrack", "xt_mark", "xt_MASQUERADE", "xt_addrtype", "xt_statistic", "xt_nat", "xt_REDIRECT",
			"xt_multiport", "xt_recent",
			"aesni_intel", "crc32c_intel", "crc32_pclmul", "xts", "ecb", "dm-verity",
		},
		SizeMiB: 1024,
	}
}

// key identifies the image but for the versions of its packages and the contents of its extra
// files.
func (f *Flavour) key() []string {
	return slices.Concat([]string{f.Name}, f.Packages, []string{"files"}, f.Files, []string{"modules"}, f.Modules,
		[]string{"hook", f.HookKey, strconv.Itoa(f.SizeMiB)})
}
