package orphans

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// LeftInTrash finds two images of one name in the pool of the cluster "ceph".
func (c oneCluster) LeftInTrash(_ context.Context, clusterID, pool, prefix string) (left []Trashed, _ error) {
	if clusterID != "ceph" {
		return nil, errors.New("no such cluster: " + clusterID)
	}
	for _, id := range []string{"20cd", "10ab"} {
		left = append(left, Trashed{
			Image: Image{Pool{clusterID, pool}, prefix + "lost"}, ID: id, Since: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC),
		})
	}
	return left, nil
}

func TestWhatSomebodyHasMovedToTheTrashIsToldAndIsNoOrphan(t *testing.T) {
	s := search(t, true)
	s.Trash = oneCluster{}
	found, err := s.Find(t.Context())
	if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "list the trash of pool rbd of cluster no-such") {
		t.Errorf("error %v", err)
	}
	if len(found.Trashed) != 2 || found.Trashed[0].ID != "10ab" || found.Trashed[1].ID != "20cd" || len(found.Images) != 2 {
		t.Fatalf("found %+v", found)
	}
	says := found.Trashed[0].State()
	for _, words := range []string{"escache-lost (ID 10ab)", "since 2027-03-01T12:00:00Z", "rbd trash restore --pool rbd 10ab", "rbd trash rm --pool rbd 10ab"} {
		if !strings.Contains(says, words) {
			t.Errorf("it does not say %q: %s", words, says)
		}
	}
	if found, err := search(t, false).Find(t.Context()); err != nil || found.Trashed != nil {
		t.Errorf("nobody is to look into the trash: %+v, %v", found.Trashed, err)
	}
}
