package trim

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// unused is a volume that no node has.
func unused(name string, change func(*v1alpha1.CacheVolume)) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/" + name}},
		Spec:       v1alpha1.CacheVolumeSpec{SizeBytes: 1 << 30, Replicas: []string{"n1", "n2"}},
		Status:     v1alpha1.CacheVolumeStatus{Phase: v1alpha1.VolumeReady, ImageID: "10ab", Authority: v1alpha1.AuthorityCeph, Epoch: 4},
	}
	if change != nil {
		change(v)
	}
	return v
}

func attached(v *v1alpha1.CacheVolume) {
	v.Status.AttachedNode, v.Status.Authority = "n1", v1alpha1.AuthorityCache
}

func TestWhatIsInTheWayOfATrim(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.CacheVolume)
		block  bool
		says   string // "": nothing is
	}{
		"clean":              {nil, false, ""},
		"dirty, and no pod":  {func(v *v1alpha1.CacheVolume) { v.Status.Authority = v1alpha1.AuthorityCache }, false, ""},
		"being written back": {func(v *v1alpha1.CacheVolume) { attached(v); v.Status.FlushEpoch = 4 }, false, ""},
		"attached":           {attached, false, "stop its pods"},
		"attached, log":      {func(v *v1alpha1.CacheVolume) { attached(v); v.Spec.CacheEngine = v1alpha1.CacheEngineLog }, false, ""},
		"attached without a cache": {func(v *v1alpha1.CacheVolume) {
			attached(v)
			v.Status.Uncached = &v1alpha1.UncachedAttachment{Epoch: 4}
		}, false, ""},
		"block":          {nil, true, "blkdiscard"},
		"never attached": {func(v *v1alpha1.CacheVolume) { v.Status.ImageID = "" }, false, "never attached"},
		"being made":     {func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumePending }, false, "never attached"},
		"being deleted":  {func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeDeleting }, false, "being deleted"},
		"being released": {func(v *v1alpha1.CacheVolume) { v.Spec.Release = true }, false, "being released"},
		"in conflict":    {func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeConflict }, false, "adopt --all"},
		"moving":         {func(v *v1alpha1.CacheVolume) { v.Status.Move = &v1alpha1.VolumeMove{Group: "g2"} }, false, "moving to group g2"},
	} {
		why := Obstacle(unused("a", tc.change), tc.block)
		if (why == "") != (tc.says == "") || !strings.Contains(why, tc.says) {
			t.Errorf("%s: %q, not %q", name, why, tc.says)
		}
	}
}

// played is an API server whose csi-controller ends each trim at once; how says how.
func played(t *testing.T, how func(*v1alpha1.CacheFlush), objects ...client.Object) client.Client {
	t.Helper()
	return interceptor.NewClient(plugintest.Cluster(t, objects...), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if f, ok := o.(*v1alpha1.CacheFlush); ok {
				if f.Spec.Mode != v1alpha1.FlushModeTrim || f.Spec.TimeoutSeconds != 60 {
					t.Errorf("asked for %+v", f.Spec)
				}
				how(f)
			}
			return c.Create(ctx, o, opts...)
		},
	})
}

func ends(phase v1alpha1.FlushPhase, trimmed int64, message string) func(*v1alpha1.CacheFlush) {
	return func(f *v1alpha1.CacheFlush) {
		f.Status.Phase = phase
		f.Status.Volumes = []v1alpha1.FlushedVolume{{Name: f.Spec.Volume, Node: "n3", TrimmedBytes: &trimmed, Message: message}}
	}
}

func TestTrimOfOneVolume(t *testing.T) {
	older := func(f *v1alpha1.CacheFlush) {
		f.Status.Phase = v1alpha1.FlushComplete
		f.Status.Volumes = []v1alpha1.FlushedVolume{{Name: f.Spec.Volume, Message: "everything is in Ceph"}}
	}
	for name, tc := range map[string]struct {
		how          func(*v1alpha1.CacheFlush)
		volume       *v1alpha1.CacheVolume
		dry          bool
		says, failed string
	}{
		"done":                    {ends(v1alpha1.FlushComplete, 3<<29, ""), unused("a", nil), false, "a (shop/a): 1.5Gi of free space discarded, on node n3", ""},
		"given up":                {ends(v1alpha1.FlushFailed, 1<<30, "given up after 60 s"), unused("a", nil), false, "", "given up after 60 s; 1Gi were discarded"},
		"an older csi-controller": {older, unused("a", nil), false, "", "upgrade it"},
		"attached":                {nil, unused("a", attached), false, "", "stop its pods"},
		"only asked":              {nil, unused("a", nil), true, "would be trimmed", ""},
	} {
		c, out := plugintest.Output()
		err := trim(t.Context(), c, played(t, tc.how, tc.volume), options{volume: "a", timeout: time.Minute, dryRun: tc.dry})
		if (err == nil) != (tc.failed == "") || !strings.Contains(plugintest.ErrorText(err), tc.failed) || !strings.Contains(out.String(), tc.says) {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
}

func TestTrimOfAllSkipsWhatCannotBeTrimmed(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	raw := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeSpec{
		VolumeMode:             &block,
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "c"}},
	}}
	objects := []client.Object{unused("a", nil), unused("b", attached), unused("c", nil), raw, unused("d", nil)}
	how := func(f *v1alpha1.CacheFlush) {
		if f.Spec.Volume == "b" || f.Spec.Volume == "c" {
			t.Errorf("%s is trimmed", f.Spec.Volume)
		}
		ends(v1alpha1.FlushComplete, 1<<20, "")(f)
	}
	f := options{all: true, timeout: time.Minute, parallel: 2}
	c, out := plugintest.Output()
	plugintest.Must(t, trim(t.Context(), c, played(t, how, objects...), f))
	plugintest.Says(t, out.String(), "a (shop/a): 1Mi", "d (shop/d): 1Mi", "b (shop/b): skipped: it is attached to node n1",
		"c (shop/c): skipped: volumeMode Block", "2 of 5 volumes trimmed, 3 skipped")
	c, out = plugintest.Output()
	f.dryRun = true
	plugintest.Must(t, trim(t.Context(), c, played(t, func(*v1alpha1.CacheFlush) { t.Error("it asks for a trim") }, objects...), f))
	plugintest.Says(t, out.String(), "a (shop/a) would be trimmed", "2 of 5 volumes to be trimmed, 3 skipped")
	f.dryRun = false
	c, out = plugintest.Output()
	err := trim(t.Context(), c, played(t, ends(v1alpha1.FlushFailed, 0, "no host can"), objects...), f)
	if failure.ExitCode(err) != failure.Failed {
		t.Errorf("%v", err)
	}
	plugintest.Says(t, out.String(), "a (shop/a): volume a was not trimmed", "0 of 5 volumes trimmed, 3 skipped")
}

func TestFlagsOfTrim(t *testing.T) {
	good := options{volume: "a", timeout: time.Minute, parallel: 2}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*options){
		"nothing named": func(f *options) { f.volume = "" },
		"two named":     func(f *options) { f.all = true },
		"no time":       func(f *options) { f.timeout = 0 },
		"none at once":  func(f *options) { f.parallel = 0 },
	} {
		f := good
		change(&f)
		if err := f.check(); !errors.Is(err, failure.ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
