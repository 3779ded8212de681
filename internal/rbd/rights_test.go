package rbd

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
)

// TestRightsAreWhatTheCapsGive has a real Ceph answer users with several capabilities.
func TestRightsAreWhatTheCapsGive(t *testing.T) {
	mine, other := newPool(t), newPool(t)
	const docs = `profile rbd, allow command "osd blocklist", allow command "osd pool application get", allow command "df"`
	may := func(change func(*Rights)) Rights {
		r := Rights{Statistics: true, Applications: true, Blocklist: true, Writable: []string{mine}, Missing: []string{"no-such-pool"}}
		change(&r)
		return r
	}
	refused := func(r *Rights) { r.Writable, r.Refused = nil, []string{mine} }
	for name, c := range map[string]struct {
		mon, osd string
		want     Rights
	}{
		"what docs/security.md gives csi-controller": {docs, "profile rbd pool=" + mine, may(func(*Rights) {})},
		"what it gives hosts":                        {"profile rbd", "profile rbd pool=" + mine, may(func(r *Rights) { r.Blocklist = false })},
		"another pool":                               {docs, "profile rbd pool=" + other, may(func(r *Rights) { refused(r); r.Other = []string{other} })},
		"reading only":                               {docs, "profile rbd-read-only pool=" + mine, may(refused)},
		"no librbd methods":                          {docs, "allow rw pool=" + mine, may(refused)},
		"all pools":                                  {docs, "profile rbd", may(func(r *Rights) { r.Other = []string{other} })},
		"everything":                                 {"allow *", "allow *", may(func(r *Rights) { r.Keys = true; r.Other = []string{other} })},
	} {
		t.Run(name, func(t *testing.T) {
			user := "client.rights-" + strings.ReplaceAll(name, " ", "-")
			user = strings.NewReplacer("/", "-", ".md", "", "'", "").Replace(user)
			ring := ceph.User(t, user, map[string]string{"mon": c.mon, "osd": c.osd})
			cluster := open(t, ceph, Options{Dir: configDir(t, ceph.Conf(), ring)})
			got, err := cluster.Rights(t.Context(), []string{mine, "no-such-pool"})
			must(t, err)
			// Other tests have pools, too.
			got.Other = slices.DeleteFunc(got.Other, func(pool string) bool { return pool != other })
			if c.want.User = user; len(got.Other) == 0 {
				got.Other = nil
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
	admin := open(t, ceph, Options{})
	for _, pool := range []string{mine, other} {
		inPool(t, admin, pool, func(io *rados.IOContext) error {
			return io.ListObjects(func(object string) {
				if strings.HasPrefix(object, "escache-preflight-") {
					t.Errorf("pool %s: the object %s is there now", pool, object)
				}
			})
		})
	}
	entries, err := admin.Blocklist(t.Context())
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Address, "192.0.2.1:") {
			t.Errorf("%s is on the blocklist now", e.Address)
		}
	}
}
