package rebuild

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Images reads images; *ceph.Images.
type Images interface {
	// EnsurePool checks that the pool can be used.
	EnsurePool(ctx context.Context, clusterID, pool string, create bool) error
	List(ctx context.Context, clusterID, pool, prefix string) ([]string, error)
	Remains(ctx context.Context, image volumes.ImageRef) (volumes.Remains, error)
}

// Hosts asks the escached of each node; *hosts.Hosts.
type Hosts interface {
	Volumes(ctx context.Context, node string) ([]escache.VolumeStatus, error)
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
}

// Records writes records; *volumes.Locked.
type Records interface {
	Rebuild(ctx context.Context, r volumes.Rebuild) (*v1alpha1.CacheVolume, error)
}

// Config holds what a Rebuilder needs.
type Config struct {
	// Live reads from the API server itself.
	Live    client.Reader
	Images  Images
	Hosts   Hosts
	Records Records
	// Kubernetes is the identity of this Kubernetes cluster.
	Kubernetes string
	// Ask bounds one question to a host. PageSize is how many images one request looks at.
	Ask      time.Duration
	PageSize int
	// Parallel is how many images are looked at at once.
	Parallel int
}

// Rebuilder carries out the requests of CacheAdoptions for lost records.
type Rebuilder struct{ Config }

// New returns a Rebuilder.
func New(config Config) *Rebuilder { return &Rebuilder{config} }

// Run looks at one page of a pool's images, and makes the records that can be made unless it is a dry
// run. It can be repeated. An error means that nothing is known of the pool.
func (r *Rebuilder) Run(ctx context.Context, a *v1alpha1.CacheAdoption) (v1alpha1.CacheAdoptionStatus, error) {
	if a.Spec.Rebuild.UseCopy != "" && a.Spec.Image == "" {
		return v1alpha1.CacheAdoptionStatus{}, fmt.Errorf("useCopy needs the name of the image it is for: %w", volumes.ErrRefused)
	}
	if err := r.Images.EnsurePool(ctx, a.Spec.ClusterID, a.Spec.Pool, false); err != nil {
		return v1alpha1.CacheAdoptionStatus{}, fmt.Errorf("look into pool %s: %w", a.Spec.Pool, err)
	}
	known, err := r.look(ctx)
	if err != nil {
		return v1alpha1.CacheAdoptionStatus{}, err
	}
	names, next, err := r.page(ctx, a, known)
	if err != nil {
		return v1alpha1.CacheAdoptionStatus{}, err
	}
	status := v1alpha1.CacheAdoptionStatus{
		Next: next, OtherPools: known.otherPools(a.Spec.Pool), SilentNodes: slices.Sorted(maps.Keys(known.failures)),
	}
	evidence, err := r.gather(ctx, a, names, known)
	if err != nil {
		return v1alpha1.CacheAdoptionStatus{}, err
	}
	for _, e := range evidence {
		if line := r.one(ctx, a, e, known); line != nil {
			status.Images = append(status.Images, *line)
		}
	}
	return status, nil
}

// page returns the names of the images to look at, and the last of them if more follow. They are those in
// the pool, and those of which hosts have caches.
func (r *Rebuilder) page(ctx context.Context, a *v1alpha1.CacheAdoption, known *known) (names []string, next string, err error) {
	if a.Spec.Image != "" {
		return []string{a.Spec.Image}, "", nil
	}
	names, err = r.Images.List(ctx, a.Spec.ClusterID, a.Spec.Pool, "")
	if err != nil {
		return nil, "", fmt.Errorf("list the images of pool %s: %w", a.Spec.Pool, err)
	}
	for ref := range known.copies {
		if ref.Pool == a.Spec.Pool {
			names = append(names, ref.Image)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name <= a.Spec.Rebuild.After })
	if len(names) <= r.PageSize {
		return names, "", nil
	}
	names = names[:r.PageSize]
	return names, names[len(names)-1], nil
}

// gather collects the evidence of each image. Images whose volumes are recorded have none but the image's.
func (r *Rebuilder) gather(ctx context.Context, a *v1alpha1.CacheAdoption, names []string, known *known) ([]Evidence, error) {
	out, failures := make([]Evidence, len(names)), make([]error, len(names))
	var group errgroup.Group
	group.SetLimit(r.Parallel)
	for n, name := range names {
		group.Go(func() error {
			out[n], failures[n] = r.evidence(ctx, a, name, known)
			return nil // each image is looked at, whatever the others have
		})
	}
	_ = group.Wait()
	return out, errors.Join(failures...)
}

// evidence collects the evidence of one image. That an image cannot be read is evidence too, but an error if
// Ceph is not there or ctx has ended.
func (r *Rebuilder) evidence(ctx context.Context, a *v1alpha1.CacheAdoption, name string, known *known) (Evidence, error) {
	e := Evidence{
		Image: volumes.ImageRef{ClusterID: a.Spec.ClusterID, Pool: a.Spec.Pool, Image: name},
		Own:   r.Kubernetes, From: a.Spec.Rebuild.FromKubernetesCluster, UseCopy: a.Spec.Rebuild.UseCopy,
	}
	remains, err := r.Images.Remains(ctx, e.Image)
	if err != nil {
		if err = fmt.Errorf("look at image %s: %w", e.Image, err); errors.Is(err, volumes.ErrUnavailable) || ctx.Err() != nil {
			return e, err
		}
		remains = volumes.Remains{Unreadable: err} // it can be no volume as it is
	}
	e.Remains = remains
	e.Hosts = r.answers(ctx, known, e)
	return e, nil
}

// answers asks the hosts with a copy of an image, and those that had one at its last attachment, once more:
// a host then reads from the disk what is dirty, and whether it still has the device.
func (r *Rebuilder) answers(ctx context.Context, known *known, e Evidence) map[string]Answer {
	ref := escache.VolumeRef{Pool: e.Image.Pool, Image: e.Image.Image}
	out := map[string]Answer{}
	for node, err := range known.failures {
		out[node] = Answer{Err: err}
	}
	asked := slices.Concat(slices.Collect(maps.Keys(known.copies[ref])), e.Remains.Note.Spec.Replicas)
	slices.Sort(asked)
	for _, node := range slices.Compact(asked) {
		if _, failed := out[node]; failed || !volumes.IsName(node) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, r.Ask)
		status, err := r.Hosts.Status(ctx, node, ref)
		cancel()
		out[node] = Answer{Status: status, Err: err}
	}
	for _, node := range known.answered {
		if _, there := out[node]; !there {
			out[node] = Answer{Status: escache.VolumeStatus{VolumeRef: ref, Node: node, State: escache.StateAbsent}}
		}
	}
	return out
}

// one decides about an image, and does it. It returns nil for an image that is nobody's volume.
func (r *Rebuilder) one(ctx context.Context, a *v1alpha1.CacheAdoption, e Evidence, known *known) *v1alpha1.RebuiltVolume {
	has := known.byImage[e.Image]
	if e.Remains.Kubernetes == "" && len(known.copies[escache.VolumeRef{Pool: e.Image.Pool, Image: e.Image.Image}]) == 0 && has == nil {
		return nil
	}
	line := lineOf(e)
	if has != nil {
		if a := has.Spec.Adoption; a == nil || !a.Rebuilt {
			line.Claim, line.PersistentVolume = "", "" // what uses it is none of a rebuild's
		}
	}
	if has != nil && e.Remains.Note.OfAnother(e.Image, has.Name) {
		line.Outcome, line.Message = v1alpha1.RebuildRefused, fmt.Sprintf("volume %s has adopted it since, and by the record of volume %s "+
			"it is still that one's: remove that record, which is older (docs/restore-etcd.md), and repeat this", e.Remains.Note.Volume,
			has.Name)
		return &line.RebuiltVolume
	}
	if has != nil && !volumes.Unfinished(has) && !r.wasSetBack(ctx, has, e) {
		line.Outcome = v1alpha1.RebuildRecorded
		line.show(has)
		return &line.RebuiltVolume
	}
	spec := e.Remains.Note.Spec
	e.Group, e.SlotTaken = known.groups[spec.Group], known.holderOf(e.Remains.Note.Volume, spec)
	d := Decide(e)
	line.Outcome, line.Message, line.DirtyBytes = d.Outcome, d.Message, d.DirtyBytes
	if d.Record == nil {
		return &line.RebuiltVolume
	}
	if other := known.byName[d.Record.Name]; other != nil && other != has {
		line.Outcome, line.Message = v1alpha1.RebuildRefused, fmt.Sprintf("another volume has that name; its image is %s",
			volumes.ImageOf(other))
		return &line.RebuiltVolume
	}
	known.add(d.Record)
	line.show(d.Record)
	if !a.Spec.DryRun {
		r.write(ctx, a, e, d, line)
	}
	return &line.RebuiltVolume
}

// wasSetBack reports whether image or hosts know a later attachment than the record. The record is read once more:
// the volume may have been attached after it was read, and before they were asked.
func (r *Rebuilder) wasSetBack(ctx context.Context, has *v1alpha1.CacheVolume, e Evidence) bool {
	note, seen := e.Remains.Note, survey(e).seen
	if !volumes.WasSetBack(has, note, seen) {
		return false
	}
	now := &v1alpha1.CacheVolume{}
	return r.Live.Get(ctx, client.ObjectKeyFromObject(has), now) == nil && volumes.WasSetBack(now, note, seen)
}

// write makes the record.
func (r *Rebuilder) write(ctx context.Context, a *v1alpha1.CacheAdoption, e Evidence, d Decision, line *line) {
	d.Record.Spec.Adoption.Request = string(a.UID)
	made, err := r.Records.Rebuild(ctx, volumes.Rebuild{
		Record: d.Record, Why: d.Message, Note: e.Remains.Note, Seen: d.Seen, Left: e.Remains.Left, From: e.From,
	})
	switch {
	case err == nil && d.Outcome == v1alpha1.RebuildProposed:
		line.Outcome = v1alpha1.RebuildDone
		line.show(made)
	case err == nil: // a conflict, on record
	case errors.Is(err, volumes.ErrRefused):
		line.Outcome, line.Message = v1alpha1.RebuildRefused, err.Error()
	default:
		line.Outcome, line.Message = v1alpha1.RebuildWaits, err.Error()+"; ask again"
	}
}

// known is what Kubernetes and the hosts say of all volumes.
type known struct {
	byImage map[volumes.ImageRef]*v1alpha1.CacheVolume
	byName  map[string]*v1alpha1.CacheVolume
	groups  map[string][]string
	// answered are the hosts that have answered, copies which of them have a copy of an image, and failures
	// why the others have not.
	answered []string
	copies   map[escache.VolumeRef]map[string]bool
	failures map[string]error
}

// look reads all records and groups, and asks all hosts of the groups at once.
func (r *Rebuilder) look(ctx context.Context) (*known, error) {
	byImage, all, err := volumes.Recorded(ctx, r.Live)
	if err != nil {
		return nil, err
	}
	k := &known{
		byImage: byImage, byName: map[string]*v1alpha1.CacheVolume{}, groups: map[string][]string{},
		copies: map[escache.VolumeRef]map[string]bool{}, failures: map[string]error{},
	}
	for i := range all {
		k.byName[all[i].Name] = &all[i]
	}
	groups := &v1alpha1.NodeGroupList{}
	if err := r.Live.List(ctx, groups); err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var nodes []string
	for i := range groups.Items {
		k.groups[groups.Items[i].Name] = groups.Items[i].Spec.Nodes
		nodes = append(nodes, groups.Items[i].Spec.Nodes...)
	}
	slices.Sort(nodes)
	var wait sync.WaitGroup
	var mu sync.Mutex
	for _, node := range slices.Compact(nodes) {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, r.Ask)
			defer cancel()
			has, err := r.Hosts.Volumes(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			k.heard(node, has, err)
		})
	}
	wait.Wait()
	return k, nil
}

func (k *known) heard(node string, has []escache.VolumeStatus, err error) {
	if err != nil {
		k.failures[node] = err
		return
	}
	k.answered = append(k.answered, node)
	for _, s := range has {
		if k.copies[s.VolumeRef] == nil {
			k.copies[s.VolumeRef] = map[string]bool{}
		}
		k.copies[s.VolumeRef][node] = true
	}
}

// otherPools returns the pools, without this one, of which hosts have caches.
func (k *known) otherPools(pool string) []string {
	others := map[string]bool{}
	for ref := range k.copies {
		others[ref.Pool] = ref.Pool != pool
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(others)), func(name string) bool { return !others[name] })
}

// holderOf returns another volume of the group that has the port or the minor, or "".
func (k *known) holderOf(volume string, spec v1alpha1.CacheVolumeSpec) string {
	for _, name := range slices.Sorted(maps.Keys(k.byName)) {
		if is := k.byName[name].Spec; name != volume && is.Group == spec.Group && (is.Port == spec.Port || is.Minor == spec.Minor) {
			return name
		}
	}
	return ""
}

// add enters a record that is about to be made.
func (k *known) add(v *v1alpha1.CacheVolume) { k.byName[v.Name] = v }
