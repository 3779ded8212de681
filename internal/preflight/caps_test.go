package preflight

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
)

const (
	controllerCaps = `ceph auth caps client.c mon 'profile rbd, allow command "osd blocklist", allow command "osd pool application get", ` +
		`allow command "df", allow command "osd pool create", allow command "osd pool application enable"' ` +
		"osd 'profile rbd pool=bulk, profile rbd pool=fast, profile rbd pool=meta'"
	hostsCaps = "ceph auth caps client.c mon 'profile rbd' osd 'profile rbd pool=bulk, profile rbd pool=fast, profile rbd pool=meta'"
)

// TestCapsAreExactlyThoseNeeded plays what Ceph lets each user do; internal/rbd asks a real one.
func TestCapsAreExactlyThoseNeeded(t *testing.T) {
	poolsOfClasses := []string{"bulk", "fast", "meta"} // those of the chart's StorageClasses
	good := func() Rights {
		return Rights{User: "client.c", Statistics: true, Applications: true, Blocklist: true, Writable: poolsOfClasses}
	}
	for name, c := range map[string]struct {
		hosts bool
		spoil func(*Rights)
		err   error
		want  []checklist.State
		found string
		todo  string
	}{
		"csi-controller": {want: []checklist.State{checklist.OK}, found: "client.c may do what it needs in pool bulk, fast, meta"},
		"hosts": {hosts: true, spoil: func(r *Rights) { r.Statistics, r.Applications, r.Blocklist = false, false, false },
			want: []checklist.State{checklist.OK}, found: "may do what it needs"},
		"profile rbd only": {spoil: func(r *Rights) { r.Blocklist = false }, want: []checklist.State{checklist.Failed},
			found: "Ceph refuses client.c what it needs: mon osd blocklist rm", todo: controllerCaps},
		"no statistics": {spoil: func(r *Rights) { r.Statistics, r.Applications = false, false }, want: []checklist.State{checklist.Failed},
			found: "mon osd pool application get, mon df", todo: controllerCaps},
		"hosts may not write": {hosts: true, spoil: func(r *Rights) { r.Blocklist, r.Refused = false, []string{"fast"} },
			want: []checklist.State{checklist.Failed}, found: "writing in pool fast", todo: hostsCaps},
		"an administrator": {spoil: func(r *Rights) { r.Keys, r.Other = true, []string{"backup"} }, want: []checklist.State{checklist.Warning},
			found: "reading the keys of all users, writing in other pools, such as backup", todo: controllerCaps},
		"a host that could free itself": {hosts: true, want: []checklist.State{checklist.Warning}, found: "could let itself in", todo: hostsCaps},
		"too little and too much": {spoil: func(r *Rights) { r.Refused, r.Other = []string{"meta"}, []string{"backup"} },
			want: []checklist.State{checklist.Failed, checklist.Warning}, found: "writing in pool meta"},
		"a pool is missing": {spoil: func(r *Rights) { r.Missing = []string{"bulk"} }, want: []checklist.State{checklist.Failed},
			found: "not there: bulk", todo: "ceph osd pool create"},
		"one that is made when it is needed": {spoil: func(r *Rights) { r.Missing = []string{"fast"} }, want: []checklist.State{checklist.OK}},
		"no answer":                          {err: errors.New("no keyring"), want: []checklist.State{checklist.Failed}, found: "no keyring", todo: "ceph -s"},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := healthy(t), good()
			for _, o := range w.objects {
				if class, ok := o.(*storagev1.StorageClass); ok && class.Parameters["pool"] == "fast" {
					class.Parameters["createPool"] = "true"
				}
			}
			if c.spoil != nil {
				c.spoil(&r)
			}
			cluster := w.cluster()
			cluster.CephUsers = []CephUser{{ClusterID: "lab", Hosts: c.hosts, Rights: func(_ context.Context, pools []string) (Rights, error) {
				if !slices.Equal(pools, poolsOfClasses) {
					t.Errorf("asked about %q", pools)
				}
				return r, c.err
			}}}
			got := capsOf(t, cluster)
			var states []checklist.State
			for _, r := range got {
				states = append(states, r.State)
			}
			if !slices.Equal(states, c.want) || !strings.Contains(got[0].Found, c.found) || !strings.Contains(got[0].Remedy, c.todo) {
				t.Errorf("%+v", got)
			}
			if name := map[bool]string{false: "Ceph user of csi-controller", true: "Ceph user of hosts"}[c.hosts]; got[0].Check != name {
				t.Errorf("it is called %q", got[0].Check)
			}
		})
	}
}

// The command replaces all caps of the user, and a volume outlives its StorageClass.
func TestCapsAreForThePoolsOfVolumesToo(t *testing.T) {
	w := healthy(t)
	for name, v := range map[string]v1alpha1.CacheVolumeSpec{
		"v": {ClusterID: "lab", Pool: "old", DataPool: "wide"}, "same": {ClusterID: "lab", Pool: "fast"}, "there": {ClusterID: "other", Pool: "far"},
	} {
		w.objects = append(w.objects, &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v})
	}
	w.objects = append(w.objects, &v1alpha1.CacheSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: v1alpha1.CacheSnapshotSpec{ClusterID: "lab", Pool: "kept"}})
	w.objects = append(w.objects, &v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: v1alpha1.ReadOnlyVolumeSpec{ClusterID: "lab", Pool: "many", DataPool: "wide"}})
	cluster := w.cluster()
	cluster.CephUsers = []CephUser{{ClusterID: "lab", Rights: func(_ context.Context, pools []string) (Rights, error) {
		if want := []string{"bulk", "fast", "kept", "many", "meta", "old", "wide"}; !slices.Equal(pools, want) {
			t.Errorf("asked about %q", pools)
		}
		return Rights{User: "client.c", Statistics: true, Applications: true}, nil
	}}}
	got := capsOf(t, cluster)
	if want := "profile rbd pool=meta, profile rbd pool=old, profile rbd pool=wide'"; len(got) != 1 ||
		!strings.Contains(got[0].Remedy, want) || strings.Contains(got[0].Remedy, "osd pool create") {
		t.Errorf("%+v", got)
	}
}

func TestCapsOfAClusterThatNoStorageClassNamesAreUnknown(t *testing.T) {
	cluster := healthy(t).cluster()
	cluster.CephUsers = []CephUser{{ClusterID: "other", Rights: func(context.Context, []string) (Rights, error) {
		t.Error("Ceph was asked")
		return Rights{}, nil
	}}}
	if got := capsOf(t, cluster); len(got) != 1 || got[0].State != checklist.Unknown || !strings.Contains(got[0].Found, "other") {
		t.Errorf("%+v", got)
	}
	cluster.CephUsers = nil
	cluster.API = interceptor.NewClient(cluster.API.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, ours := list.(*v1alpha1.CacheVolumeList); ours {
				t.Error("volumes were listed, whose CRD may not be there yet")
			}
			return api.List(ctx, list, o...)
		},
	})
	if got := capsOf(t, cluster); len(got) != 0 {
		t.Errorf("without users: %+v", got)
	}
}

func capsOf(t *testing.T, c *Cluster) (found []checklist.Result) {
	t.Helper()
	for _, r := range checklist.Run(t.Context(), c.Checks()) {
		if strings.HasPrefix(r.Check, "Ceph user") {
			found = append(found, r)
		}
	}
	return found
}
