package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/internal/contract"
)

// T is the part of testing.T that checks use, so that the suite's own tests can see a check fail.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(f func())
	Failed() bool
}

// Check is one rule of the contract, or a few that need the same preparation.
type Check struct {
	Name string
	run  func(*suite)
	// company says whether other checks may run at the same time.
	company company
}

// company is what may happen beside a check.
type company bool

const (
	// alone: the check looks at all of a host, or makes Ceph hang.
	alone company = false
	// beside: the check looks at its own volumes only.
	beside company = true
)

// Checks returns all checks: cheap ones first.
func Checks() []Check {
	return slices.Concat(hostChecks(), inputChecks(), replicaChecks(), connectChecks(), flushChecks(), stopChecks(), modeChecks(),
		optionsChecks(), holdChecks(), resizeChecks(), moveChecks(), joinChecks(), abandonChecks(), lateChecks(), secretChecks(),
		uncachedChecks(), trimChecks(), mapChecks(), restartChecks())
}

// Run runs every check as a subtest, some of them at the same time (go test -parallel). It must be
// the only user of the target's ports, minors and of images that begin with "conformance-".
func Run(t *testing.T, target Target) {
	t.Helper()
	if err := target.Validate(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	run := func(t *testing.T, company company) {
		for number, check := range Checks() {
			if check.company != company || target.Chosen != nil && !target.Chosen(number) {
				continue
			}
			t.Run(check.Name, func(t *testing.T) {
				if company == beside {
					t.Parallel()
				}
				start := time.Now()
				runCheck(t, target, check)
				t.Logf("took %.1fs", time.Since(start).Seconds())
			})
		}
	}
	t.Run("alone", func(t *testing.T) { run(t, alone) })
	t.Run("side by side", func(t *testing.T) { run(t, beside) }) // returns when all of them are done
}

// volumes numbers the images of this process, so that no check meets what another one left.
var volumes atomic.Int64

// suite is one check under way.
type suite struct {
	T

	target Target
	first  *host // has the device in most checks
	second *host // has the other replica
}

// host is one host with its caller.
type host struct {
	Host

	s    *suite
	call *caller
}

func runCheck(t T, target Target, check Check) {
	t.Helper()
	rules, err := contract.Load(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &suite{T: t, target: withDefaults(target)}
	hosts := [2]**host{&s.first, &s.second}
	for i, h := range target.Hosts {
		call, err := newCaller(h, rules)
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(call.http.CloseIdleConnections)
		*hosts[i] = &host{Host: h, s: s, call: call}
	}
	check.run(s)
}

// send makes a call that must get an answer according to the contract.
func (h *host) send(req request) *answer {
	h.s.Helper()
	a, err := h.try(h.s.Context(), req)
	if err != nil {
		h.s.Fatalf("%s: %s %s: %v", h.Name, req.method, req.path, err)
	}
	return a
}

// try makes a call within the target's time. An answer against the contract fails the check at
// once.
func (h *host) try(ctx context.Context, req request) (*answer, error) {
	h.s.Helper()
	ctx, cancel := context.WithTimeout(ctx, h.s.target.CallTimeout)
	defer cancel()
	a, err := h.call.do(ctx, req)
	if _, broken := errors.AsType[*contractError](err); broken {
		h.s.Errorf("%s: %s %s: %v", h.Name, req.method, req.path, err)
	}
	return a, err
}

func (h *host) post(path string, body any) *answer {
	h.s.Helper()
	return h.send(request{method: http.MethodPost, path: path, body: encode(h.s, body)})
}

func encode(t T, body any) []byte {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return data
}

// get makes a call whose answer has a body.
func (h *host) get(path string, query url.Values, into any) {
	h.s.Helper()
	decode(h.s, h.send(request{method: http.MethodGet, path: path, query: query}), into)
}

// decode demands a success with a body.
func decode(t T, a *answer, into any) {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("got %s, want 200", a)
	}
	if err := contract.DecodeStrictly(a.body, into); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
}

// done demands a success without a body.
func done(t T, what string, a *answer) {
	t.Helper()
	if a.status != http.StatusNoContent {
		t.Fatalf("%s: got %s, want 204", what, a)
	}
}

// refused demands a refusal with one of the codes.
func refused(t T, what string, a *answer, codes ...escache.Code) {
	t.Helper()
	if !slices.Contains(codes, a.code()) {
		t.Errorf("%s: got %s, want a refusal with %v", what, a, codes)
	}
}

// node is the host's own word on itself.
func (h *host) node() escache.Node {
	h.s.Helper()
	var node escache.Node
	h.get(escache.PathNode, nil, &node)
	return node
}

// statuses is every volume of the host.
func (h *host) statuses() []escache.VolumeStatus {
	h.s.Helper()
	var status escache.Status
	h.get(escache.PathStatus, nil, &status)
	return status.Volumes
}

// status is one volume on the host.
func (h *host) status(ref escache.VolumeRef) escache.VolumeStatus {
	h.s.Helper()
	var status escache.Status
	h.get(escache.PathStatus, url.Values{"pool": {ref.Pool}, "image": {ref.Image}}, &status)
	if len(status.Volumes) != 1 || status.Volumes[0].VolumeRef != ref {
		h.s.Fatalf("%s: status of %s/%s has %d entries: %+v; want one, of that volume", h.Name, ref.Pool, ref.Image, len(status.Volumes),
			shown(status.Volumes))
	}
	return status.Volumes[0]
}

// shown is a value as it goes over the wire, for messages.
func shown(value any) string {
	data, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// eventually waits for a condition; why is the last answer's reason.
func (s *suite) eventually(what string, condition func() (ok bool, why any)) {
	s.Helper()
	deadline := time.Now().Add(s.target.CallTimeout)
	for {
		ok, why := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s: not within %s; the last look was: %+v", what, s.target.CallTimeout, why)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
