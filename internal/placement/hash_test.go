package placement

import (
	"fmt"
	"testing"
)

// Where a volume goes must not depend on the version of the driver: a decision that was lost in a
// crash is made again.
func TestHashIsFNV1a(t *testing.T) {
	// The vectors are from the authors of FNV: http://www.isthe.com/chongo/tech/comp/fnv/
	for text, want := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		if got := hash(text); got != want {
			t.Errorf("hash of %q is %#x, want %#x", text, got, want)
		}
	}
}

func TestEqualGroupsGetTheSameVolumesInEveryVersion(t *testing.T) {
	s := New()
	for _, group := range []string{"rack-1", "rack-2", "rack-3"} {
		var members []Member
		for n := range 3 {
			members = append(members, Member{Name: fmt.Sprintf("%s-n%d", group, n+1), Ready: true, CapacityBytes: 1 << 40})
		}
		if err := s.SetGroup(Group{Name: group, Members: members}); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{
		"rack-2-n1 rack-2-n3",
		"rack-3-n1 rack-3-n3",
		"rack-3-n3 rack-3-n2",
		"rack-3-n1 rack-3-n2",
		"rack-2-n2 rack-2-n3",
		"rack-2-n2 rack-2-n3",
		"rack-2-n3 rack-2-n1",
		"rack-2-n3 rack-2-n2",
	} {
		got, err := s.Decide(Request{Volume: fmt.Sprintf("pvc-%d", i+1), CacheBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if text := got.Primary + " " + got.Partner; text != want {
			t.Errorf("pvc-%d is placed on %s, want %s", i+1, text, want)
		}
	}
}
