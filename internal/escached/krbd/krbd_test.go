package krbd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/child"
)

func TestMonHostInAllItsForms(t *testing.T) {
	lookup := func(host string) ([]string, error) {
		if host == "mon.example" {
			return []string{"192.0.2.7"}, nil
		}
		return nil, errors.New("no such host")
	}
	for value, want := range map[string]string{
		"10.0.0.1":                "10.0.0.1:6789",
		"10.0.0.1:6790, 10.0.0.2": "10.0.0.1:6790 10.0.0.2:6789",
		"v1:10.0.0.1:26789":       "10.0.0.1:26789",
		"[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] [v2:10.0.0.2:3300/0,v1:10.0.0.2:6789/0]": "10.0.0.1:6789 10.0.0.2:6789",
		"[fd00::1]:6789":                        "[fd00::1]:6789",
		"[v2:[fd00::1]:3300,v1:[fd00::1]:6789]": "[fd00::1]:6789",
		"mon.example":                           "192.0.2.7:6789",
		"10.0.0.1;10.0.0.2":                     "10.0.0.1:6789 10.0.0.2:6789",
	} {
		got, err := parseMonHost(value, lookup)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "v2:10.0.0.1:3300", "10.0.0.1:3300", "nowhere.example"} {
		if got, err := parseMonHost(value, lookup); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: got %q, %v", value, got, err)
		}
	}
}

type fakeSysfs struct {
	path string
	data string
	err  error
	then func()
}

func (f *fakeSysfs) WriteSysfs(_ context.Context, _, path string, data []byte, _ time.Duration) error {
	f.path, f.data = path, string(data)
	if f.err == nil && f.then != nil {
		f.then()
	}
	return f.err
}

func files(t *testing.T, dir string, content map[string]string) {
	t.Helper()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func device(id, name, config string) map[string]string {
	dir := "bus/rbd/devices/" + id + "/"
	return map[string]string{
		dir + "pool": "rbd\n", dir + "name": name + "\n", dir + "image_id": "10ab\n", dir + "size": "1048576\n",
		"block/rbd" + id + "/dev": "252:" + id + "\n",
		dir + "client_addr":       "10.0.0.11:0/42\n", dir + "config_info": config + "\n", dir + "current_snap": "-\n",
	}
}

func newClient(t *testing.T) (*Client, *fakeSysfs, string) {
	dir := t.TempDir()
	files(t, dir, map[string]string{
		"ceph.conf": "[global]\n# mon host = 1.1.1.1\nfsid = x\nmon host = v1:10.0.0.1:6789 # the one\n",
		"keyring":   "[mon.]\n\tkey = other==\n[client.csi]\n\tkey = c2VjcmV0==\n\tcaps mon = \"profile rbd\"\n",
	})
	w := &fakeSysfs{}
	c := New(Config{Conf: filepath.Join(dir, "ceph.conf"), Keyring: filepath.Join(dir, "keyring"), User: "csi", Sys: dir}, w)
	c.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("unreachable") }
	return c, w, dir
}

func TestMapIsExclusiveAndFindsItsDevice(t *testing.T) {
	c, w, dir := newClient(t)
	files(t, dir, device("0", "other", "… exclusive,noshare …"))
	files(t, dir, device("1", "vol", "10.0.0.1:6789 name=admin rbd vol -")) // mapped by hand, shared
	w.then = func() { files(t, dir, device("2", "vol", "… name=csi,secret=<hidden>,exclusive,noshare rbd vol -")) }
	got, err := c.Map(t.Context(), "v", "rbd", "vol")
	want := Device{ID: 2, Pool: "rbd", Image: "vol", ImageID: "10ab", Bytes: 1 << 20, Number: "252:2", ClientAddress: "10.0.0.11:0/42"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if w.data != "10.0.0.1:6789 name=csi,secret=c2VjcmV0==,"+options+" rbd vol -" {
		t.Fatalf("wrote %q", w.data)
	}
}

// A map for a filesystem is exclusive, too, and only differs in how discards are cut.
func TestAMapForAFilesystemDiscardsWholeObjects(t *testing.T) {
	c, w, dir := newClient(t)
	w.then = func() {
		files(t, dir, device("2", "vol", "10.0.0.1:6789 name=csi,secret=<hidden>,"+filesystemOptions+" rbd vol -"))
	}
	got, err := c.MapForFilesystem(t.Context(), "v", "rbd", "vol")
	if err != nil || got.ReadOnly || got.ID != 2 || got.ClientAddress == "" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if w.data != "10.0.0.1:6789 name=csi,secret=c2VjcmV0==,"+options+",alloc_size=4194304 rbd vol -" {
		t.Fatalf("wrote %q", w.data)
	}
}

func TestAReadOnlyMapIsTold(t *testing.T) {
	c, w, dir := newClient(t)
	files(t, dir, device("1", "ro", "10.0.0.1:6789 name=csi,secret=<hidden>,"+options+" ro ro -")) // a name is no option
	w.then = func() {
		files(t, dir, device("2", "vol", "10.0.0.1:6789 name=csi,secret=<hidden>,"+readOnlyOptions+" rbd vol -"))
	}
	got, err := c.MapReadOnly(t.Context(), "v", "rbd", "vol")
	if err != nil || !got.ReadOnly || got.ID != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if w.data != "10.0.0.1:6789 name=csi,secret=c2VjcmV0==,"+readOnlyOptions+" rbd vol -" {
		t.Errorf("wrote %q", w.data)
	}
	if all, err := c.Find("", "ro"); err != nil || len(all) != 1 || all[0].ReadOnly {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestMapErrorsSayWhatToDo(t *testing.T) {
	for err, want := range map[error]error{
		syscall.EROFS:               ErrInUse,
		syscall.ENOENT:              ErrNotFound,
		syscall.ETIMEDOUT:           ErrUnavailable,
		syscall.EIO:                 ErrUnavailable,
		syscall.EPERM:               ErrRefused,
		&command.TimeoutError{}:     ErrUnavailable,
		&command.StuckError{Pid: 1}: nil,
	} {
		c, w, _ := newClient(t)
		w.err = err
		_, got := c.Map(t.Context(), "v", "rbd", "vol")
		if want != nil && !errors.Is(got, want) || want == nil && !errors.Is(got, err) {
			t.Errorf("%v: got %v", err, got)
		}
		if strings.Contains(got.Error(), "c2VjcmV0") {
			t.Errorf("the secret leaked: %v", got)
		}
	}
	c, w, _ := newClient(t)
	w.err = syscall.ETIMEDOUT
	c.dial = func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	if _, err := c.Map(t.Context(), "v", "rbd", "vol"); !errors.Is(err, ErrInUse) {
		t.Errorf("monitors answer, so it is the lock: %v", err)
	}
}

func TestUnmap(t *testing.T) {
	for err, want := range map[error]error{nil: nil, syscall.ENOENT: nil, syscall.EBUSY: ErrBusy} {
		c, w, _ := newClient(t)
		w.err = err
		if got := c.Unmap(t.Context(), "v", 3); !errors.Is(got, want) {
			t.Errorf("%v: got %v", err, got)
		}
		if w.data != "3" || !strings.HasSuffix(w.path, "remove_single_major") {
			t.Errorf("wrote %q to %s", w.data, w.path)
		}
	}
}

func TestACommandThatMayMapAnImageIsRecognised(t *testing.T) {
	c, _, _ := newClient(t)
	var stuck *command.StuckError
	c.write = child.NewClient(command.RunnerFunc(func(_ context.Context, run command.Command) (command.Result, error) {
		stuck = &command.StuckError{Command: run.String()}
		return command.Result{}, stuck
	}))
	if _, err := c.Map(t.Context(), "v", "rbd", "vol"); !errors.Is(err, command.ErrStuck) || !MayMap(stuck) {
		t.Errorf("map: %v", err)
	}
	if err := c.Unmap(t.Context(), "v", 1); !errors.Is(err, command.ErrStuck) || !MayMap(stuck) {
		t.Errorf("unmap: %v", err)
	}
	if MayMap(nil) || MayMap(&command.StuckError{Command: "drbdadm adjust"}) {
		t.Error("another command is taken for one")
	}
}

// A host with too many open files must not look like one without maps.
func TestMapsThatCannotBeListedAreAnError(t *testing.T) {
	c, _, dir := newClient(t)
	if all, err := c.Find("", ""); err != nil || len(all) > 0 {
		t.Errorf("krbd is not loaded: %v, %v", all, err)
	}
	files(t, dir, map[string]string{"bus/rbd/devices": "no directory"})
	if all, err := c.Find("", ""); err == nil {
		t.Errorf("no error, and %v", all)
	}
}
