package rbd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/internal/clientaddress"
)

// Watcher is a client that has an image mapped, or open for writing.
type Watcher struct {
	Address string // IP:PORT/NONCE, as the blocklist takes it
	Client  int64  // the number of client.N
	Cookie  uint64
}

// Watchers returns the clients that have an image mapped or open for writing. This process is not among them: it
// writes no data. It opens images read-only to look at them, but a change that nobody waits for any more may still
// have one open for writing, and its lock. If it were fenced as the image's user, this process would shut itself out.
func (c *Cluster) Watchers(ctx context.Context, ref ImageRef) ([]Watcher, error) {
	return onImage(ctx, c, "watchers", ref.String(), ref, readOnly, func(image *librbd.Image) ([]Watcher, error) {
		all, err := image.ListWatchers()
		if err != nil {
			return nil, err
		}
		out := make([]Watcher, 0, len(all))
		for _, w := range all {
			if c.isOwn(w.Addr) {
				continue
			}
			out = append(out, Watcher{Address: w.Addr, Client: w.Id, Cookie: w.Cookie})
		}
		return out, nil
	})
}

// LockOwner is the client that holds an image's exclusive lock.
type LockOwner struct {
	Address string // IP:PORT/NONCE, as the blocklist takes it
	Client  string // client.N
	Cookie  string
}

// LockOwner returns the client that holds an image's exclusive lock, alive or dead, or nil if there
// is none, or if it is this process; see Watchers.
func (c *Cluster) LockOwner(ctx context.Context, ref ImageRef) (*LockOwner, error) {
	return onImage(ctx, c, "lock_owner", ref.String(), ref, readOnly, func(image *librbd.Image) (*LockOwner, error) {
		_, lockers, err := image.ListLockers()
		if err != nil || len(lockers) == 0 || c.isOwn(lockers[0].Addr) {
			return nil, err
		}
		return &LockOwner{Address: lockers[0].Addr, Client: lockers[0].Client, Cookie: lockers[0].Cookie}, nil
	})
}

// BlocklistEntry is a client whose requests Ceph refuses.
type BlocklistEntry struct {
	Address string
	Until   time.Time
}

// BlocklistForGood is the life of an entry that must not expire: after that, a client that still
// exists could write again.
const BlocklistForGood = 10 * 365 * 24 * time.Hour

// BlocklistAdd makes Ceph refuse a client, address IP:PORT/NONCE, for at least life from now on.
// When it returns, no OSD accepts another write of that client.
//
// Ceph never changes when an existing entry ends, though it answers as if it did. An entry that
// ends too early is therefore removed and added again, and the client can write in between. So
// fence a client before its successor may write. An entry that ends later is left alone.
func (c *Cluster) BlocklistAdd(ctx context.Context, address string, life time.Duration) error {
	return callOnEntry(ctx, c, "blocklist_add", address, func(conn *rados.Conn) error { return blocklist(conn, life, address) })
}

// BlocklistRemove removes a client from the list. If the client still exists, it can write again at
// once. It is no error if the client is not on the list.
func (c *Cluster) BlocklistRemove(ctx context.Context, address string) error {
	if err := checkClientAddress(address); err != nil {
		return err
	}
	return callOnEntry(ctx, c, "blocklist_remove", address, func(conn *rados.Conn) error { return blocklistRemove(conn, address) })
}

// entryOf names a client's entry on the blocklist.
func entryOf(address string) string { return "client " + clientaddress.Canonical(address) }

// blocklist adds the clients, replaces entries that end too early, and returns when no OSD serves
// the clients any more.
func blocklist(conn *rados.Conn, life time.Duration, address string) error {
	if err := blocklistAdd(conn, life, address); err != nil {
		return err
	}
	for replaced := false; ; replaced = true {
		switch lasts, err := blockedFor(conn, life, address); {
		case err != nil:
			return err
		case lasts:
			return conn.WaitForLatestOSDMap()
		case replaced:
			return fmt.Errorf("the blocklist does not keep client %s for %s: %w", address, life, ErrCeph)
		}
		if err := blocklistRemove(conn, address); err != nil {
			return err
		}
		if err := blocklistAdd(conn, life, address); err != nil {
			return err
		}
	}
}

// blocklistAdd sends all requests at once, because a monitor lets changes wait for each other.
func blocklistAdd(conn *rados.Conn, life time.Duration, addresses ...string) error {
	if life <= 0 {
		return fmt.Errorf("blocklist %v for %s: the time must be positive: %w", addresses, life, ErrInvalid)
	}
	// The monitor takes no number without a decimal point here.
	expire := json.Number(fmt.Sprintf("%.1f", life.Seconds()))
	var group errgroup.Group
	for _, address := range addresses {
		group.Go(func() error {
			if err := checkClientAddress(address); err != nil {
				return err
			}
			_, err := sendCommand(conn, map[string]any{"prefix": "osd blocklist", "blocklistop": "add", "addr": address, "expire": expire})
			return err
		})
	}
	return group.Wait()
}

func blocklistRemove(conn *rados.Conn, address string) error {
	_, err := sendCommand(conn, map[string]any{"prefix": "osd blocklist", "blocklistop": "rm", "addr": address})
	return err
}

// blockedFor reports whether the client is on the list for life from now on. A tenth less is
// enough: the monitor's clock may differ from this one.
func blockedFor(conn *rados.Conn, life time.Duration, address string) (bool, error) {
	entries, err := blocklistEntries(conn)
	return listed(entries, address, life-life/10), err
}

// listed reports whether the client is on the list for more than life from now on.
func listed(entries []BlocklistEntry, address string, life time.Duration) bool {
	return slices.ContainsFunc(entries, func(e BlocklistEntry) bool {
		return clientaddress.Same(e.Address, address) && time.Until(e.Until) > life
	})
}

// Blocklist returns all entries of the blocklist.
func (c *Cluster) Blocklist(ctx context.Context) ([]BlocklistEntry, error) {
	return call(ctx, c, "blocklist_list", "", blocklistEntries)
}

func blocklistEntries(conn *rados.Conn) ([]BlocklistEntry, error) {
	out, err := sendCommand(conn, map[string]any{"prefix": "osd blocklist ls"})
	if err != nil {
		return nil, err
	}
	return parseBlocklist(out)
}

// parseBlocklist takes lists one after the other: Ceph 16 answers with one for clients and one for
// address ranges.
func parseBlocklist(text []byte) ([]BlocklistEntry, error) {
	var out []BlocklistEntry
	lists := json.NewDecoder(bytes.NewReader(text))
	for {
		var list []struct {
			Address string `json:"addr"`
			Until   string `json:"until"`
		}
		if err := lists.Decode(&list); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("blocklist: %w: %w", ErrCeph, err)
		}
		for _, e := range list {
			until, err := time.Parse("2006-01-02T15:04:05.999999-0700", e.Until)
			if err != nil {
				return nil, fmt.Errorf("blocklist: %w: %w", ErrCeph, err)
			}
			out = append(out, BlocklistEntry{Address: e.Address, Until: until})
		}
	}
}

// checkClientAddress refuses an address that stands for more than one client: Ceph takes an address
// without a nonce for the whole host.
func checkClientAddress(address string) error {
	_, nonce, ok := strings.Cut(address, "/")
	if !ok || nonce == "" || nonce == "0" {
		return fmt.Errorf("client address %q: must be IP:PORT/NONCE of one client: %w", address, ErrInvalid)
	}
	return nil
}
