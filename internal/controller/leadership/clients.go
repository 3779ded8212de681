package leadership

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/util/retry"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// clientsAnnotation on the Lease holds the addresses of its holder's Ceph clients, and of those of
// earlier holders that are not fenced yet: a JSON object with a list for each Ceph cluster.
const clientsAnnotation = "escache.io/ceph-clients"

// Clients stops what earlier leaders began in Ceph. Lease.Check keeps a leader that was paused from
// beginning anything new, but what it began inside librbd would go on after the pause, and could
// create images that have no record. So every leader records its Ceph clients before it uses them,
// and fences those of earlier leaders before it uses its own.
type Clients struct {
	leases   coordinationv1.LeaseInterface
	name     string
	identity string

	mu  sync.Mutex // held for all of Admit, so that no two of this leader's clients fence or forget the same ones
	own map[string]bool
}

// NewClients returns Clients that keep the record in the Lease called name, while identity holds
// it.
func NewClients(leases coordinationv1.LeaseInterface, name, identity string) *Clients {
	return &Clients{leases: leases, name: name, identity: identity, own: map[string]bool{}}
}

// Admit returns nil if the client may be used: its address is on record, and fence has fenced the
// clients of earlier leaders at that Ceph cluster. The error is ErrUnavailable if this process does
// not lead.
func (c *Clients) Admit(ctx context.Context, cluster, address string, fence func(earlier []string) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own[address] = true
	var earlier []string
	err := c.change(ctx, func(record map[string][]string) {
		earlier = slices.DeleteFunc(slices.Clone(record[cluster]), func(a string) bool { return c.own[a] })
		if !slices.Contains(record[cluster], address) {
			record[cluster] = append(record[cluster], address)
		}
	})
	if err != nil {
		return fmt.Errorf("put Ceph client %s on record: %w", address, err)
	}
	if len(earlier) == 0 {
		return nil
	}
	if err := fence(earlier); err != nil {
		return fmt.Errorf("fence Ceph clients %v of an earlier leader: %w", earlier, err)
	}
	err = c.change(ctx, func(record map[string][]string) {
		record[cluster] = slices.DeleteFunc(record[cluster], func(a string) bool { return slices.Contains(earlier, a) })
	})
	if err != nil {
		return fmt.Errorf("take fenced Ceph clients off the record: %w", err)
	}
	return nil
}

// change updates the record, if this process holds the lease and nobody has written it since it was
// read.
func (c *Clients) change(ctx context.Context, edit func(record map[string][]string)) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := c.leases.Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != c.identity {
			return fmt.Errorf("this replica does not lead: %w", volumes.ErrUnavailable)
		}
		record := map[string][]string{}
		if text := lease.Annotations[clientsAnnotation]; text != "" {
			if err := json.Unmarshal([]byte(text), &record); err != nil {
				return fmt.Errorf("annotation %s of lease %s: %w", clientsAnnotation, c.name, err)
			}
		}
		edit(record)
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, clientsAnnotation, string(text))
		_, err = c.leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}
