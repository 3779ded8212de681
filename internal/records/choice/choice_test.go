package choice_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
)

func volume(name, group, attached string, replicas ...string) v1alpha1.CacheVolume {
	v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec.Group, v.Spec.Replicas, v.Status.AttachedNode = group, replicas, attached
	return v
}

func TestVolumesThatAreChosen(t *testing.T) {
	attached, detached := volume("a", "rack1", "n1", "n1", "n2"), volume("b", "rack2", "", "m1", "m2")
	moved := volume("c", "rack1", "n3", "n1", "n2") // its attachment is on record before its replicas
	for name, c := range map[string]struct {
		filter choice.Filter
		want   string
	}{
		"all":                    {choice.Filter{}, "abc"},
		"a group":                {choice.Filter{Groups: []string{"rack1"}}, "ac"},
		"two groups":             {choice.Filter{Groups: []string{"rack1", "rack2"}}, "abc"},
		"the node with it":       {choice.Filter{Nodes: []string{"n3"}}, "c"},
		"a node with a replica":  {choice.Filter{Nodes: []string{"n2"}}, "ac"},
		"one of two nodes":       {choice.Filter{Nodes: []string{"m2", "n3"}}, "bc"},
		"the claims' namespace":  {choice.Filter{Namespace: "shop"}, "a"},
		"no claim, no namespace": {choice.Filter{Namespace: "-"}, "c"},
		"group and namespace":    {choice.Filter{Groups: []string{"rack2"}, Namespace: "shop"}, ""},
	} {
		got := ""
		for _, v := range []struct {
			v     v1alpha1.CacheVolume
			claim string
		}{{attached, "shop/a"}, {detached, "shopping/b"}, {moved, "-"}} {
			if c.filter.Volume(&v.v, v.claim) {
				got += v.v.Name
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestReadOnlyVolumesThatAreChosen(t *testing.T) {
	read := v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{Name: "read"}}
	read.Status.Copies = []v1alpha1.ReadOnlyCopy{{Node: "n1"}, {Node: "n2"}}
	faults := trouble.FaultsOf([]trouble.Trouble{{Kind: trouble.Volume, Name: "read"}, {Kind: trouble.Volume, Name: "other"}})
	for name, c := range map[string]struct {
		filter choice.Filter
		faults trouble.Faults
		want   bool
	}{
		"all":                           {choice.Filter{}, nil, true},
		"a group has none":              {choice.Filter{Groups: []string{"rack1"}}, nil, false},
		"a node with it":                {choice.Filter{Nodes: []string{"m1", "n2"}}, nil, true},
		"another node":                  {choice.Filter{Nodes: []string{"m1"}}, nil, false},
		"its claim's namespace":         {choice.Filter{Namespace: "shop"}, nil, true},
		"another namespace":             {choice.Filter{Namespace: "sh"}, nil, false},
		"problems, and it has none":     {choice.Filter{Problems: true}, nil, false},
		"problems, and it has one":      {choice.Filter{Problems: true}, faults, true},
		"problems of another namespace": {choice.Filter{Problems: true, Namespace: "sh"}, faults, false},
	} {
		all := choice.Objects{ReadOnly: []v1alpha1.ReadOnlyVolume{read}, Faults: c.faults}
		if c.faults != nil {
			all.Troubles = []trouble.Trouble{{Kind: trouble.Volume, Name: "read"}, {Kind: trouble.Volume, Name: "other"}}
		}
		chosen := c.filter.Choose(all, func(metav1.Object) string { return "shop/data" })
		if got := len(chosen.ReadOnly) == 1; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if told := slices.ContainsFunc(chosen.Troubles, func(one trouble.Trouble) bool { return one.Name == "read" }); told != (c.want && c.faults != nil) {
			t.Errorf("%s: its problem is told: %v", name, told)
		}
	}
}

func group(name string, nodes ...string) v1alpha1.NodeGroup {
	return v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeGroupSpec{Nodes: nodes}}
}

func TestGroupsAndHostsThatAreChosen(t *testing.T) {
	g := group("rack1", "n1", "n2", "n3")
	for name, c := range map[string]struct {
		filter choice.Filter
		has    bool
		want   bool
	}{
		"all":                       {choice.Filter{}, false, true},
		"its name":                  {choice.Filter{Groups: []string{"rack1"}}, false, true},
		"another":                   {choice.Filter{Groups: []string{"rack2"}}, true, false},
		"a node of it":              {choice.Filter{Nodes: []string{"n2"}}, false, true},
		"a node of another":         {choice.Filter{Nodes: []string{"m2"}}, true, false},
		"a namespace that is in it": {choice.Filter{Namespace: "shop"}, true, true},
		"one that is not":           {choice.Filter{Namespace: "shop"}, false, false},
	} {
		if got := c.filter.Group(&g, c.has); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	one := choice.Filter{Nodes: []string{"n2"}}
	if one.Host("n1") || !one.Host("n2") || !(choice.Filter{}).Host("n1") {
		t.Error("not the hosts that are named")
	}
}

func TestFlushesThatAreChosen(t *testing.T) {
	groupOf := map[string]string{"n1": "rack1", "m1": "rack2"}
	volumes, claims := map[string]bool{"pvc-a": true}, map[string]bool{"shop/a": true}
	named := choice.Filter{Namespace: "shop"}
	rack1, n1 := choice.Filter{Groups: []string{"rack1"}}, choice.Filter{Nodes: []string{"n1"}}
	for name, c := range map[string]struct {
		filter choice.Filter
		spec   v1alpha1.CacheFlushSpec
		in     string // a volume that it flushes
		want   bool
	}{
		"all":                             {choice.Filter{}, v1alpha1.CacheFlushSpec{Node: "m1"}, "", true},
		"of a volume that is chosen":      {rack1, v1alpha1.CacheFlushSpec{Volume: "pvc-a"}, "", true},
		"of another volume":               {rack1, v1alpha1.CacheFlushSpec{Volume: "pvc-b"}, "", false},
		"of a claim that is chosen":       {rack1, v1alpha1.CacheFlushSpec{PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "a"}}, "", true},
		"of the group":                    {rack1, v1alpha1.CacheFlushSpec{NodeGroup: "rack1"}, "", true},
		"of a host of the group":          {rack1, v1alpha1.CacheFlushSpec{Node: "n1"}, "", true},
		"of another group's host":         {rack1, v1alpha1.CacheFlushSpec{Node: "m1"}, "", false},
		"of the host":                     {n1, v1alpha1.CacheFlushSpec{Node: "n1"}, "", true},
		"of another host":                 {n1, v1alpha1.CacheFlushSpec{Node: "m1"}, "", false},
		"of another host, with a volume":  {n1, v1alpha1.CacheFlushSpec{Node: "m1"}, "pvc-a", true},
		"of a host, and a namespace":      {named, v1alpha1.CacheFlushSpec{Node: "n1"}, "", false},
		"of a host, with a claim of it":   {named, v1alpha1.CacheFlushSpec{Node: "n1"}, "pvc-a", true},
		"of a claim in it, not bound yet": {named, v1alpha1.CacheFlushSpec{PersistentVolumeClaim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "z"}}, "", true},
	} {
		f := &v1alpha1.CacheFlush{Spec: c.spec}
		if c.in != "" {
			f.Status.Volumes = []v1alpha1.FlushedVolume{{Name: c.in}}
		}
		if got := c.filter.Flush(f, volumes, claims, groupOf); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestANameThatIsNotOnRecordIsNoEmptyAnswer(t *testing.T) {
	groups := []v1alpha1.NodeGroup{group("rack1", "n1", "n2", "n3")}
	readOnly := v1alpha1.ReadOnlyVolume{Status: v1alpha1.ReadOnlyVolumeStatus{Copies: []v1alpha1.ReadOnlyCopy{{Node: "n8"}}}}
	all := choice.Objects{
		Groups: groups, Volumes: []v1alpha1.CacheVolume{volume("a", "rack1", "", "n1", "n9")}, ReadOnly: []v1alpha1.ReadOnlyVolume{readOnly},
	}
	for says, f := range map[string]choice.Filter{
		"":                           {Groups: []string{"rack1"}, Nodes: []string{"n3"}},
		"there is no NodeGroup zz":   {Groups: []string{"rack1", "zz"}},
		"node zz is in no NodeGroup": {Nodes: []string{"zz"}},
	} {
		if err := f.Unknown(all); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for node, why := range map[string]string{"n9": "a replica", "n8": "a read-only volume"} {
		if err := (choice.Filter{Nodes: []string{node}}).Unknown(all); err != nil {
			t.Errorf("it has left the group and has %s: %v", why, err)
		}
	}
}

func TestOrder(t *testing.T) {
	made := func(hours int) metav1.Time {
		return metav1.NewTime(time.Unix(0, 0).Add(time.Duration(hours) * time.Hour))
	}
	a, b, c := volume("a", "rack2", "n2"), volume("b", "rack1", ""), volume("c", "rack1", "n1")
	a.Status.DirtyBytes, b.Status.DirtyBytes, c.Status.DirtyBytes = 1, 3, 1
	a.Spec.SizeBytes, b.Spec.SizeBytes, c.Spec.SizeBytes = 1, 2, 3
	a.Spec.CacheBytes, b.Spec.CacheBytes, c.Spec.CacheBytes = 2, 3, 1
	a.CreationTimestamp, b.CreationTimestamp, c.CreationTimestamp = made(3), made(1), made(2)
	claims := map[string]string{"a": "shop/z", "b": "-", "c": "shop/a"}
	want := map[string]string{
		"name": "abc", "claim": "bca", "group": "bca", "host": "bca", "dirty": "bac", "size": "cba", "cache": "bac", "age": "bca",
	}
	for _, by := range append(choice.Orders(), "") {
		volumes := []v1alpha1.CacheVolume{c, b, a}
		err := choice.Sort(volumes, by, func(v metav1.Object) string { return claims[v.GetName()] })
		got := ""
		for _, v := range volumes {
			got += v.Name
		}
		if by == "" {
			by = "name"
		}
		if err != nil || got != want[by] {
			t.Errorf("by %s: %v, %q, want %q", by, err, got, want[by])
		}
	}
	if err := choice.Sort(nil, "colour", nil); err == nil || !slices.Contains(strings.Split(err.Error(), " "), "dirty,") {
		t.Errorf("by colour: %v", err)
	}
}
