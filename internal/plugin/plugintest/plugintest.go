// Package plugintest helps to test the commands of kubectl-escache: a console without a terminal,
// an API server in memory, and files with what is expected.
package plugintest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// Noon is when the tests take place.
var Noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// AtNoon is a clock that stands still.
func AtNoon() time.Time { return Noon }

// Console returns a console that prints to out, and nobody types on.
func Console(out io.Writer, now func() time.Time) *console.Console {
	c := console.New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: &bytes.Buffer{}})
	c.Now = now
	return c
}

// Output returns a console at noon, and what it prints.
func Output() (*console.Console, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return Console(out, AtNoon), out
}

// Golden compares got with a file in testdata. UPDATE_GOLDEN=1 writes the file.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; UPDATE_GOLDEN=1 writes it anew. Got:\n%s\nwant:\n%s", path, got, want)
	}
}

// Must ends the test if there is an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Says fails the test for each part that the text lacks.
func Says(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
	}
}

// ErrorText is what the user reads of an error, if there is one.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return failure.Message(err)
}

// Cluster is an API server with the volume pvc-1, which was made for user/shared, and with more.
// The volume's first PersistentVolume is gone; the one of today, "again", belongs to the claim
// user/static.
func Cluster(t *testing.T, more ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-1", Annotations: map[string]string{v1alpha1.AnnotationClaim: "user/shared"},
	}}
	v.Status.Phase = v1alpha1.VolumeReady
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "pvc-1"}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "user", Name: "static"}
	pv.Status.Phase = corev1.VolumeBound
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(more, v, pv)...).
		WithIndex(&eventsv1.Event{}, "reason", func(o client.Object) []string {
			if e, is := o.(*eventsv1.Event); is {
				return []string{e.Reason}
			}
			return nil
		}).Build()
}
