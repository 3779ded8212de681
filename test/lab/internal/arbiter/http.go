package arbiter

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
)

// Paths beside escache.PathOutdatePeer.
const (
	PathRecord   = escache.PathRecord
	PathResynced = "/v1/resynced"
)

// maxBody bounds a request's body.
const maxBody = 64 << 10

// AttachRequest is the body of PUT /v1/record.
type AttachRequest struct {
	escache.VolumeRef

	ImageID      string `json:"imageID,omitempty"`
	AttachedNode string `json:"attachedNode"`
	Epoch        int64  `json:"epoch"`
}

// ResyncedRequest is the body of POST /v1/resynced.
type ResyncedRequest struct {
	escache.VolumeRef

	Node string `json:"node"`
}

// recordAnswer is the answer to GET /v1/record. The lab does not record clients: who has a volume may use it.
type recordAnswer struct {
	Record

	InUse bool `json:"inUse"`
}

// Handler serves a store: PUT, GET and DELETE of records, POST of a resynced node, and the
// fence-peer handler's question.
func Handler(s *Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathRecord, func(w http.ResponseWriter, r *http.Request) {
		record, err := s.Get(volumeOf(r))
		answer(w, recordAnswer{record, record.AttachedNode != ""}, err)
	})
	mux.HandleFunc("DELETE "+PathRecord, func(w http.ResponseWriter, r *http.Request) { answer(w, nil, s.Delete(volumeOf(r))) })
	mux.HandleFunc("PUT "+PathRecord, func(w http.ResponseWriter, r *http.Request) {
		var request AttachRequest
		if err := decode(w, r, &request); err != nil {
			answer(w, nil, err)
			return
		}
		if err := valid(request.VolumeRef, request.AttachedNode); err != nil || request.Epoch < 1 {
			answer(w, nil, errors.Join(err, invalidError("epoch must be 1 or more")))
			return
		}
		record, err := s.Attach(request.VolumeRef, request.ImageID, request.AttachedNode, request.Epoch)
		answer(w, record, err)
	})
	mux.HandleFunc("POST "+PathResynced, func(w http.ResponseWriter, r *http.Request) {
		var request ResyncedRequest
		err := decode(w, r, &request)
		if err == nil {
			err = valid(request.VolumeRef, request.Node)
		}
		if err != nil {
			answer(w, nil, err)
			return
		}
		record, err := s.Resynced(request.VolumeRef, request.Node)
		answer(w, record, err)
	})
	mux.HandleFunc("POST "+escache.PathOutdatePeer, func(w http.ResponseWriter, r *http.Request) {
		var request escache.OutdatePeerRequest
		err := decode(w, r, &request)
		if err == nil {
			err = valid(request.VolumeRef, request.Node, request.Peer)
		}
		if err == nil && request.Node == request.Peer {
			err = invalidError("node and peer are the same")
		}
		if err == nil {
			err = s.OutdatePeer(request)
		}
		answer(w, nil, err)
	})
	mux.HandleFunc("POST "+escache.PathOutdateSelf, func(w http.ResponseWriter, r *http.Request) {
		var request escache.OutdateSelfRequest
		err := decode(w, r, &request)
		if err == nil {
			err = valid(request.VolumeRef, request.Node, request.Peer)
		}
		if err == nil {
			err = s.OutdateSelf(request)
		}
		answer(w, nil, err)
	})
	return mux
}

// invalidError is what is wrong with a request.
type invalidError string

func (e invalidError) Error() string { return string(e) }

func valid(volume escache.VolumeRef, nodes ...string) error {
	if volume.Pool == "" || volume.Image == "" {
		return invalidError("pool and image are needed")
	}
	if slices.Contains(nodes, "") {
		return invalidError("the name of a node is missing")
	}
	return nil
}

func volumeOf(r *http.Request) escache.VolumeRef {
	return escache.VolumeRef{Pool: r.URL.Query().Get("pool"), Image: r.URL.Query().Get("image")}
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	from := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	from.DisallowUnknownFields()
	if err := from.Decode(into); err != nil {
		return invalidError(fmt.Sprintf("body: %v", err))
	}
	return nil
}

// answer writes 204 for nothing, 200 for something, and a problem for an error.
func answer(w http.ResponseWriter, content any, err error) {
	switch {
	case err != nil:
		problem := problemOf(err)
		w.Header().Set("Content-Type", escache.ProblemContentType)
		w.WriteHeader(problem.Status)
		content = problem
	case content == nil:
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		w.Header().Set("Content-Type", "application/json")
	}
	if err := json.NewEncoder(w).Encode(content); err != nil {
		slog.Warn("the arbiter's caller did not wait for the answer", "error", err)
	}
}

func problemOf(err error) escache.Problem {
	problem := escache.Problem{Type: "about:blank", Detail: err.Error(), Status: http.StatusConflict}
	var invalid invalidError
	var refused *authority.RefusedError
	switch {
	case errors.As(err, &invalid):
		problem.Code, problem.Status = escache.CodeInvalidRequest, http.StatusBadRequest
	case errors.Is(err, ErrNotFound):
		problem.Code, problem.Status = escache.CodeNotFound, http.StatusNotFound
	case errors.Is(err, ErrStale):
		problem.Code = escache.CodeStaleEpoch
	case errors.As(err, &refused):
		problem.Code = refused.Code
	default:
		problem.Code, problem.Status = escache.CodeInternal, http.StatusInternalServerError
	}
	problem.Title = http.StatusText(problem.Status)
	return problem
}
