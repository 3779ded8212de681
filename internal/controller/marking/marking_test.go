package marking

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// marks records what is marked. The image "late" fails the first time.
type marks struct {
	mu    sync.Mutex
	calls []string
}

func (m *marks) Mark(_ context.Context, image volumes.ImageRef, volume string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	again := slices.Contains(m.calls, volume)
	m.calls = append(m.calls, volume)
	switch {
	case image.Image != "i-"+volume:
		return "", fmt.Errorf("image %s of volume %s: %w", image.Image, volume, volumes.ErrRefused)
	case volume == "gone":
		return "", volumes.ErrNotFound
	case volume == "late" && !again:
		return "", volumes.ErrUnavailable
	}
	return "id", nil
}

func TestEveryReadyVolumesImageIsMarkedOnce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme)
	for name, phase := range map[string]v1alpha1.VolumePhase{
		"one": v1alpha1.VolumeReady, "two": v1alpha1.VolumeReady, "gone": v1alpha1.VolumeReady, "late": v1alpha1.VolumeReady, "begun": "",
	} {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		v.Spec.Image, v.Status.Phase = "i-"+name, phase
		objects.WithObjects(v)
	}
	seen := &marks{}
	m := New(Config{
		Reader: objects.Build(), Images: seen, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Again: time.Millisecond, Parallel: 2,
	})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(seen.calls)
	if want := []string{"gone", "late", "late", "one", "two"}; !slices.Equal(seen.calls, want) {
		t.Errorf("marked %v, not %v", seen.calls, want)
	}
}

func TestMarkingEndsWithItsContext(t *testing.T) {
	scheme := runtime.NewScheme() // it knows no volumes, so that nothing can be listed
	m := New(Config{
		Reader: fake.NewClientBuilder().WithScheme(scheme).Build(), Log: slog.New(slog.DiscardHandler), Again: time.Hour, Parallel: 1,
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Start(ctx); err != nil || ctx.Err() == nil {
		t.Errorf("it ended with %v, the context with %v", err, ctx.Err())
	}
}
