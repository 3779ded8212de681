package overview

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// access admits clients that Kubernetes knows and allows to list CacheVolumes.
type access struct {
	api client.Client
	now func() time.Time

	mu    sync.Mutex
	known map[[sha256.Size]byte]verdict
}

type verdict struct {
	code  int
	until time.Time
}

const (
	// verdictTime is how long an answer of the API server counts. A right that is taken away lasts
	// that much longer here.
	verdictTime = 30 * time.Second
	reviewTime  = 10 * time.Second
	// mostVerdicts bounds the memory that guessed tokens cost.
	mostVerdicts = 1000
	cookieName   = "escache-token"
)

// check returns http.StatusOK, StatusUnauthorized or StatusForbidden, or StatusBadGateway while the
// API server does not answer.
func (a *access) check(ctx context.Context, token string) int {
	if token == "" {
		return http.StatusUnauthorized
	}
	key := sha256.Sum256([]byte(token))
	a.mu.Lock()
	v, ok := a.known[key]
	a.mu.Unlock()
	if ok && a.now().Before(v.until) {
		return v.code
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	code, err := a.review(ctx, token)
	if err != nil {
		return http.StatusBadGateway
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= mostVerdicts {
		clear(a.known)
	}
	a.known[key] = verdict{code, a.now().Add(verdictTime)}
	return code
}

func (a *access) review(ctx context.Context, token string) (int, error) {
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.api.Create(ctx, who); err != nil {
		return 0, fmt.Errorf("ask who a token belongs to: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range who.Status.User.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.Status.User.Username, UID: who.Status.User.UID, Groups: who.Status.User.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "list", Group: v1alpha1.GroupName, Version: v1alpha1.GroupVersion().Version, Resource: "cachevolumes",
		},
	}}
	if err := a.api.Create(ctx, may); err != nil {
		return 0, fmt.Errorf("ask what %s may do: %w", who.Status.User.Username, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

// tokenOf returns the token of a request: from a header for scripts, from a cookie for browsers.
func tokenOf(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token
	}
	if cookie, err := r.Cookie(cookieName); err == nil {
		return cookie.Value
	}
	return ""
}
