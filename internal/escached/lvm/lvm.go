// Package lvm creates, tags and removes the logical volumes of the caches, and reads the size of
// their volume group. Tags store what each volume is.
package lvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/command"
)

// ErrNoRoom means that the volume group has not enough free extents.
var ErrNoRoom = errors.New("the volume group has not enough free space")

// ErrNoGroup means that the volume group does not exist.
var ErrNoGroup = errors.New("the volume group does not exist")

// config keeps LVM from reading escached's devices: reading a frozen or suspended device would hang
// every LVM command. The filter is added to the host's own global_filter.
const config = `devices { filter=["r|/drbd[0-9]|","r|/rbd[0-9]|","r|/escache-|","r|/dev/escache/|"] }` +
	` activation { auto_set_activation_skip=0 }`

// Group is one volume group. It is changed through LVM's own tools.
type Group struct {
	name string
	run  command.Runner
	// mu serialises changes. LVM does so too, by a lock of its own, but on a busy host those who
	// wait for that lock time out.
	mu sync.Mutex
}

// New returns the volume group with this name, which need not exist.
func New(name string, run command.Runner) *Group { return &Group{name: name, run: run} }

// Space is the size of a volume group, its free space and the size of an extent, in bytes.
type Space struct {
	// GroupID is LVM's UUID of the volume group: made with it, and kept on its disks.
	GroupID  string
	Capacity int64
	// Free is what new volumes can have: nothing while a disk is missing.
	Free   int64
	Extent int64
	// Missing is how many of the group's disks LVM does not find. It changes and removes volumes then, and
	// creates none.
	Missing int
}

// Volume is one logical volume.
type Volume struct {
	Name   string
	Bytes  int64
	Active bool
	// Partial means that a part of it is on a disk that LVM does not find.
	Partial bool
	// Tags are escached's own tags, decoded. Other tags are left out.
	Tags map[string]string
	// Twice are the keys of Tags that it has with several values, sorted. Of epochs, Tags has the newest. See Rewrite.
	Twice []string
}

// Path returns the path of a volume's block device.
func (g *Group) Path(name string) string { return "/dev/" + g.name + "/" + name }

// Space reads the size of the group. It returns ErrNoGroup if the group does not exist.
func (g *Group) Space(ctx context.Context) (Space, error) {
	// --readonly takes no lock, so this does not wait for a change that is under way.
	res, err := g.lvm(ctx, true, "", "vgs", "--readonly", "--reportformat", "json", "--units", "b", "--nosuffix",
		"-o", "vg_uuid,vg_size,vg_free,vg_extent_size,vg_missing_pv_count", g.name)
	if err != nil {
		if strings.Contains(err.Error(), "not found") {
			return Space{}, fmt.Errorf("%w: create %q on this host's NVMe (vgcreate)", ErrNoGroup, g.name)
		}
		return Space{}, err
	}
	var report struct {
		Report []struct {
			VG []struct {
				UUID    string `json:"vg_uuid"`
				Size    string `json:"vg_size"`
				Free    string `json:"vg_free"`
				Extent  string `json:"vg_extent_size"`
				Missing string `json:"vg_missing_pv_count"`
			} `json:"vg"`
		} `json:"report"`
	}
	if err := json.Unmarshal(res.Stdout, &report); err != nil {
		return Space{}, fmt.Errorf("the output of vgs is not JSON: %w", err)
	}
	if len(report.Report) != 1 || len(report.Report[0].VG) != 1 {
		return Space{}, fmt.Errorf("%w: create %q on this host's NVMe (vgcreate)", ErrNoGroup, g.name)
	}
	vg := report.Report[0].VG[0]
	s := Space{GroupID: vg.UUID}
	var errs [4]error
	s.Capacity, errs[0] = strconv.ParseInt(vg.Size, 10, 64)
	s.Free, errs[1] = strconv.ParseInt(vg.Free, 10, 64)
	s.Extent, errs[2] = strconv.ParseInt(vg.Extent, 10, 64)
	s.Missing, errs[3] = strconv.Atoi(vg.Missing)
	if err := errors.Join(errs[:]...); err != nil {
		return Space{}, fmt.Errorf("vgs: %w", err)
	}
	if s.GroupID == "" || s.Extent <= 0 || s.Free < 0 || s.Free > s.Capacity || s.Missing < 0 {
		return Space{}, fmt.Errorf("vgs reports a volume group that cannot be: %+v", s)
	}
	if s.Missing != 0 {
		s.Free = 0
	}
	return s, nil
}

// Version returns the version of LVM's tools, such as "2.03.16".
func (g *Group) Version(ctx context.Context) (string, error) {
	res, err := g.lvm(ctx, true, "", "version")
	if err != nil {
		return "", err
	}
	return parseVersion(res.Stdout)
}

var versionLine = regexp.MustCompile(`(?m)^\s*LVM version:\s*([0-9.]+)`)

func parseVersion(data []byte) (string, error) {
	m := versionLine.FindSubmatch(data)
	if m == nil {
		return "", errors.New("the output of lvm version has no version of LVM")
	}
	return string(m[1]), nil
}

// Volumes lists the group's volumes that have tags of escached. With readOnly it takes no lock, for
// callers that must not wait.
func (g *Group) Volumes(ctx context.Context, readOnly bool) ([]Volume, error) {
	args := []string{
		"lvs", "--reportformat", "json", "--units", "b", "--nosuffix",
		"-o", "lv_name,lv_size,lv_active,lv_health_status,lv_tags", g.name,
	}
	if readOnly {
		args = slices.Insert(args, 1, "--readonly")
	}
	res, err := g.lvm(ctx, true, "", args...)
	if err != nil {
		return nil, err
	}
	return parseVolumes(res.Stdout)
}

func parseVolumes(data []byte) ([]Volume, error) {
	var report struct {
		Report []struct {
			LV []struct {
				Name   string `json:"lv_name"`
				Size   string `json:"lv_size"`
				Active string `json:"lv_active"`
				Health string `json:"lv_health_status"`
				Tags   string `json:"lv_tags"`
			} `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("the output of lvs is not JSON: %w", err)
	}
	var out []Volume
	for _, r := range report.Report {
		for _, lv := range r.LV {
			v := Volume{Name: lv.Name, Active: lv.Active == "active", Partial: lv.Health == "partial", Tags: map[string]string{}}
			for _, tag := range splitTags(lv.Tags) {
				if key, value, ok := decodeTag(tag); ok {
					v.addTag(key, value)
				}
			}
			if len(v.Tags) == 0 {
				continue
			}
			var err error
			if v.Bytes, err = strconv.ParseInt(lv.Size, 10, 64); err != nil {
				return nil, fmt.Errorf("lvs: size of %s: %w", lv.Name, err)
			}
			if v.Bytes < 0 {
				return nil, fmt.Errorf("lvs: size of %s: %d", lv.Name, v.Bytes)
			}
			out = append(out, v)
		}
	}
	return out, nil
}

// Create makes an active volume of at least size bytes, and tags it in the same step. It returns
// ErrNoRoom if the volume does not fit.
func (g *Group) Create(ctx context.Context, name string, size int64, tags map[string]string) error {
	args := []string{
		"lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n",
		"--size", strconv.FormatInt(size, 10) + "b", "--name", name,
	}
	for _, tag := range slices.Sorted(maps.Keys(encodeTags(tags))) {
		args = append(args, "--addtag", tag)
	}
	_, err := g.lvm(ctx, false, name, append(args, g.name)...)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "insufficient free space"):
		return fmt.Errorf("%w: %d bytes in %s", ErrNoRoom, size, g.name)
	case strings.Contains(err.Error(), "while PVs are missing"):
		return fmt.Errorf("%w: a disk of it is missing; %s", ErrNoRoom, WithoutMissing(g.name))
	}
	return err
}

// WithoutMissing tells how to take missing disks out of a volume group.
func WithoutMissing(group string) string {
	return fmt.Sprintf("if it does not come back, run vgreduce --removemissing --force %s, which removes the replicas on it "+
		"(docs/sizing.md)", group)
}

// Remove deletes a volume, and reports whether there was one. It succeeds if there is none.
func (g *Group) Remove(ctx context.Context, name string) (was bool, err error) {
	_, err = g.lvm(ctx, false, name, "lvremove", "--yes", g.name+"/"+name)
	if err != nil && strings.Contains(err.Error(), "Failed to find logical volume") {
		return false, nil
	}
	return err == nil, err
}

// eraseTime bounds zeroing one piece of a volume, also on a slow disk.
const eraseTime = 5 * time.Minute

// Erase zeroes part of an active volume: size bytes from an offset on, or everything from there on if
// size is 0. Both are multiples of 4 KiB.
func (g *Group) Erase(ctx context.Context, name string, offset, size int64) error {
	args := []string{"--zeroout", "--step", "64MiB", "--offset", strconv.FormatInt(offset, 10)}
	if size > 0 {
		args = append(args, "--length", strconv.FormatInt(size, 10))
	}
	_, err := g.run.Run(ctx, command.Command{Volume: name, Name: "blkdiscard", Args: append(args, g.Path(name)), Timeout: eraseTime})
	return err
}

// Activate makes the block devices of one or more volumes. After an error some of them may be there.
func (g *Group) Activate(ctx context.Context, names ...string) error {
	args := []string{"lvchange", "--activate", "y"}
	for _, name := range names {
		args = append(args, g.name+"/"+name)
	}
	only := "" // no breaker counts for several volumes
	if len(names) == 1 {
		only = names[0]
	}
	_, err := g.lvm(ctx, false, only, args...)
	return err
}

// Retag replaces one set of tags of a volume by another, in one commit of LVM's metadata. After an error the tags may be
// either, and may still change: the next change has to be Rewrite.
func (g *Group) Retag(ctx context.Context, name string, from, to map[string]string) error {
	return g.retag(ctx, name, encodeTags(from), encodeTags(to))
}

// Rewrite replaces all of escached's tags of a volume, whatever they are. An lvchange that was killed while it waited for
// the disk may have changed them, and may still do so. Both commands of Rewrite wait for the lock that it has until then.
func (g *Group) Rewrite(ctx context.Context, name string, tags map[string]string) error {
	res, err := g.lvm(ctx, true, "", "lvs", "--noheadings", "-o", "lv_tags", g.name+"/"+name)
	if err != nil {
		return err
	}
	old := map[string]bool{}
	for _, tag := range splitTags(string(res.Stdout)) {
		if strings.HasPrefix(tag, tagPrefix) {
			old[tag] = true
		}
	}
	return g.retag(ctx, name, old, encodeTags(tags))
}

func (g *Group) retag(ctx context.Context, name string, old, want map[string]bool) error {
	args := []string{"lvchange"}
	for _, tag := range slices.Sorted(maps.Keys(old)) {
		if !want[tag] {
			args = append(args, "--deltag", tag)
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(want)) {
		if !old[tag] {
			args = append(args, "--addtag", tag)
		}
	}
	if len(args) == 1 {
		return nil
	}
	_, err := g.lvm(ctx, false, name+tagging, append(args, g.name+"/"+name)...)
	return err
}

// tagging is appended to the breaker's key of changes of tags. They do not touch the volume's devices, and that it is given up is
// put in its tags before its I/O fails: the commands that are stuck in that I/O end only then.
const tagging = "/tags"

func (g *Group) lvm(ctx context.Context, query bool, volume string, args ...string) (command.Result, error) {
	if !query {
		g.mu.Lock()
		defer g.mu.Unlock()
	}
	return g.run.Run(ctx, command.Command{Volume: volume, Name: "lvm", Args: append(args, "--config", config), Query: query})
}
