// Package arbiter keeps, for each volume, who may write: the record that DRBD's fence-peer handler asks before a replica goes on without
// its peer. In the lab it stands in for the Kubernetes API, where that record is the CacheVolume.
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

	"github.com/escache/escache-csi/api/escache"
)

// Record says who may write a volume.
type Record struct {
	escache.VolumeRef

	// ImageID, once known, must be named by whoever asks: an image made anew under an old name is another volume.
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
	ErrRefused  = errors.New("refused")
)

// Store keeps records in a file; what a method has answered is on disk. Its methods may be called from several goroutines.
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

// Attach makes a node the one that may write, from an epoch on that must be newer than the record's. The same once more is no error.
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

// OutdatePeer records that a node's peer is outdated. It is granted exactly to the attached node, in its epoch, with a current replica of
// its own.
func (s *Store) OutdatePeer(request escache.OutdatePeerRequest) error {
	_, err := s.change(request.VolumeRef, func(r *Record, known bool) error {
		switch {
		case !known:
			return ErrNotFound
		case r.ImageID != "" && request.ImageID != r.ImageID:
			return fmt.Errorf("%w: the record is of image %s, asked for was %q", ErrRefused, r.ImageID, request.ImageID)
		case request.Node != r.AttachedNode:
			return fmt.Errorf("%w: attached is %s, not %s", ErrRefused, r.AttachedNode, request.Node)
		case request.Epoch != r.Epoch:
			return fmt.Errorf("%w: the epoch is %d, not %d", ErrRefused, r.Epoch, request.Epoch)
		case slices.Contains(r.Outdated, request.Node):
			return fmt.Errorf("%w: %s is itself outdated", ErrRefused, request.Node)
		}
		if !slices.Contains(r.Outdated, request.Peer) {
			r.Outdated = append(r.Outdated, request.Peer)
		}
		return nil
	})
	return err
}

// Resynced takes a node off the outdated ones: its replica has everything again.
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

// Delete forgets a volume; one that is not known is forgotten already.
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
