package plugin

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/choice"
	"github.com/escache/escache-csi/internal/plugin/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// view is what is shown of a state: groups, volumes and flushes are those that are chosen.
type view struct {
	state

	now    time.Time
	filter choice.Filter
	sorted bool
	// short leaves out what has no problem where there is much.
	short bool
	// read is how many volumes were read.
	read     int
	troubles []trouble.Trouble
	// faults are what is wrong with an object, by kind and name.
	faults map[[2]string]fault
}

// fault is what is wrong with one object.
type fault struct {
	reasons []string
	gravity int // of the gravest
}

// view chooses what the flags ask for, and finds what is wrong with it.
func (s *state) view(f statusFlags, now time.Time) (*view, error) {
	if err := f.filter.Unknown(s.groups, s.volumes); err != nil {
		return nil, err
	}
	v := &view{state: *s, now: now, filter: f.filter, sorted: f.sortBy != "", short: f.filter.Everything() && !f.all, read: len(s.volumes)}
	v.troubles, v.faults = s.troubles(now), map[[2]string]fault{}
	for _, t := range v.troubles {
		f, known := v.faults[[2]string{t.Kind, t.Name}]
		if !known || t.Gravity < f.gravity {
			f.gravity = t.Gravity
		}
		if !slices.Contains(f.reasons, t.Reason) {
			f.reasons = append(f.reasons, t.Reason)
		}
		v.faults[[2]string{t.Kind, t.Name}] = f
	}
	if !f.filter.Everything() {
		v.choose(s)
	}
	return v, choice.Sort(v.volumes, f.sortBy, v.uses.claimOf)
}

// choose leaves only what fits the filter.
func (v *view) choose(s *state) {
	f := v.filter
	volumes, claims, groups, groupOf := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]string{}
	v.volumes, v.groups, v.flushes = nil, nil, nil
	for i := range s.volumes {
		one := &s.volumes[i]
		if claim := s.uses.claimOf(one); f.Volume(one, claim) {
			volumes[one.Name], claims[claim], groups[one.Spec.Group] = true, true, true
			if !f.Problems || v.wrong(trouble.Volume, one.Name) {
				v.volumes = append(v.volumes, *one)
			}
		}
	}
	hosts := map[string]bool{}
	for i := range s.groups {
		g := &s.groups[i]
		for _, node := range g.Spec.Nodes {
			groupOf[node] = g.Name
		}
		if !f.Group(g, groups[g.Name]) {
			continue
		}
		groups[g.Name] = true
		for _, node := range g.Spec.Nodes {
			hosts[node] = hosts[node] || f.Host(node)
		}
		if !f.Problems || v.wrong(trouble.Group, g.Name) || slices.ContainsFunc(g.Spec.Nodes, v.hostShown) {
			v.groups = append(v.groups, *g)
		}
	}
	flushes := map[string]bool{}
	for i := range s.flushes {
		if one := &s.flushes[i]; f.Flush(one, volumes, claims, groupOf) {
			flushes[one.Name] = true
			if !f.Problems || v.wrong(trouble.Flush, one.Name) {
				v.flushes = append(v.flushes, *one)
			}
		}
	}
	kept := map[string]map[string]bool{trouble.Volume: volumes, trouble.Host: hosts, trouble.Flush: flushes, trouble.Group: groups}
	v.troubles = slices.DeleteFunc(slices.Clone(v.troubles), func(t trouble.Trouble) bool {
		return t.Kind != trouble.Driver && !kept[t.Kind][t.Name]
	})
}

// wrong reports whether something is wrong with an object.
func (v *view) wrong(kind, name string) bool { return len(v.fault(kind, name).reasons) > 0 }

func (v *view) fault(kind, name string) fault { return v.faults[[2]string{kind, name}] }

// hostShown reports whether a host of a chosen group is shown.
func (v *view) hostShown(node string) bool {
	return v.filter.Host(node) && (!v.filter.Problems || v.wrong(trouble.Host, node))
}

// print writes the view. It wraps sentences to the width, unless that is 0.
func (v *view) print(w io.Writer, output string, width int) error {
	switch output {
	case "json":
		return (&printers.JSONPrinter{}).PrintObj(v.list(), w)
	case "yaml":
		return (&printers.YAMLPrinter{}).PrintObj(v.list(), w)
	case "name":
		for _, item := range v.list().Items {
			kind := strings.ToLower(item.Object.GetObjectKind().GroupVersionKind().Kind)
			o, err := meta.Accessor(item.Object)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s.%s/%s\n", kind, v1alpha1.GroupName, o.GetName()); err != nil {
				return err
			}
		}
		return nil
	default:
		if err := v.printTroubles(w, width); err != nil {
			return err
		}
		if err := v.printTables(w, output == "wide"); err != nil {
			return err
		}
		return v.printUnnamed(w, width)
	}
}

// list returns the view as one List object, like kubectl get for several objects.
func (v *view) list() *corev1.List {
	all := &corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	add := func(kind string, o runtime.Object) {
		o.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
		all.Items = append(all.Items, runtime.RawExtension{Object: o})
	}
	for i := range v.groups {
		add("NodeGroup", &v.groups[i])
	}
	for i := range v.volumes {
		add("CacheVolume", &v.volumes[i])
	}
	for i := range v.flushes {
		add("CacheFlush", &v.flushes[i])
	}
	return all
}

func (v *view) printTroubles(out io.Writer, width int) error {
	if len(v.troubles) == 0 {
		_, err := fmt.Fprintln(out, "Nothing is wrong.")
		return err
	}
	_, _ = fmt.Fprintln(out, "What is wrong, and what to do:")
	merged := false
	for _, line := range trouble.Lines(v.troubles) {
		merged = merged || line.Troubles > 1
		_, err := fmt.Fprint(out, wordwrap.Line("  "+line.Where+": "+line.What, "    ", width),
			wordwrap.Line("    -> "+line.Todo, "       ", width))
		if err != nil {
			return err
		}
	}
	if merged && !v.filter.Problems {
		_, err := fmt.Fprint(out, wordwrap.Line("  kubectl escache status --problems lists each volume and host that has a problem.",
			"    ", width))
		return err
	}
	return nil
}

// printUnnamed names the volumes that no PersistentVolume names. That is no fault: it is how a volume
// ends whose reclaim policy is Retain.
func (v *view) printUnnamed(out io.Writer, width int) error {
	if v.uses == nil || v.filter.Problems {
		return nil
	}
	var names []string
	for i := range v.volumes {
		one := &v.volumes[i]
		if v.uses[one.Name].persistentVolume == "" && v.now.Sub(one.CreationTimestamp.Time) >= minimumAge {
			names = append(names, one.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	_, err := fmt.Fprint(out, wordwrap.Line("\nNo PersistentVolume names "+trouble.Few(names)+
		". kubectl escache release --volume NAME gives such a volume up and leaves its image; kubectl escache orphans lists them.",
		"  ", width))
	return err
}
