package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/test/labtest"
)

// Sizes. Writes stay well below the half of the cache at which write-back starts by itself: it
// would be measured as slower writes.
const (
	imageBytes      = 160 * mib
	cacheBytes      = 320 * mib
	sequentialBytes = 128 * mib
	syncSpan        = 16 * mib
)

// candidate is a device on the first host.
type candidate interface {
	name() string
	device() string
	// replicated is the minor of the DRBD device that the writes go through; negative if there is
	// none.
	replicated() int
	// settle brings the device back to where it was before its turn.
	flush(r *runner)
}

// cache is a volume of escache: cache on two hosts, image in Ceph.
type cache struct {
	volume *labtest.Volume
	host   *labtest.Host
	path   string
}

func newCache(r *runner, lab *labtest.Lab) *cache {
	c := &cache{volume: lab.NewVolume(r, labtest.VolumeSpec{SizeBytes: imageBytes, CacheBytes: cacheBytes}), host: lab.Hosts[0]}
	c.volume.Lay(r)
	c.path = c.volume.Connect(r, c.host).Device
	r.Cleanup(func() {
		if !r.Failed() {
			c.volume.Remove(r, c.host)
		}
	})
	return c
}

func (c *cache) name() string    { return "escache" }
func (c *cache) device() string  { return c.path }
func (c *cache) replicated() int { return c.volume.Minor }
func (c *cache) flush(r *runner) { c.volume.Flush(r, c.host) }

// timedFlush returns bytes a second.
func (c *cache) timedFlush(r *runner) float64 {
	status := c.volume.Status(r, c.host)
	if status.DirtyBytes == nil || *status.DirtyBytes < sequentialBytes/2 {
		r.Fatalf("the cache is not dirty, so a flush shows nothing: %+v", status)
	}
	begin := time.Now()
	c.volume.Flush(r, c.host)
	return float64(*status.DirtyBytes) / time.Since(begin).Seconds()
}

// bareDRBD is the same replication between the same hosts with nothing above it.
type bareDRBD struct{}

const (
	drbdName  = "bench-bare"
	drbdMinor = 90
	drbdPort  = 8899
)

func startBareDRBD(r *runner, lab *labtest.Lab) {
	pair := lab.Hosts[:2]
	for i, h := range pair {
		peer := pair[1-i]
		// Written by escached's own code, so that both devices are tuned alike.
		file := resourceFile(r, drbd.Resource{
			Name: drbdName, Minor: drbdMinor, Port: drbdPort, Disk: "/dev/escache/" + drbdName, ResyncRate: "100M", FencePeer: "/bin/false",
			LocalHost: h.Name, LocalAddress: h.Address, PeerHost: peer.Name, PeerAddress: peer.Address,
		})
		h.Write(r, "/etc/drbd.d/"+drbdName+".res", file)
		r.Cleanup(func() {
			h.Shell(r, fmt.Sprintf(
				"drbdadm secondary %[1]s; drbdadm down %[1]s; rm -f /etc/drbd.d/%[1]s.res; lvremove -qq -y escache/%[1]s", drbdName))
		})
		h.Shell(r, fmt.Sprintf("lvcreate -qq -y -Wn -Zn -L %dM -n %[2]s escache && drbdadm create-md --force %[2]s && drbdadm up %[2]s",
			imageBytes/mib, drbdName))
	}
	waitForDRBD(r, pair[0], "Secondary/Secondary")
	pair[0].Shell(r, fmt.Sprintf("drbdadm new-current-uuid --clear-bitmap %[1]s && drbdadm primary %[1]s", drbdName))
	waitForDRBD(r, pair[0], "UpToDate/UpToDate")
}

func resourceFile(r *runner, resource drbd.Resource) string {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		r.Fatalf("%v", err)
	}
	defer os.RemoveAll(dir)
	if _, err := (drbd.Files{Dir: dir}).Write(resource); err != nil {
		r.Fatalf("%v", err)
	}
	text, err := os.ReadFile(fmt.Sprintf("%s/%s.res", dir, resource.Name))
	if err != nil {
		r.Fatalf("%v", err)
	}
	return string(text)
}

func waitForDRBD(r *runner, h *labtest.Host, state string) {
	labtest.WaitFor(r, "bare DRBD is "+state, time.Minute, func(ctx context.Context) error {
		out, err := h.Try(ctx, nil, "grep", fmt.Sprintf("^ *%d:", drbdMinor), "/proc/drbd")
		if err == nil && !strings.Contains(out, state) {
			err = fmt.Errorf("it is %s", out)
		}
		return err
	})
}

func (bareDRBD) name() string    { return "bare DRBD" }
func (bareDRBD) device() string  { return drbd.Device(drbdMinor) }
func (bareDRBD) replicated() int { return drbdMinor }
func (bareDRBD) flush(*runner)   {}

// bareRBD is an image mapped without a cache.
type bareRBD struct{ path string }

func newBareRBD(r *runner, lab *labtest.Lab) bareRBD {
	v := lab.NewVolume(r, labtest.VolumeSpec{SizeBytes: imageBytes})
	r.Cleanup(func() { v.RemoveImage(r) })
	path, unmap := lab.Hosts[0].MapPlain(r, v)
	r.Cleanup(unmap)
	return bareRBD{path}
}

func (bareRBD) name() string     { return "plain RBD" }
func (b bareRBD) device() string { return b.path }
func (bareRBD) replicated() int  { return -1 }
func (bareRBD) flush(*runner)    {}
