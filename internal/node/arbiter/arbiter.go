// Package arbiter answers escached's question whether a replica that has lost its peer may go on alone. The peer is put on record as
// outdated first, and the Kubernetes API is the only judge: no record, no grant.
package arbiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Cluster is the Kubernetes API. Its reads are current.
type Cluster interface {
	VolumeOf(ctx context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error)
	PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error)
}

// Arbiter serves POST /v1/outdate-peer and GET /v1/record.
type Arbiter struct {
	node    string
	cluster Cluster
	logger  *slog.Logger
	// recorded is told of the CacheVolume after a peer was put on record.
	recorded func(v *v1alpha1.CacheVolume)
	now      func() time.Time
}

// New returns the arbiter of a node.
func New(node string, cluster Cluster, recorded func(v *v1alpha1.CacheVolume), logger *slog.Logger) *Arbiter {
	return &Arbiter{node: node, cluster: cluster, recorded: recorded, logger: logger, now: time.Now}
}

// Handler serves the arbiter's calls.
func (a *Arbiter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+escache.PathOutdatePeer, a.serve)
	mux.HandleFunc("GET "+escache.PathRecord, a.record)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, escache.CodeInvalidRequest, "the arbiter has POST "+escache.PathOutdatePeer+" and GET "+escache.PathRecord)
	})
	return mux
}

const (
	// decideTime is below the time that escached's handler waits.
	decideTime   = 15 * time.Second
	requestLimit = 64 << 10
	// tries bounds how often the record is written against other writers of the object.
	tries = 8
)

func (a *Arbiter) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), decideTime)
	defer cancel()
	var request escache.OutdatePeerRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, requestLimit))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&request); err != nil {
		answer(w, http.StatusBadRequest, escache.CodeInvalidRequest, "the body is not an OutdatePeerRequest: "+err.Error())
		return
	}
	log := a.logger.With("pool", request.Pool, "image", request.Image, "node", request.Node, "peer", request.Peer, "epoch", request.Epoch)
	err := a.Decide(ctx, request)
	var refusal *RefusedError
	switch {
	case err == nil:
		log.WarnContext(ctx, "granted going on without the peer: it is on record as outdated")
		w.WriteHeader(http.StatusNoContent)
	case errors.As(err, &refusal):
		log.WarnContext(ctx, "refused going on without the peer", "reason", err)
		answer(w, http.StatusConflict, refusal.Code, err.Error())
	case errors.Is(err, kube.ErrNotFound):
		log.WarnContext(ctx, "refused going on without the peer", "reason", err)
		answer(w, http.StatusNotFound, escache.CodeNotFound, err.Error())
	default:
		log.WarnContext(ctx, "could not decide about going on without the peer", "error", err)
		answer(w, http.StatusServiceUnavailable, escache.CodePeerUnavailable, err.Error())
	}
}

// RefusedError says why the one who asks may not go on alone.
type RefusedError struct {
	Code   escache.Code
	Reason string
}

// Error is the reason.
func (e *RefusedError) Error() string { return e.Reason }

// Decide returns nil only when the peer is on record as outdated, and was put there while the one who asks was the attached
// node in the epoch it names. Every try reads the record anew: a change by anybody else meanwhile is judged, not overwritten.
func (a *Arbiter) Decide(ctx context.Context, r escache.OutdatePeerRequest) error {
	for range tries {
		v, err := a.cluster.VolumeOf(ctx, r.VolumeRef)
		if err != nil {
			return err
		}
		if err := a.judge(v, r); err != nil {
			return err
		}
		changed, err := a.cluster.PatchStatus(ctx, v, a.entry(v, r.Peer))
		if errors.Is(err, kube.ErrConflict) {
			continue
		}
		if err != nil {
			return fmt.Errorf("put %s on record as outdated: %w", r.Peer, err)
		}
		if !changed.Status.IsOutdated(r.Peer) {
			return fmt.Errorf("put %s on record as outdated: the record does not show it: %w", r.Peer, kube.ErrUnavailable)
		}
		a.recorded(changed)
		return nil
	}
	return fmt.Errorf("put %s on record as outdated: %w", r.Peer, kube.ErrConflict)
}

// entry is what goes on record. It changes the object also where the peer is on record already: the cache watch may be about to
// take it off after a resync that it saw, and that compare-and-swap has to fail once a new grant was given.
func (a *Arbiter) entry(v *v1alpha1.CacheVolume, peer string) map[string]any {
	outdated := slices.Clone(v.Status.Outdated)
	if !slices.Contains(outdated, peer) {
		outdated = append(outdated, peer)
	}
	conditions := slices.Clone(v.Status.Conditions)
	meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: string(health.PeerLost),
		Message: fmt.Sprintf("%s goes on without the replica on %s, which is outdated since %s", a.node, peer,
			a.now().UTC().Format(time.RFC3339Nano)),
	})
	return map[string]any{"outdated": outdated, "conditions": conditions}
}

// judge is the rule.
func (a *Arbiter) judge(v *v1alpha1.CacheVolume, r escache.OutdatePeerRequest) error {
	s := &v.Status
	refuse := func(code escache.Code, format string, args ...any) error {
		return &RefusedError{code, fmt.Sprintf("volume %s: %s", v.Name, fmt.Sprintf(format, args...))}
	}
	switch {
	case r.Node != a.node:
		return refuse(escache.CodeFencingRefused, "this is the arbiter of %s, and %q asks", a.node, r.Node)
	case r.Peer == "" || r.Peer == r.Node:
		return refuse(escache.CodeFencingRefused, "%q is no peer of %s", r.Peer, r.Node)
	case s.AttachedNode != r.Node:
		return refuse(escache.CodeStaleEpoch, "it is attached to %q in epoch %d, not to %s", s.AttachedNode, s.Epoch, r.Node)
	case s.Epoch != r.Epoch:
		return refuse(escache.CodeStaleEpoch, "%s has it in epoch %d, and asks for epoch %d", s.AttachedNode, s.Epoch, r.Epoch)
	case s.IsOutdated(r.Node):
		return refuse(escache.CodeOutdated, "%s itself is on record as outdated", r.Node)
	case !v.Spec.HasReplica(r.Node) || !v.Spec.HasReplica(r.Peer):
		return refuse(escache.CodeFencingRefused, "its replicas are on %v", v.Spec.Replicas)
	case r.ImageID != "" && s.ImageID != "" && r.ImageID != s.ImageID:
		return refuse(escache.CodeIdentityMismatch, "it is image id %s, and the replica is of %s", s.ImageID, r.ImageID)
	default:
		return nil
	}
}

func answer(w http.ResponseWriter, status int, code escache.Code, detail string) {
	w.Header().Set("Content-Type", escache.ProblemContentType)
	w.WriteHeader(status)
	// The one who asks takes anything but a complete 204 as a refusal.
	_ = json.NewEncoder(w).Encode(escache.Problem{ //nolint:errchkjson // see above
		Type: "urn:escache:problem:" + string(code), Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
	})
}
