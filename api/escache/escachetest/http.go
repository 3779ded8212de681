package escachetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/internal/contract"
)

func fail(code escache.Code, format string, args ...any) error {
	return &escache.Problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// rules reads the contract once for all hosts.
var rules = sync.OnceValues(func() (*contract.Contract, error) { return contract.Load(context.Background()) })

// Handler serves a host's API over HTTP. It refuses requests that break openapi.yaml.
func (h *Host) Handler() (http.Handler, error) {
	contract, err := rules()
	if err != nil {
		return nil, err
	}
	return &server{h, contract}, nil
}

// server is one host's HTTP side: it parses, asks the contract, and writes answers.
type server struct {
	h        *Host
	contract *contract.Contract
}

type verb func(ctx context.Context, body []byte, r *http.Request) (any, error)

func (s *server) verbs() map[string]map[string]verb {
	h := s.h
	return map[string]map[string]verb{
		escache.PathNode:   {http.MethodGet: func(context.Context, []byte, *http.Request) (any, error) { return h.node(), nil }},
		escache.PathStatus: {http.MethodGet: func(_ context.Context, _ []byte, r *http.Request) (any, error) { return h.status(refOf(r)) }},
		escache.PathReplica: {
			http.MethodPut: with(s, h.put),
			http.MethodDelete: func(_ context.Context, _ []byte, r *http.Request) (any, error) {
				epoch, err := h.discardUpTo(r.URL.Query())
				if err != nil {
					return nil, err
				}
				return nil, h.delete(refOf(r), r.URL.Query().Get("discard") == "true", epoch)
			},
		},
		escache.PathDevConnect: {http.MethodPost: with(s, h.connect)},
		escache.PathFlush:      {http.MethodPost: with(s, h.flush)},
		escache.PathStop:       {http.MethodPost: with(s, h.stop)},
		escache.PathMode:       {http.MethodPost: with(s, h.setMode)},
		escache.PathOptions:    {http.MethodPost: with(s, h.setOptions)},
		escache.PathHold:       {http.MethodPost: with(s, h.hold)},
		escache.PathRelease:    {http.MethodPost: with(s, h.release)},
		escache.PathResize:     {http.MethodPost: with(s, h.resize)},
		escache.PathAbandon:    {http.MethodPost: with(s, h.abandon)},
		escache.PathMap:        {http.MethodPost: with(s, h.mapImage)},
		escache.PathUnmap:      {http.MethodPost: with(s, h.unmapImage)},
		escache.PathTrim:       {http.MethodPost: with(s, h.trim)},
	}
}

// discardUpTo is the attachment up to which a call may discard what was written.
func (h *Host) discardUpTo(query url.Values) (epoch int64, err error) {
	text := query.Get("epoch")
	switch {
	case text != "":
		if epoch, err = strconv.ParseInt(text, 10, 64); err != nil {
			return 0, fail(escache.CodeInvalidRequest, "epoch: %v", err)
		}
	case h.w.breaks("a discard without an epoch drops everything"):
		epoch = math.MaxInt64
	case query.Get("discard") == "true":
		return 0, fail(escache.CodeInvalidRequest, "epoch: it is required with discard=true")
	}
	return epoch, nil
}

func refOf(r *http.Request) escache.VolumeRef {
	return escache.VolumeRef{Pool: r.URL.Query().Get("pool"), Image: r.URL.Query().Get("image")}
}

func with[R any](s *server, f func(context.Context, R) (any, error)) verb {
	return func(ctx context.Context, body []byte, _ *http.Request) (any, error) {
		var req R
		decodeBody := contract.DecodeStrictly
		if s.h.w.breaks("unknown fields are ignored") {
			decodeBody = json.Unmarshal
		}
		if err := decodeBody(body, &req); err != nil {
			return nil, fail(escache.CodeInvalidRequest, "body: %v", err)
		}
		return f(ctx, req)
	}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.h.w.breaks("answers without a body do not say who answers") {
		w.Header().Set(escache.HeaderHostID, s.h.Node().HostID)
	}
	value, err := s.answer(w, r)
	var problem *escache.Problem
	switch {
	case errors.As(err, &problem):
		s.problem(w, problem)
	case value == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		data, _ := json.Marshal(value) //nolint:errchkjson // the types of the API can be encoded
		if s.h.w.breaks("answers have a field of their own") {
			data = append([]byte(`{"extra":1,`), data[1:]...)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data)
	}
}

func (s *server) problem(w http.ResponseWriter, p *escache.Problem) {
	p.Status = escache.StatusOf(p.Code)
	if s.h.w.breaks("every error is a 500") {
		p.Status = http.StatusInternalServerError
	}
	p.Type, p.Title = "urn:escache:problem:"+string(p.Code), http.StatusText(p.Status)
	w.Header().Set("Content-Type", escache.ProblemContentType)
	if s.h.w.breaks("errors are plain JSON") {
		w.Header().Set("Content-Type", "application/json")
	}
	if s.h.w.breaks("codes of its own") {
		p.Code = "my_" + p.Code
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) //nolint:errchkjson // the caller sees a cut answer
}

const maxBody = 64 << 10

func (s *server) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	verbs := s.verbs()[r.URL.Path]
	if verbs == nil {
		return nil, fail(escache.CodeUnknownPath, "%s is no call of this API", r.URL.Path)
	}
	call := verbs[r.Method]
	if call == nil {
		if !s.h.w.breaks("Allow is not sent") {
			w.Header().Set("Allow", strings.Join(slices.Collect(maps.Keys(verbs)), ", "))
		}
		return nil, fail(escache.CodeMethodNotAllowed, "%s is no method of %s", r.Method, r.URL.Path)
	}
	if want := r.Header.Get(escache.HeaderHostID); want != "" && r.Method != http.MethodGet && want != s.h.Node().HostID &&
		!s.h.w.breaks("a call for another host is carried out") {
		return nil, fail(escache.CodeOtherHost, "another machine answers")
	}
	limit := int64(maxBody)
	if s.h.w.breaks("bodies have no bound") {
		limit = 1 << 30
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, limit))
	if err != nil || !utf8.Valid(body) {
		return nil, fail(escache.CodeInvalidRequest, "the body is over 64 KiB or no UTF-8")
	}
	if err := s.checkQuery(r); err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err := s.contract.CheckRequest(r); err != nil && !s.forgives(err) {
		return nil, fail(escache.CodeInvalidRequest, "the request is against openapi.yaml")
	}
	return call(r.Context(), body, r)
}

// forgives lets pass what a world that breaks a rule of input does not see.
func (s *server) forgives(err error) bool {
	for rule, words := range map[string]string{
		"unknown fields are ignored": "is unsupported", "names are not checked": "the regular expression",
		"missing fields are zero": "is missing", "sizes are not checked": "multipleOf",
	} {
		if s.h.w.breaks(rule) && strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

func (s *server) checkQuery(r *http.Request) error {
	known := map[string][]string{escache.PathStatus: {"pool", "image"}}[r.URL.Path]
	if r.Method == http.MethodDelete {
		known = []string{"pool", "image", "discard", "epoch"}
	}
	query := r.URL.Query()
	for name, values := range query {
		if (!slices.Contains(known, name) || len(values) > 1) && !s.h.w.breaks("unknown parameters are ignored") {
			return fail(escache.CodeInvalidRequest, "parameter %s is not known or is given twice", name)
		}
	}
	if r.URL.Path == escache.PathStatus && query.Has("pool") != query.Has("image") {
		return fail(escache.CodeInvalidRequest, "pool and image are given together or not at all")
	}
	return nil
}
