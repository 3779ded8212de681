// Package arbiter answers escached's question whether a host that has lost its DRBD peer may go on
// alone. Before it says yes it records the peer as outdated in the CacheVolume; if it cannot write
// the record, the answer is no. The rule itself is authority.MayGoOnAlone.
package arbiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Kube is the Kubernetes API. Its reads bypass any cache. PatchStatus fails with
// kube.ErrConflict if the object has changed since it was read.
type Kube interface {
	VolumeOf(ctx context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error)
	PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error)
}

// Arbiter serves POST /v1/outdate-peer, POST /v1/outdate-self and GET /v1/record.
type Arbiter struct {
	node   string
	kube   Kube
	logger *slog.Logger
	// recorded is called with the CacheVolume after a peer was recorded as outdated.
	recorded func(v *v1alpha1.CacheVolume)
	// look is called when this node's disk has failed and the record does not count the peer.
	look func()
	now  func() time.Time
	cuts cuts
}

// New returns the arbiter of a node. It calls recorded with the CacheVolume after each grant. It calls
// look if this node's disk has failed and the record does not count the peer: the peer may have
// everything all the same, and who looks at DRBD's state can count it.
func New(node string, client Kube, recorded func(v *v1alpha1.CacheVolume), look func(), logger *slog.Logger) *Arbiter {
	return &Arbiter{
		node: node, kube: client, recorded: recorded, look: look, logger: logger, now: time.Now,
		cuts: cuts{since: map[escache.VolumeRef]cut{}, sound: map[escache.VolumeRef]int64{}},
	}
}

// Handler serves the arbiter's calls.
func (a *Arbiter) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+escache.PathOutdatePeer, a.serve)
	mux.HandleFunc("POST "+escache.PathOutdateSelf, a.serveSelf)
	mux.HandleFunc("GET "+escache.PathRecord, a.record)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, escache.CodeInvalidRequest,
			"the arbiter serves POST "+escache.PathOutdatePeer+", POST "+escache.PathOutdateSelf+" and GET "+escache.PathRecord)
	})
	return mux
}

const (
	// decideTime bounds a decision. escached gives up sooner, after its arbiterTimeout, and asks again later.
	decideTime   = 15 * time.Second
	requestLimit = 64 << 10
	// tries bounds how often a conflicting write is repeated.
	tries = 8
)

func (a *Arbiter) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), decideTime)
	defer cancel()
	var request escache.OutdatePeerRequest
	if !decode(w, r, &request) {
		return
	}
	log := a.logger.With("pool", request.Pool, "image", request.Image, "node", request.Node, "peer", request.Peer, "epoch", request.Epoch)
	a.conclude(ctx, w, log, a.Decide(ctx, request), "granted going on without the peer: it is on record as outdated",
		"refused going on without the peer")
}

// decode reads a request's body. If it cannot, it answers and returns false.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, requestLimit))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err != nil {
		answer(w, http.StatusBadRequest, escache.CodeInvalidRequest, "the body is not what "+r.URL.Path+" takes: "+err.Error())
	}
	return err == nil
}

// conclude logs a decision and answers with it.
func (a *Arbiter) conclude(ctx context.Context, w http.ResponseWriter, log *slog.Logger, err error, granted, refused string) {
	var refusal *authority.RefusedError
	switch {
	case err == nil:
		log.WarnContext(ctx, granted)
		w.WriteHeader(http.StatusNoContent)
	case errors.As(err, &refusal):
		log.WarnContext(ctx, refused, "reason", err)
		answer(w, http.StatusConflict, refusal.Code, err.Error())
	case errors.Is(err, kube.ErrNotFound):
		log.WarnContext(ctx, refused, "reason", err)
		answer(w, http.StatusNotFound, escache.CodeNotFound, err.Error())
	default:
		log.WarnContext(ctx, "could not decide: "+refused, "error", err)
		answer(w, http.StatusServiceUnavailable, escache.CodePeerUnavailable, err.Error())
	}
}

// asksForItself refuses what another node asks here.
func (a *Arbiter) asksForItself(node string) error {
	if node != a.node {
		return &authority.RefusedError{
			Code: escache.CodeFencingRefused, Reason: fmt.Sprintf("this is the arbiter of %s, and %q asks", a.node, node),
		}
	}
	return nil
}

// Decide returns nil only if the peer is on record as outdated, and was recorded while the host
// that asks was the attached node in the epoch that it names. Every try reads the record again and
// decides again, so a change by somebody else in between is never overwritten. If the API server has not
// answered for long, or this process does not know for how long, csi-controller has to compare the record first. A refusal
// is an *authority.RefusedError.
func (a *Arbiter) Decide(ctx context.Context, r escache.OutdatePeerRequest) error {
	if err := a.asksForItself(r.Node); err != nil {
		return err
	}
	compare := a.compare(r)
	err := a.decide(ctx, r, compare, a.cuts.takeQuestion(r, a.now()))
	a.cuts.heard(r, err, a.now())
	return err
}

func (a *Arbiter) decide(ctx context.Context, r escache.OutdatePeerRequest, compare bool, question string) error {
	for range tries {
		v, err := a.kube.VolumeOf(ctx, r.VolumeRef)
		if err != nil {
			return err
		}
		grant, err := authority.MayGoOnAlone(v, r, a.now())
		if err == nil && compare {
			if v, err = a.compared(ctx, v, r, question); err == nil {
				compare = false
				grant, err = authority.MayGoOnAlone(v, r, a.now())
			}
		}
		if err != nil {
			return err
		}
		changed, err := a.kube.PatchStatus(ctx, v, map[string]any{"outdated": grant.Outdated, "conditions": grant.Conditions})
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

func answer(w http.ResponseWriter, status int, code escache.Code, detail string) {
	w.Header().Set("Content-Type", escache.ProblemContentType)
	w.WriteHeader(status)
	// escached takes anything but a complete 204 as a refusal.
	_ = json.NewEncoder(w).Encode(escache.Problem{ //nolint:errchkjson // see above
		Type: "urn:escache:problem:" + string(code), Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
	})
}
