package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// syncResult is what `blockcheck bench sync` prints.
type syncResult struct {
	PerSecond float64 `json:"perSecond"`
	P50Micros int64   `json:"p50Micros"`
	P99Micros int64   `json:"p99Micros"`
}

func benchSync(r *runner, h *labtest.Host, device string, duration time.Duration, writers int) syncResult {
	var result syncResult
	measure(r, h, &result, "sync", device,
		"--duration", duration.String(), "--span", fmt.Sprint(syncSpan), "--writers", fmt.Sprint(writers))
	return result
}

// benchSequential returns bytes a second.
func benchSequential(r *runner, h *labtest.Host, device string) float64 {
	var result struct {
		BytesPerSecond float64 `json:"bytesPerSecond"`
	}
	measure(r, h, &result, "sequential", device, "--bytes", fmt.Sprint(sequentialBytes))
	return result.BytesPerSecond
}

func measure(r *runner, h *labtest.Host, into any, args ...string) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
	defer cancel()
	out, err := h.Try(ctx, nil, append([]string{"blockcheck", "bench"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		r.Fatalf("%v", err)
	}
}
