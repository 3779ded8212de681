package csitest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/clientaddress"
)

// Blocklist returns who was fenced, and what is in Blocked.
func (f *Images) Blocklist(context.Context, string) (map[string]time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Lists++
	all := map[string]time.Time{}
	for _, address := range f.Fenced {
		all[clientaddress.Canonical(address)] = time.Now().Add(authority.FenceSeconds * time.Second)
	}
	for address, until := range f.Blocked {
		if _, fenced := all[address]; !fenced { // Ceph replaces such an entry if it ends earlier
			all[address] = until
		}
	}
	return all, f.Fail
}

// Unblock is what somebody does with ceph osd blocklist rm.
func (f *Images) Unblock(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Fenced = slices.DeleteFunc(f.Fenced, func(fenced string) bool { return fenced == address })
}

// Fence puts a client on the blocklist, or answers FailFence.
func (f *Images) Fence(_ context.Context, _, address string, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := cmp.Or(f.FailFence, f.Fail)
	if fail == nil {
		f.Fenced, f.Fences = append(f.Fenced, address), f.Fences+1
	}
	return fail
}

// Unfence takes a client off the blocklist.
func (f *Images) Unfence(_ context.Context, _, address string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Fail == nil {
		f.Fenced = slices.DeleteFunc(f.Fenced, func(fenced string) bool { return fenced == address })
	}
	return f.Fail
}
