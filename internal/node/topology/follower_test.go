package topology

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/escache/escache-csi/internal/node/kube"
)

func TestRegistrationWaitsForTheNodeObject(t *testing.T) {
	for _, row := range []struct {
		name    string
		answers []int // the last one stays
		asks    int
		returns bool
	}{
		{"it is there", []int{http.StatusOK}, 1, true},
		{"it comes later", []int{http.StatusNotFound, http.StatusNotFound, http.StatusOK}, 3, true},
		{"the API cannot tell", []int{http.StatusServiceUnavailable}, 1, true},
		{"it never comes", []int{http.StatusNotFound}, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(row.answers[min(asked, len(row.answers)-1)])
				_, _ = io.WriteString(w, `{"metadata":{"name":"n1"}}`)
				asked++
			}))
			defer server.Close()
			client, err := kube.New(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			awaitNode(ctx, client, "n1", 10*time.Millisecond)
			if returned := ctx.Err() == nil; returned != row.returns || (row.asks > 0 && asked != row.asks) {
				t.Errorf("returned in time: %v, after %d questions", returned, asked)
			}
		})
	}
}

// fakeNode is a node and its kubelet, which is called by Again.
type fakeNode struct {
	info, reported Info
	asked          bool
	err            error
	calls          int
}

func (f *fakeNode) Info(context.Context) (Info, error) { return f.info, f.err }
func (f *fakeNode) Reported() (Info, bool)             { return f.reported, f.asked }
func (f *fakeNode) Again()                             { f.calls++ }

func TestTheKubeletIsCalledWhenItWasToldOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &fakeNode{info: Info{Group: "a", MaxVolumes: 7}}
		f := &Follower{Service: host, Registrar: host, Log: slog.New(slog.DiscardHandler)}
		expect := func(when string, calls int) {
			t.Helper()
			f.compare(t.Context())
			if host.calls != calls {
				t.Fatalf("%s: called %d times, expected %d", when, host.calls, calls)
			}
		}
		expect("before the kubelet has asked", 0)
		// The kubelet asked before there was a group; the first comparison finds one.
		host.reported, host.asked = Info{MaxVolumes: 7}, true
		expect("reported before the group was made", 1)
		expect("not come yet", 1)
		host.reported = host.info
		expect("has come", 1)
		host.info.Group, host.err = "b", errors.New("the API does not answer")
		expect("nothing is known", 1)
		host.err = nil
		expect("group changed", 2)
		time.Sleep(registerTime)
		expect("did not come in a minute", 3)
		host.info.MaxVolumes = 9
		expect("changed once more meanwhile", 4)
	})
}
