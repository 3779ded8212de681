package status

import (
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// View is what is shown of a state: groups, volumes, read-only volumes and flushes are those that
// are chosen.
type View struct {
	state.State

	Now    time.Time
	filter choice.Filter
	sorted bool
	// short leaves out what has no problem where there is much.
	short bool
	// read is how many volumes were read.
	read     int
	troubles []trouble.Trouble
	faults   trouble.Faults
}

// NewView chooses what the filter lets through, and finds what is wrong with it.
func NewView(s *state.State, filter choice.Filter, now time.Time) (*View, error) {
	return newView(s, options{filter: filter}, now)
}

// newView chooses what the flags ask for, and finds what is wrong with it.
func newView(s *state.State, f options, now time.Time) (*View, error) {
	all := choice.Objects{Groups: s.Groups, Volumes: s.Volumes, ReadOnly: s.ReadOnly, Flushes: s.Flushes}
	if err := f.filter.Unknown(all); err != nil {
		return nil, err
	}
	v := &View{State: *s, Now: now, filter: f.filter, sorted: f.sortBy != "", short: f.filter.Everything() && !f.all, read: len(s.Volumes)}
	v.troubles = s.Troubles(now)
	v.faults = trouble.FaultsOf(v.troubles)
	all.Troubles, all.Faults = v.troubles, v.faults
	chosen := f.filter.Choose(all, v.Uses.ClaimOf)
	v.Groups, v.Volumes, v.ReadOnly = chosen.Groups, chosen.Volumes, chosen.ReadOnly
	v.Flushes, v.troubles = chosen.Flushes, chosen.Troubles
	return v, choice.Sort(v.Volumes, f.sortBy, v.Uses.ClaimOf)
}

// hostShown reports whether a host of a chosen group is shown.
func (v *View) hostShown(node string) bool { return v.filter.HostShown(node, v.faults) }

// print writes the view. It wraps sentences to the width, unless that is 0.
func (v *View) print(w io.Writer, output string, width int) error {
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
		if err := v.PrintTroubles(w, width); err != nil {
			return err
		}
		if err := v.PrintTables(w, output == "wide"); err != nil {
			return err
		}
		return v.printUnnamed(w, width)
	}
}

// list returns the view as one List object, like kubectl get for several objects.
func (v *View) list() *corev1.List {
	all := &corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	add := func(kind string, o runtime.Object) {
		o.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
		all.Items = append(all.Items, runtime.RawExtension{Object: o})
	}
	for i := range v.Groups {
		add("NodeGroup", &v.Groups[i])
	}
	for i := range v.Volumes {
		add("CacheVolume", &v.Volumes[i])
	}
	for i := range v.ReadOnly {
		add("ReadOnlyVolume", &v.ReadOnly[i])
	}
	for i := range v.Flushes {
		add("CacheFlush", &v.Flushes[i])
	}
	return all
}

// PrintTroubles prints what is wrong and what to do. It wraps sentences to the width, unless that
// is 0.
func (v *View) PrintTroubles(out io.Writer, width int) error {
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
func (v *View) printUnnamed(out io.Writer, width int) error {
	if v.Uses == nil || v.filter.Problems {
		return nil
	}
	var volumes, readOnly []string
	for i := range v.Volumes {
		if v.unnamed(&v.Volumes[i]) {
			volumes = append(volumes, v.Volumes[i].Name)
		}
	}
	for i := range v.ReadOnly {
		if v.unnamed(&v.ReadOnly[i]) {
			readOnly = append(readOnly, v.ReadOnly[i].Name)
		}
	}
	text := ""
	if len(volumes) > 0 {
		text += wordwrap.Line("\nNo PersistentVolume names "+trouble.Few(volumes)+
			". kubectl escache release --volume NAME gives such a volume up and leaves its image; kubectl escache orphans lists them.",
			"  ", width)
	}
	if len(readOnly) > 0 {
		text += wordwrap.Line("\nNo PersistentVolume names the read-only "+trouble.Few(readOnly)+
			". Such a volume keeps its snapshot from being deleted: csi-controller orphans --remove-volume NAME removes it "+
			"(docs/alerts.md).",
			"  ", width)
	}
	_, err := fmt.Fprint(out, text)
	return err
}

// unnamed reports whether no PersistentVolume names a volume that is not new.
func (v *View) unnamed(volume metav1.Object) bool {
	return v.Uses[volume.GetName()].PersistentVolume == "" && v.Now.Sub(volume.GetCreationTimestamp().Time) >= claims.Young
}
