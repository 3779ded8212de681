package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
)

// Host is one host of a fleet: a host of escachetest that listens, and whose node service and peers
// the test plays.
type Host struct {
	*escachetest.Host

	address string
	port    int
	server  *http.Server
	peers   map[string]*Host
	handler http.Handler
	answers atomic.Pointer[Host] // the host that answers at this one's address
	calls   atomic.Int64
	refuses sync.Map // calls ("PUT /v1/replica") and the codes that answer them
	before  sync.Map // calls, and what happens once before them
}

func newHost(name, address string, cacheBytes int64) (*Host, error) {
	h := &Host{Host: escachetest.Alone(name, address, cacheBytes), address: address}
	fake, err := h.Handler()
	h.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != escache.PathNode {
			h.calls.Add(1)
		}
		if do, once := h.before.LoadAndDelete(r.Method + " " + r.URL.Path); once {
			do.(func())() //nolint:forcetypeassert // nothing else is stored
		}
		if code, refused := h.refuses.Load(r.Method + " " + r.URL.Path); refused {
			refuse(w, code.(escache.Code)) //nolint:forcetypeassert // nothing else is stored
			return
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		fake.ServeHTTP(w, r)
		if r.URL.Path == escache.PathFlush {
			var request escache.FlushRequest
			_ = json.Unmarshal(body, &request)
			h.replicate(request.VolumeRef)
		}
	})
	h.answers.Store(h)
	return h, err
}

func refuse(w http.ResponseWriter, code escache.Code) {
	status := escache.StatusOf(code)
	w.Header().Set("Content-Type", escache.ProblemContentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(escache.Problem{ //nolint:errchkjson // the caller sees a cut answer
		Type: "urn:escache:problem:" + string(code), Title: http.StatusText(status), Status: status, Code: code,
		Detail: "the test wants it so",
	})
}

// Refuse makes the host answer a call with a code and do nothing. The call is its method and path, such as
// "PUT /v1/replica". An empty code ends that.
func (h *Host) Refuse(call string, code escache.Code) {
	if code == "" {
		h.refuses.Delete(call)
		return
	}
	h.refuses.Store(call, code)
}

// Before makes something happen once, just before the host gets a call such as "POST /v1/stop".
func (h *Host) Before(call string, do func()) { h.before.Store(call, do) }

// replicate plays DRBD after a flush: what is clean here is clean on the running hosts with the
// volume's other replicas.
func (h *Host) replicate(volume escache.VolumeRef) {
	if dirty := h.Status(volume).DirtyBytes; dirty == nil || *dirty > 0 {
		return
	}
	for _, other := range h.peers {
		if other != h && other.server != nil {
			other.Write(volume, 0)
		}
	}
}

// GiveAddressTo lets another host answer at this one's address.
func (h *Host) GiveAddressTo(other *Host) { h.answers.Store(other) }

// Calls returns how many calls about volumes were made.
func (h *Host) Calls() int { return int(h.calls.Load()) }

// Has reports whether a replica of the volume is here.
func (h *Host) Has(volume escache.VolumeRef) bool {
	return h.Status(volume).State != escache.StateAbsent
}

// Lay puts a replica here, as PUT /v1/replica does. Its nodes may be left out.
func (h *Host) Lay(request escache.ReplicaRequest) error {
	if len(request.Nodes) == 0 {
		request.Nodes = []escache.ReplicaNode{{Name: h.Name, Address: h.address}, {Name: "another", Address: "127.0.0.1"}}
	}
	return h.PutReplica(context.Background(), request)
}

// Connect makes the device here, with this Ceph client.
func (h *Host) Connect(volume escache.VolumeRef, client string) {
	h.Change(volume, func(s *escache.VolumeStatus) {
		s.Role, s.ClientAddress, s.Device = escache.RolePrimary, client, escachetest.DevicePath(volume)
	})
}

// Stage connects the volume as the node service does, in an attachment's epoch and a mode.
func (h *Host) Stage(volume escache.VolumeRef, client string, epoch int64, mode escache.Mode) {
	h.Connect(volume, client)
	h.Change(volume, func(s *escache.VolumeStatus) { s.Epoch, s.Mode = epoch, mode })
}

// Write makes so many bytes of the volume's cache dirty here.
func (h *Host) Write(volume escache.VolumeRef, dirtyBytes int64) {
	h.Change(volume, func(s *escache.VolumeStatus) { s.DirtyBytes = &dirtyBytes })
}

// Release removes the device; what is dirty stays dirty.
func (h *Host) Release(volume escache.VolumeRef) {
	h.Change(volume, func(s *escache.VolumeStatus) {
		s.Role, s.ClientAddress, s.Mode, s.Device = escache.RoleSecondary, "", "", ""
	})
}

// SetDisk sets DRBD's state of the volume's disk here. DiskOutdated and DiskConsistent are not
// connected: the arbiter of these hosts confirms nothing.
func (h *Host) SetDisk(volume escache.VolumeRef, diskState escache.DiskState) {
	h.Change(volume, func(s *escache.VolumeStatus) { s.DiskState = diskState })
}

// See sets how the host sees the peer of its replica.
func (h *Host) See(volume escache.VolumeRef, peer string, link escache.LinkState, disk escache.DiskState) {
	h.Change(volume, func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{Name: peer, ConnectionState: link, DiskState: disk, Role: escache.RoleUnknown}}
	})
}

// SetEpoch sets the epoch that the host reports of its device.
func (h *Host) SetEpoch(volume escache.VolumeRef, epoch int64) {
	h.Change(volume, func(s *escache.VolumeStatus) { s.Epoch = epoch })
}

// Sync plays the copy of a volume from here to the partner; at 100 percent it is current.
func (h *Host) Sync(volume escache.VolumeRef, percent float64) {
	h.Change(volume, func(s *escache.VolumeStatus) {
		s.SyncedPercent = percent
		for i := range s.Peers {
			s.Peers[i].ConnectionState, s.Peers[i].DiskState = escache.LinkSyncSource, escache.DiskInconsistent
			if percent >= 100 {
				s.Peers[i].ConnectionState, s.Peers[i].DiskState = escache.LinkConnected, escache.DiskUpToDate
			}
		}
	})
}

// EndHold ends a hold as the host's watchdog does.
func (h *Host) EndHold(volume escache.VolumeRef) {
	h.Change(volume, func(s *escache.VolumeStatus) { s.HeldUntil = nil })
}

// Held reports whether the volume's I/O is suspended here.
func (h *Host) Held(volume escache.VolumeRef) bool { return h.Status(volume).HeldUntil != nil }

// Connected reports whether the volume's device is here, and with which epoch.
func (h *Host) Connected(volume escache.VolumeRef) (epoch int64, connected bool) {
	s := h.Status(volume)
	return s.Epoch, s.Device != ""
}

// Partner returns the name of the replica's partner; empty until it was changed.
func (h *Host) Partner(volume escache.VolumeRef) string {
	if peers := h.Status(volume).Peers; len(peers) > 0 {
		return peers[0].Name
	}
	return ""
}
