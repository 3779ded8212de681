package conformance

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func secretChecks() []Check {
	return []Check{
		{"no answer has the secret of the link", secretNotTold, beside},
		{"a peer with another secret is not let in", secretNeeded, beside},
		{"another secret does not disturb a link in use", secretInUse, beside},
	}
}

func newSecret() escache.Secret {
	bits := make([]byte, 32)
	_, _ = rand.Read(bits) // it never fails
	return escache.Secret(base64.RawURLEncoding.EncodeToString(bits))
}

// secretNotTold looks at what is answered when all is well and when it is not.
func secretNotTold(s *suite) {
	v := s.newVolume()
	want := v.request()
	wrong, other, short := want, want, want
	wrong.CacheBytes += 4 * mib
	other.Secret = newSecret()
	short.Secret = want.Secret[:42]
	a := s.first.send(request{method: http.MethodPut, path: escache.PathReplica, body: encode(s, short), broken: true})
	refused(s, "a secret of 42 characters", a, escache.CodeInvalidRequest)
	answers := []*answer{
		a, s.first.put(want), s.first.put(want), s.first.put(wrong), s.first.put(other),
		s.first.send(request{method: http.MethodGet, path: escache.PathStatus, query: v.query()}),
		s.first.send(request{method: http.MethodGet, path: escache.PathStatus}),
		s.first.send(request{method: http.MethodGet, path: escache.PathNode}),
	}
	for _, a := range answers {
		for _, secret := range []escache.Secret{short.Secret, other.Secret} {
			if bytes.Contains(a.body, []byte(secret)) {
				s.Errorf("an answer with status %d, of %d bytes, has the secret", a.status, len(a.body))
			}
		}
	}
}

// secretNeeded gives each host a secret of its own, and then the same to both.
func secretNeeded(s *suite) {
	v := s.newVolume()
	other := v.request()
	other.Secret = newSecret()
	done(s, "create the first replica", s.first.put(v.request()))
	done(s, "create the second with another secret", s.second.put(other))
	linked := func() (bool, any) {
		status := s.first.status(v.VolumeRef)
		return len(status.Peers) == 1 && status.Peers[0].ConnectionState.Linked(), shown(status)
	}
	for end := time.Now().Add(strangersWait); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if ok, why := linked(); ok {
			s.Fatalf("the hosts have different secrets, and are linked: %v", why)
		}
	}
	for _, h := range []*host{s.second, s.first} {
		done(s, "give both the same secret, on "+h.Name, h.put(v.request()))
	}
	s.eventually("the hosts have the same secret, and are linked", linked)
}

// strangersWait is how long two hosts with different secrets are watched.
const strangersWait = 3 * time.Second

func secretInUse(s *suite) {
	v := s.connected()
	data := v.write(s.first, 0, mib)
	other := v.request()
	other.Secret = newSecret()
	for _, h := range []*host{s.second, s.first} {
		done(s, "give another secret to "+h.Name, h.put(other))
		status := s.first.status(v.VolumeRef)
		if status.IOSuspended || len(status.Peers) != 1 || !status.Peers[0].ConnectionState.Linked() {
			s.Errorf("after another secret was given to %s: %+v", h.Name, shown(status))
		}
	}
	more := v.write(s.first, 4*mib, mib)
	v.holds(s.first, 0, data)
	v.holds(s.first, 4*mib, more)
}
