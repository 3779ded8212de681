package escache

import (
	"log/slog"
	"regexp"
)

// Secret is the shared secret of a replication link: 32 bytes in unpadded base64url, 43 characters.
// Empty means none. It prints as "(secret)"; only JSON, which goes over the wire, has its value.
type Secret string

const redacted = "(secret)"

var secretForm = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// Valid reports whether the secret has the form that the API asks for.
func (s Secret) Valid() bool { return secretForm.MatchString(string(s)) }

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the value.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// LogValue hides the secret, which a handler that writes JSON would show.
func (r ReplicaRequest) LogValue() slog.Value {
	type shown ReplicaRequest
	if r.Secret != "" {
		r.Secret = redacted
	}
	return slog.AnyValue(shown(r))
}
