package devmapper

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

// mapper asks k and runs no child: run answers instead.
func mapper(k *kernel, run command.RunnerFunc) *Mapper {
	return &Mapper{run: run, control: &control{path: os.DevNull, slot: make(chan struct{}, 1), ask: k.answer}}
}

func TestDevicesOfOtherNamesAndThoseThatVanishAreLeftOut(t *testing.T) {
	k := &kernel{
		names: []string{"escache-a", "other", "escache-gone"}, gone: "escache-gone",
		targets: map[string][3]string{"escache-a": {"linear", "7:0 0", ""}},
	}
	var got []string
	err := mapper(k, nil).Devices(t.Context(), "escache-", func(all map[string]Device) error {
		got = slices.Collect(maps.Keys(all))
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"escache-a"}) {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestChangesRunDmsetupUnderTheVolumesName(t *testing.T) {
	var ran []string
	m := mapper(nil, func(_ context.Context, c command.Command) (command.Result, error) {
		ran = append(ran, c.Volume+": "+c.Name+" "+strings.Join(c.Args, " "))
		return command.Result{}, nil
	})
	ctx := t.Context()
	if err := errors.Join(m.Create(ctx, "v", "d", "0 8 zero"), m.Suspend(ctx, "v", "d"), m.SuspendNoFlush(ctx, "v", "d"),
		m.SuspendNoFreeze(ctx, "v", "d"),
		m.Load(ctx, "v", "d", "0 8 error"), m.Resume(ctx, "v", "d"), m.Message(ctx, "v", "d", "flush", 0), m.Remove(ctx, "v", "d"),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"v: dmsetup create d --table 0 8 zero", "v: dmsetup suspend d", "v: dmsetup suspend --noflush --nolockfs d",
		"v: dmsetup suspend --nolockfs d",
		"v: dmsetup load d --table 0 8 error", "v: dmsetup resume d", "v: dmsetup message d 0 flush", "v: dmsetup remove d",
	}
	if !slices.Equal(ran, want) {
		t.Errorf("ran %q", ran)
	}
}

func TestRemoveDistinguishesAnOpenDeviceFromOneThatIsGone(t *testing.T) {
	for answer, want := range map[string]error{
		"device-mapper: remove ioctl on d failed: No such device or address": nil,
		"device-mapper: remove ioctl on d failed: Device or resource busy":   ErrOpen,
		"Device d is in use.": ErrOpen,
	} {
		m := mapper(nil, func(context.Context, command.Command) (command.Result, error) {
			return command.Result{}, errors.New(answer)
		})
		if err := m.Remove(t.Context(), "v", "d"); !errors.Is(err, want) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
