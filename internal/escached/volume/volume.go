// Package volume describes the replicas on this host, as the tags of their logical volumes store
// them, and keeps a registry of them.
package volume

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/problem"
)

// NamePrefix begins every name that escached gives to kernel objects. escached does not touch
// objects with other names.
const NamePrefix = "escache-"

// Phase says how far creating or removing a replica got.
type Phase string

const (
	// Creating means that the replica is being created. Nothing was ever written through it.
	Creating Phase = "creating"
	// Ready means that the replica is complete.
	Ready Phase = "ready"
	// Deleting means that the removal is decided. It is repeated until it succeeds.
	Deleting Phase = "deleting"
	// Abandoning means that another node has taken the volume over. The device here is being given
	// up, which is repeated until it succeeds.
	Abandoning Phase = "abandoning"
)

// Volume describes one replica on this host. It is stored in the tags of the logical volume and
// nowhere else.
type Volume struct {
	escache.VolumeRef

	ImageID    string
	SizeBytes  int64
	CacheBytes int64
	// Engine is the cache engine whose format the disk has.
	Engine escache.Engine
	Self   escache.ReplicaNode
	Peer   escache.ReplicaNode
	Port   int
	Minor  int
	Epoch  int64
	// Joined means that the replica started empty beside one that holds the volume. It is never
	// declared equal to its peer; a resync has to fill it.
	Joined bool
	// Formatted is set before this host makes the device available for the first time.
	Formatted bool
	// Keyed means that the link of the replica has a shared secret, which is kept elsewhere. Without
	// it the two ends know each other by their names.
	Keyed bool
	// PeerComplete means, while the device is being given up, that the peer had all that was
	// acknowledged.
	PeerComplete bool
	Phase        Phase
}

// NameOf returns the name of a volume's LV, DRBD resource and device. It is short enough for all
// three, however long the names of pool and image are.
func NameOf(ref escache.VolumeRef) string {
	sum := sha256.Sum256([]byte(ref.Pool + "/" + ref.Image))
	return NamePrefix + hex.EncodeToString(sum[:8])
}

// Name returns the name of the volume's LV, DRBD resource and device.
func (v Volume) Name() string { return NameOf(v.VolumeRef) }

// Laid reports whether the replica was created completely and is not being removed.
func (v Volume) Laid() bool { return v.Phase == Ready || v.Phase == Abandoning }

// Tags returns the tags that describe the volume. Parse reads them back.
func (v Volume) Tags() map[string]string {
	tags := map[string]string{
		"v": layoutPlain, "pool": v.Pool, "image": v.Image, "image-id": v.ImageID, "phase": string(v.Phase),
		"size": strconv.FormatInt(v.SizeBytes, 10), "cache": strconv.FormatInt(v.CacheBytes, 10),
		"self": v.Self.Name + "/" + v.Self.Address, "peer": v.Peer.Name + "/" + v.Peer.Address,
		"port": strconv.Itoa(v.Port), "minor": strconv.Itoa(v.Minor),
		"epoch": strconv.FormatInt(v.Epoch, 10), "formatted": strconv.FormatBool(v.Formatted), "joined": strconv.FormatBool(v.Joined),
	}
	if v.Engine != escache.EngineWritecache {
		// Versions that do not know the tag would take the disk for a damaged one of writecache. They
		// leave a replica of another layout alone.
		tags["engine"], tags["v"] = string(v.Engine), layoutWithEngine
	}
	if v.Keyed { // replicas of earlier versions do not have the tag
		tags["keyed"] = "true"
	}
	if v.PeerComplete { // they do not have this one either
		tags["peer-complete"] = "true"
	}
	return tags
}

// Layouts of the tags.
const (
	layoutPlain      = "1" // the engine is writecache
	layoutWithEngine = "2" // the tag engine names another one
)

// The largest numbers of a port and of a device's minor.
const (
	maxPort  = 1<<16 - 1
	maxMinor = 1<<20 - 1
)

// Parse reads a volume from the tags of its LV. Missing or inconsistent tags are errors.
func Parse(lv lvm.Volume) (Volume, error) {
	var errs []error
	number := func(key string, most int64) int64 {
		n, err := strconv.ParseInt(lv.Tags[key], 10, 64)
		if err == nil && (n < 0 || n > most) {
			err = fmt.Errorf("%d is not from 0 to %d", n, most)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("tag %s: %w", key, err))
		}
		return n
	}
	node := func(key string) escache.ReplicaNode {
		name, address, ok := cutLast(lv.Tags[key], '/')
		if !ok {
			errs = append(errs, fmt.Errorf("tag %s: %q is not NAME/ADDRESS", key, lv.Tags[key]))
		}
		return escache.ReplicaNode{Name: name, Address: address}
	}
	v := Volume{
		VolumeRef: escache.VolumeRef{Pool: lv.Tags["pool"], Image: lv.Tags["image"]},
		ImageID:   lv.Tags["image-id"], SizeBytes: number("size", math.MaxInt64), CacheBytes: number("cache", math.MaxInt64),
		Engine: cmp.Or(escache.Engine(lv.Tags["engine"]), escache.EngineWritecache),
		Self:   node("self"), Peer: node("peer"), Port: int(number("port", maxPort)), Minor: int(number("minor", maxMinor)),
		Epoch: number("epoch", math.MaxInt64), Formatted: lv.Tags["formatted"] == "true", Joined: lv.Tags["joined"] == "true",
		Keyed: lv.Tags["keyed"] == "true", PeerComplete: lv.Tags["peer-complete"] == "true",
		Phase: Phase(lv.Tags["phase"]),
	}
	for _, key := range lv.Twice {
		if key != "epoch" {
			errs = append(errs, fmt.Errorf("tag %s: there are two (lvs -o lv_tags); remove the wrong one with lvchange --deltag", key))
		}
	}
	switch {
	case lv.Tags["v"] != layoutPlain && lv.Tags["v"] != layoutWithEngine:
		errs = append(errs, fmt.Errorf("tag v: this version does not know layout %q", lv.Tags["v"]))
	case (lv.Tags["v"] == layoutPlain) != (v.Engine == escache.EngineWritecache):
		errs = append(errs, fmt.Errorf("tag engine: layout %s does not go with the cache engine %q", lv.Tags["v"], v.Engine))
	case v.Name() != lv.Name:
		errs = append(errs, fmt.Errorf("the tags belong to %s/%s, whose LV is named %s", v.Pool, v.Image, v.Name()))
	case v.Phase != Creating && v.Phase != Ready && v.Phase != Deleting && v.Phase != Abandoning:
		errs = append(errs, fmt.Errorf("tag phase: %q is unknown", v.Phase))
	}
	if err := errors.Join(errs...); err != nil {
		return Volume{}, fmt.Errorf("logical volume %s: %w", lv.Name, err)
	}
	return v, nil
}

// OwnerOf returns the volume that an LV belongs to, also if its other tags cannot be read. It is
// empty if the tags do not say so.
func OwnerOf(lv lvm.Volume) escache.VolumeRef {
	ref := escache.VolumeRef{Pool: lv.Tags["pool"], Image: lv.Tags["image"]}
	if NameOf(ref) != lv.Name {
		return escache.VolumeRef{}
	}
	return ref
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == sep {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// Fail returns an error about this volume that the API answers with code.
func (v Volume) Fail(code escache.Code, format string, args ...any) error {
	return problem.On(v.VolumeRef, code, format, args...)
}

// NotLate refuses a call that is about an earlier attachment than the newest that was seen here; see
// problem.IfLate. Its caller has locked the volume.
func (v Volume) NotLate(epoch int64) error { return problem.IfLate(v.VolumeRef, epoch, v.Epoch) }

// About adds which volume an error of a layer is about. The error keeps its code.
func (v Volume) About(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s/%s: %w", v.Pool, v.Image, err)
}
