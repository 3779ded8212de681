package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// cephTimeout bounds one command of Ceph's tools, which take most of a second each only to start.
const cephTimeout = time.Minute

// forever is for blocklist entries: one that runs out gives the old writer its write access back.
const forever = "315360000"

// Command runs one of Ceph's tools beside the lab's Ceph and returns its output. It may be called
// while the test is cleaned up.
func (l *Lab) Command(t T, name string, args ...string) string {
	t.Helper()
	out, err := command(context.WithoutCancel(t.Context()), name, args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

func command(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cephTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// commandJSON runs a tool with --format json.
func commandJSON(ctx context.Context, into any, name string, args ...string) error {
	out, err := command(ctx, name, append(args, "--format", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// imageFeatures are those of the driver's volumes.
const imageFeatures = "layering,exclusive-lock,deep-flatten"

// createImage makes an image and returns Ceph's id of it.
func createImage(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) (id string, err error) {
	size := fmt.Sprintf("%dB", sizeBytes)
	if _, err := command(ctx, "rbd", "create", "--size", size, "--image-feature", imageFeatures, imageSpec(ref)); err != nil {
		return "", err
	}
	return imageID(ctx, ref)
}

func imageID(ctx context.Context, ref escache.VolumeRef) (string, error) {
	var info struct{ ID string }
	err := commandJSON(ctx, &info, "rbd", "info", imageSpec(ref))
	return info.ID, err
}

// Blocklist shuts a client of Ceph out for good, as a forced hand-over does, and lets it in again
// when the test is over. The caller says with it that the client's host will have lost that map by
// then: it was switched off, or has unmapped.
func (l *Lab) Blocklist(t T, clientAddress string) {
	t.Helper()
	l.Command(t, "ceph", "osd", "blocklist", "add", clientAddress, forever)
	t.Cleanup(func() {
		if _, err := command(context.Background(), "ceph", "osd", "blocklist", "rm", clientAddress); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// FencedForYears returns the clients whose entries in the output of `ceph osd blocklist ls` end in more than a year. Those of
// somebody who steals a lock end within an hour or a day.
func FencedForYears(list string, now time.Time) (clients []string, err error) {
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		ends, err := time.Parse("2006-01-02T15:04:05-0700", fields[1])
		if err != nil {
			return nil, fmt.Errorf("the end of the blocklist's entry %q: %w", line, err)
		}
		if ends.After(now.AddDate(1, 0, 0)) {
			clients = append(clients, fields[0])
		}
	}
	return clients, nil
}

// largestObject is the OSD's option that refuses a write which ends beyond it. As low as this it
// lets only an object's first block through.
const largestObject = "osd_max_object_size"

// RefuseWrites has Ceph answer writes with an error, which krbd passes on as one of I/O, until
// TakeWrites or the end of the test. Reads, watches and locks go on.
func (l *Lab) RefuseWrites(t T) {
	t.Helper()
	t.Cleanup(func() { l.TakeWrites(t) })
	l.Command(t, "ceph", "tell", "osd.0", "config", "set", largestObject, "4096")
}

// TakeWrites has Ceph take writes again.
func (l *Lab) TakeWrites(t T) {
	t.Helper()
	l.Command(t, "ceph", "tell", "osd.0", "config", "unset", largestObject)
}

// ImageBytes is how much of the image is in Ceph, counted in objects that exist.
func (v *Volume) ImageBytes(t T) int64 {
	t.Helper()
	var du struct {
		Images []struct {
			Used int64 `json:"used_size"`
		} `json:"images"`
	}
	if err := commandJSON(t.Context(), &du, "rbd", "du", v.String()); err != nil {
		t.Fatalf("%v", err)
	}
	if len(du.Images) != 1 {
		t.Fatalf("rbd du %s: %+v", v, du)
	}
	return du.Images[0].Used
}

// Watchers are the addresses of the clients that have the image open.
func (v *Volume) Watchers(ctx context.Context) ([]string, error) {
	var status struct {
		Watchers []struct {
			Address string `json:"address"`
		} `json:"watchers"`
	}
	if err := commandJSON(ctx, &status, "rbd", "status", v.String()); err != nil {
		return nil, err
	}
	var addresses []string
	for _, w := range status.Watchers {
		addresses = append(addresses, w.Address)
	}
	return addresses, nil
}
