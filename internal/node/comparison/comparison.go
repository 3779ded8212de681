// Package comparison has csi-controller compare a volume's record with its image's metadata in Ceph, which no
// host can read. A restored etcd may have set the record back, so that it gives a node a volume which others
// have had since.
package comparison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/traces"
)

// AnswerTime is how long csi-controller may take. Then the call ends, and its caller repeats it.
const AnswerTime = 20 * time.Second

const (
	// The record is read again after firstWait, and after twice as long each time, up to longestWait.
	firstWait   = 25 * time.Millisecond
	longestWait = time.Second
	// tries bounds how often a conflicting write is repeated.
	tries = 8
)

// Kube writes the question. PatchStatus fails with kube.ErrConflict if the object has changed since it was read.
type Kube interface {
	PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error)
}

// Reader reads the record again. It fails if what is asked for is not allowed by it any more.
type Reader func(context.Context) (*v1alpha1.CacheVolume, error)

// Ask puts a question on record that nobody has asked before, and waits for its answer. It returns the record
// once csi-controller has found that it is as new as the image's metadata. The error wraps
// authority.ErrRecordBehind if it is older, and kube.ErrUnavailable if nobody has answered in time.
func Ask(ctx context.Context, k Kube, v *v1alpha1.CacheVolume, again Reader) (_ *v1alpha1.CacheVolume, err error) {
	ctx, step := traces.Begin(ctx, "have the record compared")
	defer step.Done(&err)
	question, err := Put(ctx, k, v, again)
	if err != nil {
		return nil, err
	}
	return Await(ctx, question, v.Name, again)
}

// Await waits for the answer to a question. An answer that comes late counts as well, and Await may be called again.
// Who does that must have read the record all the time: a restored etcd may have the question, with an older answer.
func Await(ctx context.Context, question, volume string, again Reader) (*v1alpha1.CacheVolume, error) {
	waiting, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		if pause.For(waiting, wait) != nil {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("%w: nobody has compared the record of volume %s with its image's metadata in Ceph for %s, and without "+
				"that it is not used; check that csi-controller runs, is of this version and reaches Ceph",
				kube.ErrUnavailable, volume, AnswerTime)
		}
		now, err := again(ctx)
		if err != nil {
			return nil, err
		}
		if err := authority.Compared(now, question); !errors.Is(err, authority.ErrUnanswered) {
			return now, err
		}
	}
}

// Put puts a new question on record.
func Put(ctx context.Context, k Kube, v *v1alpha1.CacheVolume, again Reader) (question string, err error) {
	question = uuid.NewString()
	for range tries {
		var asked *v1alpha1.CacheVolume
		asked, err = k.PatchStatus(ctx, v, map[string]any{
			"comparison": map[string]any{"question": question, "answered": nil, "behind": nil},
		})
		if err == nil && asked.Status.Comparison == nil {
			return "", fmt.Errorf("%w: the API server has dropped status.comparison of volume %s: its CRD of CacheVolumes is older than "+
				"csi-node; apply the chart's CRDs", authority.ErrRefused, v.Name)
		}
		if !errors.Is(err, kube.ErrConflict) {
			return question, err
		}
		now, readErr := again(ctx)
		if readErr != nil {
			return "", readErr
		}
		v = now
	}
	return "", err
}
