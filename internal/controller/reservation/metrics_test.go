package reservation

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/internal/placement"
)

// TestACordonedGroupSaysNothingOfItsRoom: it takes no volumes, however much room it has. An alert about too little room
// would be wrong.
func TestACordonedGroupSaysNothingOfItsRoom(t *testing.T) {
	for _, cordoned := range []bool{false, true} {
		b := newBook(t, 3)
		g := placement.Group{Name: "g", Cordoned: cordoned}
		for _, n := range []string{"n1", "n2", "n3"} {
			g.Members = append(g.Members, placement.Member{Name: n, Ready: true, CapacityBytes: 1000})
		}
		if err := b.SetGroup(g, nil); err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(NewCollector(b))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		said := false
		for _, f := range families {
			said = said || f.GetName() == "escache_placement_group_largest_cache_bytes"
		}
		if said == cordoned {
			t.Errorf("cordoned %v: says what room it has: %v", cordoned, said)
		}
	}
}
