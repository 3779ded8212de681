package uncached

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func TestARecordIsThereUntilItIsDropped(t *testing.T) {
	dir := t.TempDir()
	a := Record{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "a"}, ImageID: "10ab", Epoch: 3}
	b := Record{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "b"}, ImageID: "10cd", Epoch: 1}
	if _, there, err := In(dir).Get(a.VolumeRef); there || err != nil {
		t.Errorf("before: %v %v", there, err)
	}
	for _, r := range []Record{a, b, a} {
		if err := In(dir).Put(r); err != nil {
			t.Fatal(err)
		}
	}
	if got, there, err := In(dir).Get(a.VolumeRef); got != a || !there || err != nil {
		t.Errorf("%+v %v %v", got, there, err)
	}
	if all, err := In(dir).List(); len(all) != 2 || err != nil {
		t.Errorf("%+v %v", all, err)
	}
	for range 2 {
		if err := In(dir).Drop(a.VolumeRef); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := In(dir).List(); len(all) != 1 || all[0] != b || err != nil {
		t.Errorf("after: %+v %v", all, err)
	}
}

// What cannot be read is an error and never "no record": the image may be mapped.
func TestADamagedRecordIsNoMissingOne(t *testing.T) {
	dir := t.TempDir()
	a := Record{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "a"}, Epoch: 3}
	if err := In(dir).Put(a); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(In(dir).path(a.VolumeRef), []byte(`{"pool":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, there, err := In(dir).Get(a.VolumeRef); there || err == nil {
		t.Errorf("get: %v %v", there, err)
	}
	if all, err := In(dir).List(); len(all) != 0 || err == nil {
		t.Errorf("list: %v %v", all, err)
	}
}

func TestHalfWrittenRecordsAreNotListedAndTidiedUp(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(In(dir).dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(In(dir).dir, ".half-1")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := In(dir).List(); len(all) != 0 || err != nil {
		t.Errorf("list: %v %v", all, err)
	}
	if err := In(dir).Tidy(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
}

func TestRecordsThatCannotBeListedAreAnError(t *testing.T) {
	dir := t.TempDir()
	if all, err := In(dir).List(); err != nil || len(all) > 0 {
		t.Errorf("there was none yet: %v, %v", all, err)
	}
	if err := os.WriteFile(In(dir).dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := In(dir).List(); err == nil {
		t.Errorf("no error, and %v", all)
	}
}
