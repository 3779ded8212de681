//go:build e2e

package chaosdriver

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// The record is not what it was.
func recordRows() []row {
	return []row{
		{when: "record", what: "etcd is restored to before the attach, and the holder is lost", run: restored},
		{when: "record", what: "the NodeGroup is deleted and made anew under a writer", run: groupDeleted},
	}
}

// restored: the record says that Ceph has everything, and the hosts have what Ceph has not. Nothing
// is given to anybody until a person has looked (docs/restore-etcd.md).
func restored(s *scene) {
	s.leaves()
	s.inCeph()
	check(s, s.client.SaveEtcd(s.Context()))
	first := s.lab.Host(s, s.record().Spec.Replicas[0])
	s.use(first)
	s.write()
	epoch, second := s.record().Status.Epoch, s.partner()
	s.watch.pause()
	s.powerOff(first)
	check(s, s.client.RestoreEtcd(s.Context()))
	if v := s.record(); v.Status.Epoch >= epoch || v.Status.Authority != v1alpha1.AuthorityCeph {
		s.Fatalf("the record was not set back: epoch %d, truth in %s", v.Status.Epoch, v.Status.Authority)
	}
	s.pods += 10 // names that neither record has
	s.taint(s, first.Name)
	s.refuses(second, "(?i)later attachment|older than")
	if c := meta.FindStatusCondition(s.record().Status.Conditions, v1alpha1.ConditionRecordBehindDisks); c == nil || c.Status != "True" {
		s.Errorf("the condition is %+v", c)
	}
	s.boot(first)
	s.refuses(first, "(?i)later attachment|older than")
	for _, h := range []*labtest.Host{first, second} {
		if status := s.on(h); status.State != escache.StateStandby {
			s.Errorf("%s has %+v", h.Name, status)
		}
	}
	// What docs/restore-etcd.md says.
	_, err := s.try(s.Context(), "", "patch", "cachevolume", s.volume, "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status":{"epoch":%d,"authority":"Cache","attachedNode":"","outdated":[]}}`, epoch))
	check(s, err)
	s.watch.again()
	s.fault()
	s.takes(first)
	s.whole()
	s.takenOver = false
	s.finish()
}

func groupDeleted(s *scene) {
	s.write()
	var nodes []string
	for _, h := range s.lab.Hosts {
		nodes = append(nodes, h.Name)
	}
	s.fault()
	_, err := s.try(s.Context(), "", "delete", "nodegroup", group, "--timeout=60s")
	check(s, err)
	s.goesOn()
	s.apply(s, fmt.Sprintf("apiVersion: escache.io/v1alpha1\nkind: NodeGroup\nmetadata: {name: %s}\nspec: {nodes: [%s]}\n", group, strings.Join(nodes, ", ")))
	s.world.ready(s)
	s.goesOn()
	s.whole()
	s.finish()
}
