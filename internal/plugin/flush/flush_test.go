package flush

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// csi-controller counts from when it has begun, so it gives up after the command's own time has passed. The command waits for what
// it has to say.
func TestAFlushThatIsGivenUpSaysSo(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		code  int
	}{
		"given up when the time is over": {time.Minute + 5*time.Second, failure.TimeUp},
		"failed before":                  {30 * time.Second, failure.Failed},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := plugintest.Cluster(t)
			f := &v1alpha1.CacheFlush{Spec: v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeFlush}}
			f.Name = "volume-1"
			plugintest.Must(t, api.Create(t.Context(), f))
			go func() {
				time.Sleep(tc.after)
				has := &v1alpha1.CacheFlush{}
				_ = api.Get(context.Background(), client.ObjectKeyFromObject(f), has)
				has.Status.Phase = v1alpha1.FlushFailed
				has.Status.Conditions = []metav1.Condition{{
					Type: v1alpha1.FlushConditionComplete, Status: metav1.ConditionFalse, Reason: "VolumesFailed",
					Message: "given up after 60 s with 4 MiB dirty",
				}}
				_ = api.Update(context.Background(), has)
			}()
			c, _ := plugintest.Output()
			c.Now = time.Now
			err := waitFor(t.Context(), c, api, f.Name, options{timeout: time.Minute})
			if err == nil || failure.ExitCode(err) != tc.code || !strings.Contains(err.Error(), "4 MiB dirty") {
				t.Errorf("%s: exit code %d: %v", name, failure.ExitCode(err), err)
			}
		})
	}
}

// A drain goes on without the command.
func TestTheTimeOfADrainIsTheCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := plugintest.Cluster(t)
		f := &v1alpha1.CacheFlush{Spec: v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeDrain}}
		f.Name = "volume-1"
		plugintest.Must(t, api.Create(t.Context(), f))
		c, _ := plugintest.Output()
		c.Now = time.Now
		begin := time.Now()
		err := waitFor(t.Context(), c, api, f.Name, options{timeout: time.Minute, drain: true})
		if !errors.Is(err, failure.ErrTimeUp) || !strings.Contains(err.Error(), "goes on without you") || time.Since(begin) > time.Minute+5*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}
