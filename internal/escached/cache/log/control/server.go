package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Volume is what a process serves. Its errors are those of this package, or cache's. All methods may be called at the same time.
type Volume interface {
	// Status waits for no I/O.
	Status() Status
	// WriteBack returns when ctx ends, and the writing goes on.
	WriteBack(ctx context.Context) error
	Retry() error
	// SetMode changes nothing once ctx has ended: then its caller has told somebody that the mode is another.
	SetMode(ctx context.Context, m cache.Mode) error
	// SetOptions is called with options that Check has accepted.
	SetOptions(o Options) error
	Resize(bytes int64) error
	// Hold leaves nothing held when ctx ends.
	Hold(ctx context.Context, limit time.Duration) error
	Resume() (Resumed, error)
	// Stop and HandOver return when the log is closed. Then the process ends, after HandOver when Leave is called.
	Stop(ctx context.Context) error
	HandOver(ctx context.Context) (Handed, error)
	// Leave returns ErrInvalid without HandOver.
	Leave() error
}

const (
	maxRequestBytes = 64 << 10
	maxHold         = 24 * time.Hour
	blockBytes      = 4096
)

// Handler serves a volume.
func Handler(v Volume) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, v.Status()) })
	handle(mux, pathWriteBack, func(ctx context.Context, _ struct{}) error { return v.WriteBack(ctx) })
	handle(mux, pathRetry, func(_ context.Context, _ struct{}) error { return v.Retry() })
	handle(mux, pathMode, func(ctx context.Context, r modeRequest) error {
		if err := (Options{Mode: r.Mode}).Check(); err != nil || r.Mode == "" {
			return cmp.Or(err, fmt.Errorf("%w: mode is missing", ErrInvalid))
		}
		return v.SetMode(ctx, r.Mode)
	})
	handle(mux, pathOptions, func(_ context.Context, o Options) error {
		if err := o.Check(); err != nil {
			return err
		}
		return v.SetOptions(o)
	})
	handle(mux, pathResize, func(_ context.Context, r resizeRequest) error {
		if r.Bytes < blockBytes {
			return fmt.Errorf("%w: a device cannot have %d bytes", ErrInvalid, r.Bytes)
		}
		return v.Resize(r.Bytes)
	})
	handle(mux, pathHold, func(ctx context.Context, r holdRequest) error {
		if r.Limit <= 0 || r.Limit > maxHold {
			return fmt.Errorf("%w: a hold lasts up to %s, not %s", ErrInvalid, maxHold, r.Limit)
		}
		return v.Hold(ctx, r.Limit)
	})
	answered(mux, pathResume, func(_ context.Context, _ struct{}) (any, error) { return v.Resume() })
	handle(mux, pathStop, func(ctx context.Context, _ struct{}) error { return v.Stop(ctx) })
	answered(mux, pathHandOver, func(ctx context.Context, _ struct{}) (any, error) { return v.HandOver(ctx) })
	handle(mux, pathLeave, func(_ context.Context, _ struct{}) error { return v.Leave() })
	return mux
}

func handle[T any](mux *http.ServeMux, path string, do func(context.Context, T) error) {
	answered(mux, path, func(ctx context.Context, in T) (any, error) { return struct{}{}, do(ctx, in) })
}

func answered[T any](mux *http.ServeMux, path string, do func(context.Context, T) (any, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		var in T
		decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBytes))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&in); err != nil {
			refuse(w, fmt.Errorf("%w: %w", ErrInvalid, err))
			return
		}
		out, err := do(r.Context(), in)
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, out)
	})
}

func refuse(w http.ResponseWriter, err error) {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			detail := strings.TrimPrefix(err.Error(), c.err.Error()+": ") // the client adds it
			answer(w, c.status, failure{Code: c.code, Detail: detail})
			return
		}
	}
	answer(w, http.StatusInternalServerError, failure{Code: codeOther, Detail: err.Error()})
}

func answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"code":"`+codeOther+`"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}
