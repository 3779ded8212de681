package etcdrestore_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/etcdrestore"
)

// server answers one question after the other with these revisions, and then with the last one. An empty one is an error.
type server struct {
	client.Reader

	revisions []string
}

func (s *server) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	now := s.revisions[0]
	if len(s.revisions) > 1 {
		s.revisions = s.revisions[1:]
	}
	if now == "" {
		return errors.New("connection refused")
	}
	list.SetResourceVersion(now)
	return nil
}

func TestWatch(t *testing.T) {
	for name, tc := range map[string]struct {
		revisions []string
		restored  bool
	}{
		"nothing is written":                {[]string{"7"}, false},
		"revisions grow":                    {[]string{"7", "9", "10"}, false},
		"the API server was away":           {[]string{"9", "", "", "10"}, false},
		"a revision is no number":           {[]string{"9", "x", "10"}, false},
		"etcd was restored":                 {[]string{"9", "10", "9"}, true},
		"etcd was restored in an outage":    {[]string{"10", "", "", "9"}, true},
		"the API server was away at first":  {[]string{"", "9", "8"}, true},
		"etcd was restored long ago, again": {[]string{"100", "101", "102", "", "", "3"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				w := &etcdrestore.Watch{
					Live: &server{revisions: tc.revisions}, Log: slog.New(slog.DiscardHandler),
					Every: 5 * time.Second, Again: time.Second, Longest: time.Second,
				}
				if err := w.Start(ctx); errors.Is(err, etcdrestore.ErrRestored) != tc.restored || err != nil && !tc.restored {
					t.Errorf("it ends with %v", err)
				}
			})
		})
	}
}
