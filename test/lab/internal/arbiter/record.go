// Package arbiter records, for each volume, who may write. DRBD's fence-peer handler asks it before
// a host goes on without its peer. In the lab it stands in for csi-node and the Kubernetes API,
// where the record is the CacheVolume; it decides by the same rule.
package arbiter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Record says who may write a volume.
type Record struct {
	escache.VolumeRef

	// ImageID tells a new image under an old name from the volume on record. It is empty until
	// known.
	ImageID      string `json:"imageID,omitempty"`
	AttachedNode string `json:"attachedNode"`
	Epoch        int64  `json:"epoch"`
	// Outdated are the nodes whose replica is not current.
	Outdated []string `json:"outdated"`
}

// Errors of the store.
var (
	ErrNotFound = errors.New("no record of this volume")
	ErrStale    = errors.New("stale epoch")
)

// Store keeps records in a file. A change is on disk before its method returns. The methods may be
// called from several goroutines.
type Store struct {
	path string

	mu      sync.Mutex
	records map[escache.VolumeRef]Record
}

// Open reads the records of a file, which need not exist yet.
func Open(path string) (*Store, error) {
	s := &Store{path: path, records: map[escache.VolumeRef]Record{}}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("arbiter's records: %w", err)
	}
	var records []Record
	if err := json.Unmarshal(data, &records); err != nil {
		return nil, fmt.Errorf("arbiter's records in %s: %w", path, err)
	}
	for _, r := range records {
		s.records[r.VolumeRef] = r
	}
	return s, nil
}

// Attach lets a node write from an epoch on, which must be newer than the record's (else ErrStale).
// The same node and epoch once more is no error.
func (s *Store) Attach(volume escache.VolumeRef, imageID, node string, epoch int64) (Record, error) {
	return s.change(volume, func(r *Record, known bool) error {
		same := known && r.AttachedNode == node && r.Epoch == epoch
		if known && epoch <= r.Epoch && !same {
			return fmt.Errorf("%w: epoch %d is not newer than %d, which %s has", ErrStale, epoch, r.Epoch, r.AttachedNode)
		}
		r.AttachedNode, r.Epoch = node, epoch
		if imageID != "" {
			r.ImageID = imageID
		}
		return nil
	})
}

// OutdatePeer records a node's peer as outdated, if authority.MayGoOnAlone allows it. Errors are
// ErrNotFound and *authority.RefusedError.
func (s *Store) OutdatePeer(request escache.OutdatePeerRequest) error {
	_, err := s.change(request.VolumeRef, func(r *Record, known bool) error {
		if !known {
			return ErrNotFound
		}
		grant, err := authority.MayGoOnAlone(r.volume(request.Node, request.Peer), request, time.Now())
		if err == nil {
			r.Outdated = grant.Outdated
		}
		return err
	})
	return err
}

// OutdateSelf records a node as outdated whose disk has failed, if authority.MayBeOutdated allows
// it. Errors are ErrNotFound and *authority.RefusedError.
func (s *Store) OutdateSelf(request escache.OutdateSelfRequest) error {
	_, err := s.change(request.VolumeRef, func(r *Record, known bool) error {
		if !known {
			return ErrNotFound
		}
		grant, err := authority.MayBeOutdated(r.volume(request.Node, request.Peer), request, time.Now())
		if err == nil {
			r.Outdated = grant.Outdated
		}
		return err
	})
	return err
}

// volume returns the record as the product has it. The lab does not record where the replicas are:
// the one who asks knows.
func (r *Record) volume(replicas ...string) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{}
	v.Name = r.Pool + "/" + r.Image
	v.Spec.Replicas = replicas
	v.Status.AttachedNode, v.Status.Epoch, v.Status.ImageID = r.AttachedNode, r.Epoch, r.ImageID
	v.Status.Outdated = r.Outdated
	return v
}

// Resynced takes a node off the outdated list: its replica has all writes again.
func (s *Store) Resynced(volume escache.VolumeRef, node string) (Record, error) {
	return s.change(volume, func(r *Record, known bool) error {
		if !known {
			return ErrNotFound
		}
		r.Outdated = slices.DeleteFunc(r.Outdated, func(n string) bool { return n == node })
		return nil
	})
}

// Get returns the record of a volume, or ErrNotFound.
func (s *Store) Get(volume escache.VolumeRef) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.records[volume]
	if !known {
		return Record{}, ErrNotFound
	}
	return clone(r), nil
}

// Delete removes a volume's record. An unknown volume is no error.
func (s *Store) Delete(volume escache.VolumeRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.records[volume]
	if !known {
		return nil
	}
	delete(s.records, volume)
	if err := s.save(); err != nil {
		s.records[volume] = old
		return err
	}
	return nil
}

// change changes one record and saves all; where either fails nothing has changed.
func (s *Store) change(volume escache.VolumeRef, act func(r *Record, known bool) error) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, known := s.records[volume]
	r := clone(old)
	r.VolumeRef = volume
	if err := act(&r, known); err != nil {
		return old, err
	}
	s.records[volume] = r
	if err := s.save(); err != nil {
		if s.records[volume] = old; !known {
			delete(s.records, volume)
		}
		return old, err
	}
	return clone(r), nil
}

func clone(r Record) Record {
	r.Outdated = append([]string{}, r.Outdated...)
	return r
}

func (s *Store) save() error {
	records := make([]Record, 0, len(s.records))
	for _, r := range s.records {
		records = append(records, r)
	}
	data, err := json.MarshalIndent(records, "", "  ")
	if err != nil {
		return fmt.Errorf("save the arbiter's records: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(s.path), ".arbiter-")
	if err != nil {
		return fmt.Errorf("save the arbiter's records: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(data)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("save the arbiter's records: %w", err)
	}
	if err := os.Rename(file.Name(), s.path); err != nil {
		return fmt.Errorf("save the arbiter's records: %w", err)
	}
	return nil
}
