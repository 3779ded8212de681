package lvm

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

type fakeRunner struct {
	calls [][]string
	out   string
	err   error
}

func (f *fakeRunner) Run(_ context.Context, c command.Command) (command.Result, error) {
	f.calls = append(f.calls, append([]string{c.Name}, c.Args...))
	return command.Result{Stdout: []byte(f.out)}, f.err
}

func TestTagsCarryAnyName(t *testing.T) {
	for _, value := range []string{"", "plain", "-x", "mit Leerzeichen", "a,b", "größe", "a+b=c", "100%", "x/y", "\x01\xff"} {
		tag := encodeTag("image", value)
		if strings.ContainsFunc(tag, func(r rune) bool { return r > 126 || r < 33 || strings.ContainsRune(`,"'%\`, r) }) {
			t.Errorf("%q: LVM would refuse %q", value, tag)
		}
		if key, got, ok := decodeTag(tag); !ok || key != "image" || got != value {
			t.Errorf("%q came back as %q, %q, %v", value, key, got, ok)
		}
	}
	for _, tag := range []string{"", "other", "escache.", "escache.x", "escache.x=+", "escache.x=+4", "escache.x=+zz", "escache.=v"} {
		if _, _, ok := decodeTag(tag); ok {
			t.Errorf("%q is not a tag of ours", tag)
		}
	}
}

func TestVolumesListsOnlyTaggedOnes(t *testing.T) {
	f := &fakeRunner{out: `{"report":[{"lv":[
		{"lv_name":"root","lv_size":"104857600","lv_active":"active","lv_tags":"mine"},
		{"lv_name":"escache-1","lv_size":"67108864","lv_active":"","lv_tags":"escache.pool=rbd,other,escache.image=a+20b"}]}]}`}
	got, err := New("vg", f).Volumes(t.Context(), true)
	want := []Volume{{Name: "escache-1", Bytes: 67108864, Tags: map[string]string{"pool": "rbd", "image": "a b"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if !slices.Contains(f.calls[0], "--readonly") {
		t.Fatalf("a read-only listing must not take LVM's lock: %q", f.calls[0])
	}
}

func TestRetagChangesOnlyTheDifference(t *testing.T) {
	f := &fakeRunner{}
	g := New("vg", f)
	from := map[string]string{"epoch": "1", "pool": "rbd"}
	if err := g.Retag(t.Context(), "lv", from, from); err != nil || len(f.calls) != 0 {
		t.Fatalf("nothing to change must run nothing: %q, %v", f.calls, err)
	}
	if err := g.Retag(t.Context(), "lv", from, map[string]string{"epoch": "2", "pool": "rbd"}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(f.calls[0], " ")
	if !strings.HasPrefix(got, "lvm lvchange --deltag escache.epoch=1 --addtag escache.epoch=2 vg/lv --config ") {
		t.Fatal(got)
	}
}

func TestErasesAPieceOrTheRest(t *testing.T) {
	f := &fakeRunner{}
	g := New("vg", f)
	for _, size := range []int64{4096, 0} {
		if err := g.Erase(t.Context(), "lv", 8192, size); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"blkdiscard --zeroout --step 64MiB --offset 8192 --length 4096 /dev/vg/lv", "blkdiscard --zeroout --step 64MiB --offset 8192 /dev/vg/lv"} {
		if got := strings.Join(f.calls[i], " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestErrorsThatCallersDecideBy(t *testing.T) {
	f := &fakeRunner{err: &command.ExitError{
		Command: "lvm", Code: 5, Stderr: `Volume group "vg" has insufficient free space (1 extents): 2 required.`,
	}}
	if err := New("vg", f).Create(t.Context(), "a", 1, nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("want ErrNoRoom, got %v", err)
	}
	f.err = &command.ExitError{Command: "lvm", Code: 5, Stderr: `Failed to find logical volume "vg/a"`}
	if was, err := New("vg", f).Remove(t.Context(), "a"); was || err != nil {
		t.Errorf("removing what is not there must succeed, got %v, %v", was, err)
	}
	f.err = &command.ExitError{Command: "lvm", Code: 5, Stderr: `Volume group "vg" not found`}
	if _, err := New("vg", f).Space(t.Context()); !errors.Is(err, ErrNoGroup) {
		t.Errorf("want ErrNoGroup, got %v", err)
	}
}

func TestSeveralVolumesAreActivatedByOneCommand(t *testing.T) {
	f := &fakeRunner{}
	if err := New("vg", f).Activate(t.Context(), "a", "b"); err != nil || len(f.calls) != 1 {
		t.Fatalf("%q, %v", f.calls, err)
	}
	if got := strings.Join(f.calls[0], " "); !strings.HasPrefix(got, "lvm lvchange --activate y vg/a vg/b --config ") {
		t.Error(got)
	}
}

// What lvm2 2.03.16 of Debian 12 prints, without most of its configuration.
const versionOutput = "  LVM version:     2.03.16(2) (2022-05-18)\n" +
	"  Library version: 1.02.185 (2022-05-18)\n" +
	"  Configuration:   ./configure --build=x86_64-linux-gnu --prefix=/usr\n"

func TestVersionIsThatOfLVMAndNotOfItsLibrary(t *testing.T) {
	f := &fakeRunner{out: versionOutput}
	if got, err := New("vg", f).Version(t.Context()); got != "2.03.16" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	f.out = "  Library version: 1.02.185 (2022-05-18)\n"
	if got, err := New("vg", f).Version(t.Context()); err == nil {
		t.Errorf("there is none, and it is %q", got)
	}
}
