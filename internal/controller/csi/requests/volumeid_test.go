package requests_test

import (
	"testing"

	"github.com/escache/escache-csi/internal/controller/csi/requests"
)

func TestVolumeIDs(t *testing.T) {
	for name, id := range map[string]string{
		"pvc-5e5c0c4e": "pvc-5e5c0c4e", "a": "a", "x-ray": "x-", "UPPER": "x-", "with space": "x-", "-dash": "x-", "ü": "x-",
		"a.dot": "x-", "0123456789012345678901234567890123456789012345678901234567890123": "x-",
	} {
		got := requests.VolumeID(name)
		if got != id && (id != "x-" || len(got) != 34 || got[:2] != "x-") {
			t.Errorf("%q became %q", name, got)
		}
	}
	if requests.VolumeID("A") == requests.VolumeID("B") {
		t.Error("two names, one id")
	}
}
