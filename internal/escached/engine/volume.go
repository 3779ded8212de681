package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// namePrefix begins every name that escached gives to kernel objects. escached does not touch
// objects with other names.
const namePrefix = "escache-"

// phase says how far laying or removing a replica got.
type phase string

const (
	phaseCreating phase = "creating" // nothing was ever written through it
	phaseReady    phase = "ready"
	phaseDeleting phase = "deleting" // the removal is decided, and repeated until it succeeds
	// Another node has taken the volume over. The device here is being given up; that is repeated
	// until it succeeds.
	phaseAbandoning phase = "abandoning"
)

// volume describes one replica on this host. It is stored in the tags of the logical volume and
// nowhere else.
type volume struct {
	escache.VolumeRef

	ImageID    string
	SizeBytes  int64
	CacheBytes int64
	Self       escache.ReplicaNode
	Peer       escache.ReplicaNode
	Port       int
	Minor      int
	Epoch      int64
	// Joined means that the replica started empty beside one that holds the volume. It is never
	// declared equal to its peer; a resync has to fill it.
	Joined bool
	// Formatted is set before this host makes the device available for the first time.
	Formatted bool
	Phase     phase
}

// nameOf returns the name of a volume's LV, DRBD resource and device. It is short enough for all
// three, however long the names of pool and image are.
func nameOf(ref escache.VolumeRef) string {
	sum := sha256.Sum256([]byte(ref.Pool + "/" + ref.Image))
	return namePrefix + hex.EncodeToString(sum[:8])
}

func (v volume) name() string { return nameOf(v.VolumeRef) }

func (v volume) tags() map[string]string {
	return map[string]string{
		"v": "1", "pool": v.Pool, "image": v.Image, "image-id": v.ImageID, "phase": string(v.Phase),
		"size": strconv.FormatInt(v.SizeBytes, 10), "cache": strconv.FormatInt(v.CacheBytes, 10),
		"self": v.Self.Name + "/" + v.Self.Address, "peer": v.Peer.Name + "/" + v.Peer.Address,
		"port": strconv.Itoa(v.Port), "minor": strconv.Itoa(v.Minor),
		"epoch": strconv.FormatInt(v.Epoch, 10), "formatted": strconv.FormatBool(v.Formatted), "joined": strconv.FormatBool(v.Joined),
	}
}

// parseVolume reads a volume from the tags of its LV. Missing or inconsistent tags are errors.
func parseVolume(lv lvm.Volume) (volume, error) {
	var errs []error
	number := func(key string) int64 {
		n, err := strconv.ParseInt(lv.Tags[key], 10, 64)
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
	v := volume{
		VolumeRef: escache.VolumeRef{Pool: lv.Tags["pool"], Image: lv.Tags["image"]},
		ImageID:   lv.Tags["image-id"], SizeBytes: number("size"), CacheBytes: number("cache"),
		Self: node("self"), Peer: node("peer"), Port: int(number("port")), Minor: int(number("minor")),
		Epoch: number("epoch"), Formatted: lv.Tags["formatted"] == "true", Joined: lv.Tags["joined"] == "true",
		Phase: phase(lv.Tags["phase"]),
	}
	switch {
	case lv.Tags["v"] != "1":
		errs = append(errs, fmt.Errorf("tag v: this version does not know layout %q", lv.Tags["v"]))
	case v.name() != lv.Name:
		errs = append(errs, fmt.Errorf("the tags belong to %s/%s, whose LV is named %s", v.Pool, v.Image, v.name()))
	case v.Phase != phaseCreating && v.Phase != phaseReady && v.Phase != phaseDeleting && v.Phase != phaseAbandoning:
		errs = append(errs, fmt.Errorf("tag phase: %q is unknown", v.Phase))
	}
	if err := errors.Join(errs...); err != nil {
		return volume{}, fmt.Errorf("logical volume %s: %w", lv.Name, err)
	}
	return v, nil
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == sep {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}
