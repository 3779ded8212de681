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

// clientsAnnotation of the lease holds the addresses of the Ceph clients of its holder, and of earlier ones that nobody has fenced yet:
// lists by cluster, as JSON.
const clientsAnnotation = "escache.io/ceph-clients"

// Clients shuts out of Ceph what an earlier leader has begun there. Check keeps a leader that was paused from beginning anything new,
// but what it had begun within librbd would go on with it, and make images that nobody knows of any more. So every leader puts
// its Ceph clients on record before it uses them, and fences those of earlier leaders before it uses its own.
type Clients struct {
	leases   coordinationv1.LeaseInterface
	name     string
	identity string

	mu  sync.Mutex // held for all of Admit, so that no two of this leader's clients fence or forget the same ones
	own map[string]bool
}

// NewClients keeps the record in the lease of that name, while identity holds it.
func NewClients(leases coordinationv1.LeaseInterface, name, identity string) *Clients {
	return &Clients{leases: leases, name: name, identity: identity, own: map[string]bool{}}
}

// Admit returns nil when the client may be used: it is on record, and fence has shut out the clients that earlier leaders had at that
// cluster. The error is ErrUnavailable if this process does not lead.
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

// change rewrites the record if this process holds the lease and nobody else has written to it since it was read.
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
