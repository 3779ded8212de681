package rbd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ceph/go-ceph/rados"
)

// Rights are what Ceph lets the user of a cluster do.
type Rights struct {
	// User is the user, with "client." in front.
	User string
	// Statistics, Applications and Blocklist are what the monitors have to answer: the room in a pool, what a
	// pool is for, and clients that leave the blocklist.
	Statistics, Applications, Blocklist bool
	// Keys means that the user may read the keys of others.
	Keys bool
	// Writable, Refused and Missing are the pools that were asked about.
	Writable, Refused, Missing []string
	// Other are some of the other pools in which the user may write, too.
	Other []string
}

// otherPools bounds how many pools are tried that nobody has asked about.
const otherPools = 8

// Rights finds out what Ceph lets the user do in pools, and beyond them. A user may not read its own
// capabilities. So this tries what the driver does, with names that do not exist. Nothing is changed.
func (c *Cluster) Rights(ctx context.Context, pools []string) (Rights, error) {
	return call(ctx, c, "rights", "", func(conn *rados.Conn) (Rights, error) {
		probe := "escache-preflight-" + strings.ToLower(rand.Text())
		c.mu.Lock()
		r := Rights{User: c.settings.user}
		c.mu.Unlock()
		for _, ask := range []struct {
			may     *bool
			command map[string]any
		}{
			{&r.Statistics, map[string]any{"prefix": "df", "detail": "detail"}},
			{&r.Applications, map[string]any{"prefix": "osd pool application get"}},
			{&r.Blocklist, map[string]any{"prefix": "osd blocklist", "blocklistop": "rm", "addr": nobody()}},
			{&r.Keys, map[string]any{"prefix": "auth get", "entity": "client." + probe}},
		} {
			_, err := sendCommand(conn, ask.command)
			if *ask.may = !errors.Is(err, ErrPermission); *ask.may && err != nil && !errors.Is(err, ErrNotFound) {
				return r, err
			}
		}
		for _, pool := range pools {
			may, err := mayWrite(conn, pool, probe)
			switch {
			case errors.Is(err, ErrPoolNotFound):
				r.Missing = append(r.Missing, pool)
			case err != nil:
				return r, fmt.Errorf("pool %s: %w", pool, err)
			case may:
				r.Writable = append(r.Writable, pool)
			default:
				r.Refused = append(r.Refused, pool)
			}
		}
		all, err := conn.ListPools()
		if err != nil {
			return r, err
		}
		others := slices.DeleteFunc(all, func(pool string) bool { return slices.Contains(pools, pool) })
		for _, pool := range others[:min(len(others), otherPools)] {
			// What another pool lacks says nothing about the ones that matter.
			if may, err := mayWrite(conn, pool, probe); err == nil && may {
				r.Other = append(r.Other, pool)
			}
		}
		return r, nil
	})
}

// nobody is a client that never was, with an address that is kept for documentation (RFC 5737).
func nobody() string {
	var nonce [4]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	return fmt.Sprintf("192.0.2.1:0/%d", binary.BigEndian.Uint32(nonce[:])|1)
}

// mayWrite asks to remove an object that is not there, and to have librbd's methods set the size of one that
// is not there. Both fail: before Ceph looks for the object if the user may not, otherwise because there is none.
func mayWrite(conn *rados.Conn, pool, object string) (bool, error) {
	return withPool(conn, pool, func(io *rados.IOContext) (bool, error) {
		set := rados.CreateWriteOp()
		defer set.Release()
		set.Exec("rbd", "set_size", make([]byte, 8))
		for _, err := range []error{io.Delete(object), set.Operate(io, object, rados.OperationNoFlag)} {
			switch err = translate(err); {
			case errors.Is(err, ErrPermission):
				return false, nil
			case err != nil && !errors.Is(err, ErrNotFound):
				return false, err
			}
		}
		return true, nil
	})
}
