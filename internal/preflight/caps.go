package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/shortlist"
)

// CephUser is one of the two users that the driver has in a Ceph cluster.
type CephUser struct {
	ClusterID string
	// Hosts means that it is the user of the hosts, which only maps images, and not the one of csi-controller.
	Hosts bool
	// Rights asks Ceph what the user may do in pools.
	Rights func(ctx context.Context, pools []string) (Rights, error)
}

// Rights are what Ceph lets a user do; internal/rbd has a type with the same fields, which says what they mean.
type Rights struct {
	User                                string
	Statistics, Applications, Blocklist bool
	Keys                                bool
	Writable, Refused, Missing          []string
	Other                               []string
}

// capsTimeout is longer than Ceph may take to answer for a user of each kind.
const capsTimeout = 90 * time.Second

// caps checks that each Ceph user has the capabilities that it needs, and no others as far as that can be seen.
func (c *Cluster) caps(ctx context.Context) []checklist.Result {
	if len(c.CephUsers) == 0 {
		return nil // and it may be run before there are CRDs
	}
	classes, used := &storagev1.StorageClassList{}, &inUse{}
	for _, list := range []client.ObjectList{classes, &used.volumes, &used.snapshots, &used.readOnly} {
		if err := c.API.List(ctx, list); err != nil && !meta.IsNoMatchError(err) { // a missing CRD has a check of its own
			return []checklist.Result{unread(err)}
		}
	}
	var results []checklist.Result
	for _, user := range c.CephUsers {
		name := "Ceph user of csi-controller"
		if user.Hosts {
			name = "Ceph user of hosts"
		}
		pools, made := poolsOf(classes.Items, user.ClusterID)
		pools = slices.Concat(pools, used.pools(user.ClusterID))
		slices.Sort(pools)
		for _, r := range user.check(ctx, slices.Compact(pools), made) {
			results = append(results, r.Of(name))
		}
	}
	return results
}

// check checks the user's capabilities for these pools, of which the driver may make some itself.
func (u CephUser) check(ctx context.Context, pools, made []string) []checklist.Result {
	if len(pools) == 0 {
		return []checklist.Result{checklist.Badf(checklist.Unknown, "make a StorageClass (docs/parameters.md), and repeat it",
			"not checked: no StorageClass names a pool of the Ceph cluster %s", u.ClusterID)}
	}
	r, err := u.Rights(ctx, pools)
	if err != nil {
		return []checklist.Result{checklist.Badf(checklist.Failed,
			"see that the Secret has the keyring of a user that Ceph knows, that Ceph answers (ceph -s), and give the user its caps: "+
				u.capsFor("client.NAME", pools, made), "%v", err)}
	}
	var results []checklist.Result
	missing := slices.DeleteFunc(slices.Clone(r.Missing), func(pool string) bool { return slices.Contains(made, pool) })
	if len(missing) > 0 && !u.Hosts {
		results = append(results, checklist.Badf(checklist.Failed,
			"make them (ceph osd pool create POOL; rbd pool init POOL), or name others in the StorageClass",
			"pools that are not there: %s", shortlist.Of(missing)))
	}
	if lacks := u.lacks(r); len(lacks) > 0 {
		results = append(results, checklist.Badf(checklist.Failed,
			u.capsFor(r.User, pools, made),
			"Ceph refuses %s what it needs: %s", r.User, strings.Join(lacks, ", ")))
	}
	if beyond := u.beyond(r); len(beyond) > 0 {
		results = append(results, checklist.Badf(checklist.Warning,
			"if nothing else needs it: "+u.capsFor(r.User, pools, made),
			"%s may do more than it needs: %s", r.User, strings.Join(beyond, ", ")))
	}
	if len(results) == 0 {
		return []checklist.Result{checklist.Goodf("%s may do what it needs in pool %s", r.User, shortlist.Of(pools))}
	}
	return results
}

// poolsOf are the pools that StorageClasses name, and those of them that the driver may make itself.
func poolsOf(classes []storagev1.StorageClass, clusterID string) (pools, made []string) {
	for _, class := range classes {
		if class.Provisioner != v1alpha1.DriverName {
			continue
		}
		p, err := storageclass.Parse(class.Parameters)
		if err != nil || p.ClusterID != clusterID { // the check of StorageClasses says what is wrong
			continue
		}
		for _, pool := range []string{p.Pool, p.DataPool} {
			if pool != "" && !slices.Contains(pools, pool) {
				pools = append(pools, pool)
			}
		}
		if p.CreatePool {
			made = append(made, p.Pool)
		}
	}
	return pools, made
}

// inUse has what has images in Ceph. Its StorageClass may be gone.
type inUse struct {
	volumes   v1alpha1.CacheVolumeList
	snapshots v1alpha1.CacheSnapshotList
	readOnly  v1alpha1.ReadOnlyVolumeList
}

func (u *inUse) pools(clusterID string) (pools []string) {
	add := func(ofCluster string, all ...string) {
		if ofCluster == clusterID {
			pools = append(pools, all...)
		}
	}
	for i := range u.volumes.Items {
		s := &u.volumes.Items[i].Spec
		add(s.ClusterID, s.Pool, s.DataPool)
	}
	for i := range u.snapshots.Items {
		s := &u.snapshots.Items[i].Spec
		add(s.ClusterID, s.Pool)
	}
	for i := range u.readOnly.Items {
		s := &u.readOnly.Items[i].Spec
		add(s.ClusterID, s.Pool, s.DataPool)
	}
	return slices.DeleteFunc(pools, func(pool string) bool { return pool == "" })
}

// lacks names what the user needs and may not.
func (u CephUser) lacks(r Rights) (all []string) {
	for _, command := range []struct {
		may  bool
		what string
	}{
		{u.Hosts || r.Blocklist, "mon osd blocklist rm"},
		{u.Hosts || r.Applications, "mon osd pool application get"},
		{u.Hosts || r.Statistics, "mon df"},
	} {
		if !command.may {
			all = append(all, command.what)
		}
	}
	if len(r.Refused) > 0 {
		all = append(all, "writing in pool "+shortlist.Of(r.Refused))
	}
	return all
}

// beyond names what the user may and does not need.
func (u CephUser) beyond(r Rights) (all []string) {
	if r.Keys {
		all = append(all, "reading the keys of all users")
	}
	if u.Hosts && r.Blocklist {
		all = append(all, "taking clients off the blocklist, so that a host that is shut out could let itself in")
	}
	if len(r.Other) > 0 {
		all = append(all, "writing in other pools, such as "+shortlist.Of(r.Other))
	}
	return all
}

// capsFor is the command that gives a user what docs/security.md says, and what no object tells: an image that was deleted
// stays while clones or snapshots need it.
func (u CephUser) capsFor(user string, pools, made []string) string {
	mon := "profile rbd"
	if !u.Hosts {
		mon += `, allow command "osd blocklist", allow command "osd pool application get", allow command "df"`
	}
	if !u.Hosts && len(made) > 0 {
		mon += `, allow command "osd pool create", allow command "osd pool application enable"`
	}
	var osd []string
	for _, pool := range pools {
		osd = append(osd, "profile rbd pool="+pool)
	}
	return fmt.Sprintf("ceph auth caps %s mon '%s' osd '%s' (it replaces all caps of the user, docs/security.md: keep the pools in "+
		"ceph auth get %s that snapshots or clones of deleted volumes need)", user, mon, strings.Join(osd, ", "), user)
}
