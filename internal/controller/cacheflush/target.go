package cacheflush

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/records/binding"
)

// pageSize bounds the memory needed to read all volumes.
const pageSize = 500

// begin finds the volumes, and how much of each is dirty. If the target does not exist, the
// CacheFlush fails for good.
func (r *Reconciler) begin(ctx context.Context, f *v1alpha1.CacheFlush) error {
	now := metav1.NewTime(r.Now())
	volumes, err := r.target(ctx, f.Spec, true)
	if errors.Is(err, errTarget) {
		f.Status = v1alpha1.CacheFlushStatus{Phase: v1alpha1.FlushFailed, StartTime: &now, CompletionTime: &now}
		r.condition(f, metav1.ConditionFalse, "NotFound", err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	f.Status = v1alpha1.CacheFlushStatus{
		Phase: v1alpha1.FlushRunning, StartTime: &now, Volumes: r.measure(ctx, volumes, f.Spec.Mode == v1alpha1.FlushModeTrim),
	}
	r.condition(f, metav1.ConditionFalse, "InProgress", fmt.Sprintf("%d volumes", len(volumes)))
	return nil
}

// follow adds volumes to the drain of a node or group that were attached there since it began. A
// volume that has come back to a drained node is drained again.
func (r *Reconciler) follow(ctx context.Context, f *v1alpha1.CacheFlush) error {
	if f.Spec.Node == "" && f.Spec.NodeGroup == "" {
		return nil
	}
	volumes, err := r.target(ctx, f.Spec, false)
	if err != nil && !errors.Is(err, errTarget) {
		return err
	}
	var fresh []v1alpha1.CacheVolume
	for _, v := range volumes {
		at := slices.IndexFunc(f.Status.Volumes, func(known v1alpha1.FlushedVolume) bool { return known.Name == v.Name })
		if at < 0 {
			fresh = append(fresh, v)
		} else if known := &f.Status.Volumes[at]; f.Spec.Node != "" && ended(known.Phase) {
			known.Phase, known.Message, known.Node = v1alpha1.FlushPending, "", v.Status.AttachedNode
		}
	}
	f.Status.Volumes = append(f.Status.Volumes, r.measure(ctx, fresh, false)...)
	return nil
}

// ended reports whether the work on a volume is over.
func ended(phase v1alpha1.FlushPhase) bool {
	return phase == v1alpha1.FlushComplete || phase == v1alpha1.FlushFailed
}

// target returns the volumes that a CacheFlush names.
func (r *Reconciler) target(ctx context.Context, spec v1alpha1.CacheFlushSpec, live bool) ([]v1alpha1.CacheVolume, error) {
	var from client.Reader = r.Client
	if live {
		from = r.Live
	}
	switch {
	case spec.Volume != "":
		return r.named(ctx, spec.Volume)
	case spec.PersistentVolumeClaim != nil:
		name, err := r.volumeOfClaim(ctx, *spec.PersistentVolumeClaim)
		if err != nil {
			return nil, err
		}
		return r.named(ctx, name)
	case spec.Node != "":
		if err := r.need(ctx, &corev1.Node{}, client.ObjectKey{Name: spec.Node}, "Kubernetes has no node "+spec.Node); err != nil {
			return nil, err
		}
		return all(ctx, from, live, spec.SelectsOnNode)
	default:
		key := client.ObjectKey{Name: spec.NodeGroup}
		if err := r.need(ctx, &v1alpha1.NodeGroup{}, key, "there is no NodeGroup "+spec.NodeGroup); err != nil {
			return nil, err
		}
		return all(ctx, from, live, func(v *v1alpha1.CacheVolume) bool {
			return v.Spec.Group == spec.NodeGroup && (v.Status.AttachedNode != "" || v.WithoutPod())
		})
	}
}

func (r *Reconciler) named(ctx context.Context, name string) ([]v1alpha1.CacheVolume, error) {
	v := v1alpha1.CacheVolume{}
	err := r.need(ctx, &v, client.ObjectKey{Name: name}, "there is no CacheVolume "+name)
	return []v1alpha1.CacheVolume{v}, err
}

func (r *Reconciler) volumeOfClaim(ctx context.Context, claim v1alpha1.ClaimReference) (string, error) {
	name := claim.Namespace + "/" + claim.Name
	pvc := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: claim.Namespace, Name: claim.Name}
	if err := r.need(ctx, pvc, key, "there is no PersistentVolumeClaim "+name); err != nil {
		return "", err
	}
	if pvc.Spec.VolumeName == "" {
		return "", fmt.Errorf("%w: PersistentVolumeClaim %s is not bound to a volume yet", errTarget, name)
	}
	pv := &corev1.PersistentVolume{}
	key = client.ObjectKey{Name: pvc.Spec.VolumeName}
	if err := r.need(ctx, pv, key, "there is no PersistentVolume "+pvc.Spec.VolumeName); err != nil {
		return "", err
	}
	if !binding.Has(pvc, pv) { // whose it is, the one who asks may not be allowed to know
		return "", fmt.Errorf("%w: PersistentVolumeClaim %s names PersistentVolume %s, which belongs to another claim, or to none; "+
			"kubectl get pv %s shows to which", errTarget, name, pv.Name, pv.Name)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return "", fmt.Errorf("%w: PersistentVolumeClaim %s is not a volume of %s", errTarget, name, v1alpha1.DriverName)
	}
	return pv.Spec.CSI.VolumeHandle, nil
}

// need reads an object. If it does not exist, the error is the sentence.
func (r *Reconciler) need(ctx context.Context, o client.Object, key client.ObjectKey, sentence string) error {
	err := r.Live.Get(ctx, key, o)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %s", errTarget, sentence)
	}
	return err
}

// all lists volumes, in pages if the reader has pages: a cache has none.
func all(ctx context.Context, from client.Reader, paged bool, wanted func(*v1alpha1.CacheVolume) bool) ([]v1alpha1.CacheVolume, error) {
	var out []v1alpha1.CacheVolume
	page := &v1alpha1.CacheVolumeList{}
	for {
		var options []client.ListOption
		if paged {
			options = []client.ListOption{client.Limit(pageSize), client.Continue(page.Continue)}
		}
		if err := from.List(ctx, page, options...); err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for i := range page.Items {
			if wanted(&page.Items[i]) {
				out = append(out, page.Items[i])
			}
		}
		// A cache answers with a token that it does not accept.
		if !paged || page.Continue == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.CacheVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// measureTime bounds the questions to all hosts at the start about what is dirty.
const measureTime = 5 * time.Second

// measure asks how much of each volume is dirty. If a host does not answer, the figure on record
// counts. What is to be trimmed is looked through as a whole.
func (r *Reconciler) measure(ctx context.Context, volumes []v1alpha1.CacheVolume, trims bool) []v1alpha1.FlushedVolume {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	out := make([]v1alpha1.FlushedVolume, len(volumes))
	each(len(volumes), cap(r.slots), func(i int) {
		v := &volumes[i]
		out[i] = v1alpha1.FlushedVolume{
			Name: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim], Node: v.Status.AttachedNode, Phase: v1alpha1.FlushPending,
			TotalBytes: v.Status.DirtyBytes,
		}
		switch {
		case trims:
			out[i].TotalBytes = v.Spec.SizeBytes
		case v.Status.AttachedNode != "":
			status, err := r.Hosts.Status(ctx, v.Status.AttachedNode, cachevolume.Ref(v))
			if err == nil && status.DirtyBytes != nil {
				out[i].TotalBytes = *status.DirtyBytes
			}
		}
		out[i].LeftBytes = out[i].TotalBytes
	})
	return out
}
