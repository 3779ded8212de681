package arbiter

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
)

// record answers with the current record. escached uses it to mark its replica outdated, to link a copy that was
// booted, to abandon a device, or to keep one that it has again.
func (a *Arbiter) record(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), decideTime)
	defer cancel()
	ref := escache.VolumeRef{Pool: r.URL.Query().Get("pool"), Image: r.URL.Query().Get("image")}
	if ref.Pool == "" || ref.Image == "" {
		answer(w, http.StatusBadRequest, escache.CodeInvalidRequest, "the parameters pool and image are needed")
		return
	}
	v, err := a.kube.VolumeOf(ctx, ref)
	switch {
	case errors.Is(err, kube.ErrNotFound):
		answer(w, http.StatusNotFound, escache.CodeNotFound, err.Error())
		return
	case err != nil:
		answer(w, http.StatusServiceUnavailable, escache.CodePeerUnavailable, err.Error())
		return
	}
	var fenced []string
	for _, client := range v.Status.Fenced {
		if client.Node != "" {
			fenced = append(fenced, client.Node)
		}
	}
	var discarded int64
	if v.Status.Discarded != nil {
		discarded = v.Status.Discarded.Epoch
	}
	attached := v.Status.AttachedNode
	w.Header().Set("Content-Type", "application/json")
	// escached takes anything but a complete record as no answer.
	_ = json.NewEncoder(w).Encode(escache.VolumeRecord{ //nolint:errchkjson // see above
		VolumeRef: ref, ImageID: v.Status.ImageID, AttachedNode: attached, AttachedHostID: v.Status.HostID(attached), Epoch: v.Status.Epoch,
		Replicas: v.Spec.Replicas, Outdated: append([]string{}, v.Status.Outdated...),
		InCeph: authority.InCeph(v), InUse: v.Status.ClientAddress != "", Fenced: fenced, DiscardedEpoch: discarded,
	})
}
