package labtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Record is what the lab's arbiter knows of a volume: who may write it, and who must not be used.
type Record struct {
	escache.VolumeRef

	ImageID      string   `json:"imageID,omitempty"`
	AttachedNode string   `json:"attachedNode"`
	Epoch        int64    `json:"epoch"`
	Outdated     []string `json:"outdated,omitempty"`
}

const (
	recordPath   = "/v1/record"
	resyncedPath = "/v1/resynced"
	recordLimit  = 10 * time.Second
)

// Attach puts on record that a node may write from an epoch on, as the controller does before anything else.
func (l *Lab) Attach(ctx context.Context, r Record) error {
	r.Outdated = nil
	return l.arbiter(ctx, http.MethodPut, recordPath, nil, r, nil)
}

// Record returns what is on record.
func (l *Lab) Record(ctx context.Context, ref escache.VolumeRef) (Record, error) {
	var r Record
	err := l.arbiter(ctx, http.MethodGet, recordPath, url.Values{"pool": {ref.Pool}, "image": {ref.Image}}, nil, &r)
	return r, err
}

func (l *Lab) forget(ctx context.Context, ref escache.VolumeRef) error {
	return l.arbiter(ctx, http.MethodDelete, recordPath, url.Values{"pool": {ref.Pool}, "image": {ref.Image}}, nil, nil)
}

// resynced takes a node off the outdated ones: the caller has seen its replica current.
func (l *Lab) resynced(ctx context.Context, ref escache.VolumeRef, node string) error {
	return l.arbiter(ctx, http.MethodPost, resyncedPath, nil, struct {
		escache.VolumeRef

		Node string `json:"node"`
	}{ref, node}, nil)
}

func (l *Lab) arbiter(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, os.Getenv("LAB_ARBITER")+path+"?"+query.Encode(), content)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("arbiter: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("arbiter: %w", err)
	case response.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("arbiter: %s: %s", response.Status, data)
	case answer != nil:
		return json.Unmarshal(data, answer)
	}
	return nil
}

// MustBeOutdated fails the test unless a host's replica is on record as one that must not be used.
func (v *Volume) MustBeOutdated(t T, h *Host) {
	t.Helper()
	r, err := v.lab.Record(t.Context(), v.VolumeRef)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if !slices.Contains(r.Outdated, h.Name) {
		t.Fatalf("%s goes on alone, and the record is %+v", v, r)
	}
}
