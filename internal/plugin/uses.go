package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// use is the PersistentVolume that names a volume.
type use struct {
	persistentVolume string
	namespace, claim string // "" if no claim is bound to it
	storageClass     string
}

// uses are the PersistentVolumes by the volume that they name. nil means that they cannot be read.
type uses map[string]use

// readUses reads all PersistentVolumes. A user who may not read them gets nil.
func readUses(ctx context.Context, api client.Reader) (uses, error) {
	all := &corev1.PersistentVolumeList{}
	if err := api.List(ctx, all); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, nil //nolint:nilnil // nil is an answer, see uses
		}
		return nil, err
	}
	out := uses{}
	for i := range all.Items {
		pv := &all.Items[i]
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
			continue
		}
		u := use{persistentVolume: pv.Name, storageClass: pv.Spec.StorageClassName}
		if c := pv.Spec.ClaimRef; c != nil && pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
			u.namespace, u.claim = c.Namespace, c.Name
		}
		if out[pv.Spec.CSI.VolumeHandle].claim == "" { // of several, the one with a claim counts
			out[pv.Spec.CSI.VolumeHandle] = u
		}
	}
	return out, nil
}

// claimOf returns NAMESPACE/NAME of the claim that has a volume now; "-" if none has. Where that
// cannot be read, it is the claim that the volume was created for.
func (all uses) claimOf(v *v1alpha1.CacheVolume) string {
	if all == nil {
		return createdFor(v)
	}
	u := all[v.Name]
	if u.claim == "" {
		return "-"
	}
	return u.namespace + "/" + u.claim
}

// createdFor returns NAMESPACE/NAME of the claim that a volume was created for; "-" if not known.
func createdFor(v *v1alpha1.CacheVolume) string {
	return cmp.Or(v.Annotations[v1alpha1.AnnotationClaim], "-")
}

// podReasons are the reasons of Events that tell why a pod cannot have a volume.
func podReasons() []string {
	return []string{"FailedAttachVolume", "FailedMount", "FailedMapVolume"}
}

// eventAge is how long such an Event counts. The kubelet repeats one after two minutes at the
// latest.
const eventAge = 10 * time.Minute

// about reports whether an Event of a pod is about the volume. Kubernetes quotes the name of the
// PersistentVolume in it.
func (u use) about(e *eventsv1.Event) bool {
	return e.Regarding.Kind == "Pod" && e.Type == corev1.EventTypeWarning && u.persistentVolume != "" &&
		strings.Contains(e.Note, `"`+u.persistentVolume+`"`)
}

// waiting returns a problem for each pod of a namespace ("" for all) that waits for one of the
// volumes, with its last Event, by volume. Events and pods that the user may not read are left out.
func (all uses) waiting(ctx context.Context, api client.Reader, namespace string, now time.Time) (map[string][]problem, error) {
	out := map[string][]problem{}
	if len(all) == 0 {
		return out, nil
	}
	last := map[[3]string]eventsv1.Event{} // by volume, namespace and pod
	for _, reason := range podReasons() {
		list := &eventsv1.EventList{}
		if err := api.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{"reason": reason}); err != nil {
			if apierrors.IsForbidden(err) {
				return out, nil // what may not be read is left out
			}
			return nil, err
		}
		for _, e := range list.Items {
			for volume, u := range all {
				key := [3]string{volume, e.Regarding.Namespace, e.Regarding.Name}
				if u.about(&e) && now.Sub(at(e)) < eventAge && at(last[key]).Before(at(e)) {
					last[key] = e
				}
			}
		}
	}
	for key, e := range last {
		waits, err := podWaits(ctx, api, key[1], key[2])
		if err != nil {
			return nil, err
		}
		if waits {
			out[key[0]] = append(out[key[0]], problem{
				"volume " + key[0], fmt.Sprintf("pod %s/%s waits for it: %s", key[1], key[2], e.Note),
				fmt.Sprintf("see the message; kubectl -n %s describe pod %s shows all of them", key[1], key[2]),
			})
		}
	}
	for _, problems := range out {
		slices.SortFunc(problems, func(a, b problem) int { return strings.Compare(a.what, b.what) })
	}
	return out, nil
}

// podWaits reports whether a pod exists and not all of its containers run.
func podWaits(ctx context.Context, api client.Reader, namespace, name string) (bool, error) {
	pod := &corev1.Pod{}
	err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.ContainersReady && c.Status == corev1.ConditionTrue
	})
	return !ready && pod.Status.Phase != corev1.PodSucceeded, nil
}
