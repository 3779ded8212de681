package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// mover asks for moves, some at a time, and shows what becomes of them.
type mover struct {
	*console.Console

	api      client.Client
	parallel int
	// patient: it also waits for volumes that are attached.
	patient bool

	queue   []placement.Move
	going   map[string]*going
	done    int
	waiting []string // attached: they move later
	failed  []string
}

// going is a move that was asked for.
type going struct {
	to   string
	told string
	// since is when it was asked for. asked: not before.
	since time.Time
	asked bool
}

// judged reports whether the condition is about this request. Where the request was there before, the
// condition may be from before something has changed that it speaks of. csi-controller looks every 5 s.
func (g *going) judged(now time.Time) bool { return g.asked || now.Sub(g.since) > 12*time.Second }

// run makes all moves. It can be interrupted: what was asked for goes on, and another run goes on with the
// rest.
func (m *mover) run(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := console.Poll(ctx, console.PollInterval/2, func() (bool, error) {
		if err := m.look(ctx); err != nil {
			return false, err
		}
		for len(m.queue) > 0 && len(m.going) < m.parallel {
			next := m.queue[0]
			m.queue = m.queue[1:]
			if err := m.start(ctx, next); err != nil {
				return false, err
			}
		}
		return len(m.going)+len(m.queue) == 0, nil
	}, func() error {
		cause := failure.ErrTimeUp
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cause = failure.ErrInterrupted
		}
		return fmt.Errorf("%w: %d moved, %d under way, %d not asked for yet; csi-controller goes on with those under way, and the same "+
			"command with the rest", cause, m.done, len(m.going)+len(m.waiting), len(m.queue))
	})
	if err != nil {
		return err
	}
	if len(m.waiting) > 0 {
		m.Printf("These move when they are detached: %s\n", strings.Join(m.waiting, ", "))
	}
	if len(m.failed) > 0 {
		return fmt.Errorf("not moved: %s", strings.Join(m.failed, ", "))
	}
	return nil
}

func (m *mover) start(ctx context.Context, move placement.Move) error {
	asked, err := askMove(ctx, m.api, move.Volume, move.To.Group)
	switch {
	case errors.Is(err, errMoving):
		m.fail(move.Volume, err.Error())
		return nil
	case err != nil:
		return err
	}
	m.Printf("%s: from group %s to %s\n", move.Volume, move.From, move.To.Group)
	m.going[move.Volume] = &going{to: move.To.Group, since: m.Now(), asked: asked}
	return nil
}

func (m *mover) fail(volume, why string) {
	m.Printf("%s: %s\n", volume, why)
	m.failed = append(m.failed, volume)
}

// look sees what has become of the moves that were asked for.
func (m *mover) look(ctx context.Context) error {
	if len(m.going) == 0 {
		return nil
	}
	all := &v1alpha1.CacheVolumeList{}
	if err := m.api.List(ctx, all); err != nil {
		return err
	}
	left := map[string]*v1alpha1.CacheVolume{}
	for i := range all.Items {
		left[all.Items[i].Name] = &all.Items[i]
	}
	for _, name := range slices.Sorted(maps.Keys(m.going)) {
		if err := m.lookAt(ctx, name, left[name]); err != nil {
			return err
		}
	}
	return nil
}

func (m *mover) lookAt(ctx context.Context, name string, v *v1alpha1.CacheVolume) error {
	g := m.going[name]
	switch {
	case v == nil:
		m.Printf("%s: deleted meanwhile\n", name)
	case v.Spec.Group == g.to && v.Status.Move == nil:
		m.Printf("%s: in group %s\n", name, g.to)
		m.done++
	case trouble.MovingTo(v) != g.to:
		m.fail(name, "somebody has cancelled the move")
	default:
		ended, err := m.goesOn(ctx, v, g)
		if err != nil || !ended {
			return err
		}
	}
	delete(m.going, name)
	return nil
}

// goesOn tells why a volume is not there yet. It reports whether nobody waits for it any more.
func (m *mover) goesOn(ctx context.Context, v *v1alpha1.CacheVolume, g *going) (ended bool, err error) {
	c := trouble.MovingCondition(v)
	if c == nil || c.ObservedGeneration < v.Generation && v.Status.Move == nil {
		return false, nil // it may speak of an earlier request
	}
	if c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonMoveRefused {
		if !g.judged(m.Now()) {
			return false, nil
		}
		if !g.asked {
			m.fail(v.Name, "refused, and the request stays, which was there before (kubectl escache move "+v.Name+
				" --cancel withdraws it): "+c.Message)
			return true, nil
		}
		switch err := unaskMove(ctx, m.api, v.Name); {
		case errors.Is(err, errMoveBegun):
			return false, nil // what it waited for has passed meanwhile
		case err != nil:
			return false, err
		}
		m.fail(v.Name, "refused, and nothing was changed: "+c.Message)
		return true, nil
	}
	if c.Message != g.told && c.Message != "" {
		g.told = c.Message
		m.Printf("%s: %s\n", v.Name, c.Message)
	}
	if !m.patient && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonMoveAttached {
		m.waiting = append(m.waiting, v.Name)
		return true, nil
	}
	return false, nil
}
