package claims

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/paging"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// podReasons are the reasons of Events that tell why a pod cannot have a volume.
func podReasons() []string {
	return []string{"FailedAttachVolume", "FailedMount", "FailedMapVolume"}
}

// eventAge is how long such an Event counts. The kubelet repeats one after two minutes at the
// latest.
const eventAge = 10 * time.Minute

// About reports whether an Event of a pod is about the volume. Kubernetes quotes the name of the
// PersistentVolume in it.
func (u Use) About(e *eventsv1.Event) bool {
	return e.Regarding.Kind == "Pod" && e.Type == corev1.EventTypeWarning && u.PersistentVolume != "" &&
		strings.Contains(e.Note, `"`+u.PersistentVolume+`"`)
}

// Waiting returns a trouble for each pod of a namespace ("" for all) that waits for one of the
// volumes, with its last Event, by volume. Events and pods that the user may not read are left out.
func (all Uses) Waiting(ctx context.Context, api client.Reader, namespace string, now time.Time) (map[string][]trouble.Trouble, error) {
	out := map[string][]trouble.Trouble{}
	if len(all) == 0 {
		return out, nil
	}
	last, err := all.lastFailures(ctx, api, namespace, now)
	if apierrors.IsForbidden(err) {
		return out, nil // what may not be read is left out
	}
	if err != nil {
		return nil, err
	}
	var lock sync.Mutex
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(podsAtOnce)
	for key, e := range last {
		asking.Go(func() error {
			waits, err := podWaits(ctx, api, key[1], key[2])
			if err != nil || !waits {
				return err
			}
			t := trouble.At(trouble.Volume, key[0], "", remedy.PodWaits, fmt.Sprintf("pod %s/%s waits for it: %s", key[1], key[2], e.Note),
				remedy.Place{Volume: key[0]}, remedy.Escached{})
			t.Todo = fmt.Sprintf("see the message; kubectl -n %s describe pod %s shows all of them", key[1], key[2])
			lock.Lock()
			defer lock.Unlock()
			out[key[0]] = append(out[key[0]], t)
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	for _, troubles := range out {
		slices.SortFunc(troubles, func(a, b trouble.Trouble) int { return strings.Compare(a.What, b.What) })
	}
	return out, nil
}

// podsAtOnce is how many pods are asked for at once.
const podsAtOnce = 16

// lastFailures returns the last Event of each pod of a namespace that cannot have one of the volumes, by
// volume, namespace and pod.
func (all Uses) lastFailures(
	ctx context.Context, api client.Reader, namespace string, now time.Time,
) (map[[3]string]eventsv1.Event, error) {
	named := map[string][]string{} // volumes, by PersistentVolume
	for volume, u := range all {
		named[u.PersistentVolume] = append(named[u.PersistentVolume], volume)
	}
	last := map[[3]string]eventsv1.Event{}
	for _, reason := range podReasons() {
		err := paging.Each(ctx, api, &eventsv1.EventList{}, func(e *eventsv1.Event) error {
			if now.Sub(LastSeen(*e)) >= eventAge {
				return nil
			}
			for word := range strings.SplitSeq(e.Note, `"`) { // Kubernetes quotes names in it
				for _, volume := range named[word] {
					key := [3]string{volume, e.Regarding.Namespace, e.Regarding.Name}
					if all[volume].About(e) && LastSeen(last[key]).Before(LastSeen(*e)) {
						last[key] = *e
					}
				}
			}
			return nil
		}, client.InNamespace(namespace), client.MatchingFields{"reason": reason})
		if err != nil {
			return nil, err
		}
	}
	return last, nil
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

// LastSeen returns when an Event was last seen.
func LastSeen(e eventsv1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.DeprecatedLastTimestamp.IsZero():
		return e.DeprecatedLastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	default:
		return e.CreationTimestamp.Time
	}
}
