package csi_test

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/clientaddress"
)

func (f *fakeImages) Blocklist(context.Context, string) (map[string]time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	all := map[string]time.Time{}
	for _, address := range f.fenced {
		all[clientaddress.Canonical(address)] = time.Now().Add(authority.FenceSeconds * time.Second)
	}
	for address, until := range f.blocked {
		if _, fenced := all[address]; !fenced { // Ceph replaces such an entry if it ends earlier
			all[address] = until
		}
	}
	return all, f.fail
}

// unblock is what somebody does with ceph osd blocklist rm.
func (f *fakeImages) unblock(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fenced = slices.DeleteFunc(f.fenced, func(fenced string) bool { return fenced == address })
}

func (f *fakeImages) Fence(_ context.Context, _, address string, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := cmp.Or(f.failFence, f.fail)
	if fail == nil {
		f.fenced, f.fences = append(f.fenced, address), f.fences+1
	}
	return fail
}

func (f *fakeImages) Unfence(_ context.Context, _, address string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fenced = slices.DeleteFunc(f.fenced, func(fenced string) bool { return fenced == address })
	}
	return f.fail
}
