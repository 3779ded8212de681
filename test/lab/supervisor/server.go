package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/lab/internal/arbiter"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// verbTime bounds every verb but exec, whose caller sets the time.
const verbTime = 7 * time.Minute

// handler serves the lab's API.
func (l *lab) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+labclient.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(l.status()); err != nil {
			slog.Error("answer status", "error", err)
		}
	})
	do := func(path string, act func(ctx context.Context) error) {
		mux.HandleFunc("POST "+path, verb(func(r *http.Request) error { return act(r.Context()) }))
	}
	do(labclient.PathHeal, l.net.heal)
	do(labclient.PathStallCeph, func(ctx context.Context) error { return l.stallCeph(ctx, true) })
	do(labclient.PathResumeCeph, func(ctx context.Context) error { return l.stallCeph(ctx, false) })
	do(labclient.PathStopAPIServer, func(ctx context.Context) error { return l.apiServer(ctx, false) })
	do(labclient.PathStartAPIServer, func(ctx context.Context) error { return l.apiServer(ctx, true) })
	do(labclient.PathSaveEtcd, func(ctx context.Context) error { return l.etcd(ctx, (*kubernetes.ControlPlane).SaveEtcd) })
	do(labclient.PathRestoreEtcd, func(ctx context.Context) error { return l.etcd(ctx, (*kubernetes.ControlPlane).RestoreEtcd) })
	mux.HandleFunc("POST "+labclient.PathControllerFlags, verb(func(r *http.Request) error {
		var request labclient.ControllerFlags
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			return fmt.Errorf("which flags: %w", err)
		}
		return l.setControllerFlags(r.Context(), request.Flags)
	}))
	var once sync.Once
	do(labclient.PathDown, func(context.Context) error {
		once.Do(func() { close(l.down) })
		return nil
	})
	l.handleNodes(mux)
	mux.Handle(labclient.PathArbiter+"/", http.StripPrefix(labclient.PathArbiter, arbiter.Handler(l.records)))
	return mux
}

func (l *lab) handleNodes(mux *http.ServeMux) {
	do := func(name string, act func(ctx context.Context, n *node, body io.Reader) error) {
		mux.HandleFunc("POST "+labclient.PathNodes+"{node}/"+name, verb(func(r *http.Request) error {
			n, err := l.node(r.PathValue("node"))
			if err != nil {
				return err
			}
			return act(r.Context(), n, r.Body)
		}))
	}
	do(labclient.VerbPowerOff, func(_ context.Context, n *node, _ io.Reader) error { return n.powerOff() })
	do(labclient.VerbPowerOn, func(ctx context.Context, n *node, _ io.Reader) error { return n.powerOn(ctx) })
	do(labclient.VerbFreeze, func(ctx context.Context, n *node, _ io.Reader) error { return n.freeze(ctx) })
	do(labclient.VerbThaw, func(_ context.Context, n *node, _ io.Reader) error { return n.thaw() })
	do(labclient.VerbNewDisk, func(_ context.Context, n *node, _ io.Reader) error { return n.newDisk() })
	do(labclient.VerbReinstall, func(_ context.Context, n *node, _ io.Reader) error { return n.reinstall() })
	do(labclient.VerbCut, func(ctx context.Context, n *node, body io.Reader) error {
		var request labclient.Cut
		if err := json.NewDecoder(body).Decode(&request); err != nil {
			return fmt.Errorf("what to cut: %w", err)
		}
		return l.cut(ctx, n, request)
	})
	do(labclient.VerbFill, func(ctx context.Context, n *node, body io.Reader) error {
		var request labclient.Fill
		if err := json.NewDecoder(body).Decode(&request); err != nil {
			return fmt.Errorf("what to fill: %w", err)
		}
		return n.fill(ctx, request.Undo)
	})
	do(labclient.VerbFailDisk, func(ctx context.Context, n *node, body io.Reader) error {
		var request labclient.FailDisk
		if err := json.NewDecoder(body).Decode(&request); err != nil {
			return fmt.Errorf("what to fail: %w", err)
		}
		return n.failDisk(ctx, request.Restore)
	})
	mux.HandleFunc("POST "+labclient.PathNodes+"{node}/"+labclient.VerbExec, l.exec)
}

func (l *lab) cut(ctx context.Context, n *node, request labclient.Cut) error {
	peer := -1
	switch request.From {
	case "", labclient.CutCeph, labclient.CutControlPlane:
	default:
		other, err := l.node(request.From)
		if err != nil {
			return fmt.Errorf("cut from what? %w, %s and %s", err, labclient.CutCeph, labclient.CutControlPlane)
		}
		if other == n {
			return errors.New("a node cannot be cut from itself")
		}
		peer = other.index
	}
	return l.net.add(ctx, cut{node: n.index, Cut: request, peer: peer})
}

// verb answers 204, or an error with its text, and bounds what it does.
func verb(act func(r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), verbTime)
		defer cancel()
		began := time.Now()
		err := act(r.WithContext(ctx))
		slog.Info("verb", "path", r.URL.Path, "took", time.Since(began).Round(time.Millisecond), "error", err)
		if err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(labclient.Failure{Error: err.Error()}); err != nil {
		slog.Error("answer", "error", err)
	}
}

// exec joins the caller's connection with one to the node's agent.
func (l *lab) exec(w http.ResponseWriter, r *http.Request) {
	n, err := l.node(r.PathValue("node"))
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	if r.Header.Get("Upgrade") != labclient.ExecProtocol {
		refuse(w, http.StatusUpgradeRequired, errors.New("exec needs an upgrade to "+labclient.ExecProtocol))
		return
	}
	agent, err := n.dial(r.Context())
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	defer agent.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	defer conn.Close()
	const accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + labclient.ExecProtocol + "\r\n\r\n"
	if _, err := io.WriteString(conn, accepted); err != nil {
		return
	}
	join(conn, buffered, agent)
}

// join copies both ways until either side ends, and then ends both.
func join(conn net.Conn, from io.Reader, agent net.Conn) {
	done := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(agent, from) // the end of a connection is the end of the command, whatever ended it
		done <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(conn, agent) // as above
		done <- struct{}{}
	}()
	<-done
}
