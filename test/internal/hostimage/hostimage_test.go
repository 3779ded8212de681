package hostimage

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPatternsWithBracesNameSeveralFiles(t *testing.T) {
	tests := map[string][]string{
		"/bin/ip":            {"/bin/ip"},
		"/sbin/{a,b}.sh":     {"/sbin/a.sh", "/sbin/b.sh"},
		"/sbin/{mkfs*,fsck}": {"/sbin/mkfs*", "/sbin/fsck"},
		"/sbin/{broken":      {"/sbin/{broken"},
	}
	for pattern, want := range tests {
		if got := braces(pattern); !slices.Equal(got, want) {
			t.Errorf("%s: %v", pattern, got)
		}
	}
}

func TestAptsAnswerIsReadWithoutWhatIsNeverNeeded(t *testing.T) {
	found, err := parseURIs([]byte(`'http://mirror/pool/l/lvm2_2.03.16-2_amd64.deb' lvm2_2.03.16-2_amd64.deb 1228616 SHA256:0
'http://mirror/pool/libattr1_1%253a2.5.1-4_amd64.deb' libattr1_1%3a2.5.1-4_amd64.deb 22164 SHA256:0
'http://mirror/pool/perl-base_5.36_amd64.deb' perl-base_5.36_amd64.deb 1 SHA256:0
`))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range found {
		names = append(names, p.String())
	}
	if got := strings.Join(names, " "); got != "lvm2=2.03.16-2 libattr1=1:2.5.1-4" {
		t.Errorf("read %q", got)
	}
	if _, err := parseURIs(nil); err == nil {
		t.Error("no answer at all is no error")
	}
}

func TestModulesComeAfterThoseTheyNeed(t *testing.T) {
	k := &kernel{
		files:   map[string]string{"rbd": "k/rbd.ko", "libceph": "k/libceph.ko", "libcrc32c": "k/libcrc32c.ko"},
		needs:   map[string][]string{"k/rbd.ko": {"k/libceph.ko", "k/libcrc32c.ko"}, "k/libceph.ko": {"k/libcrc32c.ko"}},
		builtin: map[string]bool{"ext4": true},
	}
	got, err := k.closure([]string{"rbd", "ext4"})
	if err != nil || !slices.Equal(got, []string{"k/libcrc32c.ko", "k/libceph.ko", "k/rbd.ko"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := k.closure([]string{"no-such"}); err == nil {
		t.Error("an unknown module is no error")
	}
}

func TestAFileComesWithItsLinksAndLibraries(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, root := range []string{from, to} {
		if err := mergedTree(root); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(from, "usr/sbin/real")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(from, "usr/sbin/alias")); err != nil {
		t.Fatal(err)
	}
	tree := &tree{from: from, to: to, done: map[string]bool{}}
	if err := tree.add("/sbin/alias"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(to, "sbin/alias"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", info, err)
	}
	if err := tree.add("/sbin/absent*"); err == nil {
		t.Error("a pattern that names nothing is no error")
	}
	if _, err := tree.library("libabsent.so.1"); err == nil {
		t.Error("a library that no package brings is no error")
	}
}

func TestAnotherFlavourIsAnotherImage(t *testing.T) {
	key := func(change func(*Flavour)) string {
		flavour := Base()
		change(&flavour)
		key, err := imageKey(flavour, []debian{{name: "lvm2", version: "1"}})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	extra := t.TempDir()
	if err := os.WriteFile(filepath.Join(extra, "file"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	keys := []string{
		key(func(*Flavour) {}),
		key(func(f *Flavour) { f.Files = append(f.Files, "/bin/x") }),
		key(func(f *Flavour) { f.HookKey = "1" }),
		key(func(f *Flavour) { f.Extra = []Extra{{Source: extra, Path: "/x"}} }),
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 4 {
		t.Errorf("flavours share a key: %v", keys)
	}
	if again := key(func(*Flavour) {}); !slices.Contains(keys, again) {
		t.Error("the same flavour has two keys")
	}
}
