// Package conformance checks any implementation of the escache HTTP API against its contract: each
// verb and its idempotence, each refusal with its code, and every request and answer against
// openapi.yaml.
//
// It needs two hosts that replicate to each other, a Ceph pool in which it makes and removes images
// of its own, and a way to use a device on the hosts. A test of the implementation calls Run.
// TestConformance takes all that from the environment (see FromEnvironment and Hook):
//
//	ESCACHE_ENDPOINT=https://10.0.0.1:7443 ESCACHE_HOST=a=10.1.0.1 \
//	ESCACHE_PEER_ENDPOINT=https://10.0.0.2:7443 ESCACHE_PEER_HOST=b=10.1.0.2 \
//	ESCACHE_TLS_CA=ca.pem ESCACHE_TLS_CERT=cert.pem ESCACHE_TLS_KEY=key.pem \
//	ESCACHE_TLS_OTHER_CERT=other.pem ESCACHE_TLS_OTHER_KEY=other-key.pem \
//	ESCACHE_POOL=rbd ESCACHE_HOOK=./hook ESCACHE_FIRST_PORT=7900 ESCACHE_FIRST_MINOR=200 \
//	go test -v -run TestConformance ./api/escache/conformance
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Target is the implementation under test.
type Target struct {
	// Hosts are the two hosts of every replica that the suite lays.
	Hosts [2]Host
	// Other has certificate and key of a client that is signed by the same authority and may not
	// call. Without it, or without hosts that are called over TCP, the check that needs it is skipped.
	Other TLSFiles
	// Pool is the Ceph pool of the images.
	Pool string
	// Storage makes the images.
	Storage Storage
	// FirstPort and FirstMinor begin ranges of 64 that no other volume of the two hosts uses.
	FirstPort, FirstMinor int
	// CacheBytes and ImageBytes size the volumes; zero means 64 MiB and 256 MiB.
	CacheBytes, ImageBytes int64
	// Engine is the cache engine of the volumes; empty means escache.EngineWritecache.
	Engine escache.Engine
	// CallTimeout bounds a call that is given no time of its own, and each wait for a condition;
	// zero means two minutes.
	CallTimeout time.Duration
	// Record is told, before each dev_connect that ought to succeed, which host has the volume from
	// then on, so that the arbiter of the implementation knows. May be nil.
	Record func(ctx context.Context, ref escache.VolumeRef, imageID, host string, epoch int64) error
	// FailDisk makes the disk below a host's replica of a volume fail, perhaps with other disks of that
	// host, until the result is closed. The replica need not come back by itself then. May be nil, or
	// unsupported.
	FailDisk func(ctx context.Context, ref escache.VolumeRef, host string) (io.Closer, error)
	// Restart ends the service of a host as a crash does, and starts it again. The devices stay. It returns when
	// the former process has gone, perhaps before the new one answers. May be nil, or unsupported.
	Restart func(ctx context.Context, host string) error
	// Chosen says which checks run, by their numbers in Checks, for a target that is too slow for all of them. May be
	// nil: all run.
	Chosen func(number int) bool
}

// Host is one of the hosts. Exactly one of URL and Socket is set.
type Host struct {
	// Name and Address identify the host in a replica request: its name, and its IP address on
	// the replication link.
	Name, Address string
	// URL is https://HOST:PORT of the API, with the caller's TLS files.
	URL string
	TLS TLSFiles
	// Socket is the path of the API's unix socket.
	Socket string
	// Devices uses devices on this host.
	Devices Devices
}

// TLSFiles are PEM files: the authority that signed the service's certificate, and the caller's own
// certificate and key.
type TLSFiles struct {
	CA, Cert, Key string
}

// ErrUnsupported is returned by methods that this target does not have. The checks that need it are
// skipped and say so.
var ErrUnsupported = errors.New("this target cannot do that")

// Devices uses block devices on a host. Offsets and lengths are multiples of 4096.
type Devices interface {
	// Write writes and returns when the device has said that the data is stable.
	Write(ctx context.Context, device string, offset int64, data []byte) error
	Read(ctx context.Context, device string, offset, length int64) ([]byte, error)
	// Open keeps the device open until it is closed.
	Open(ctx context.Context, device string) (io.Closer, error)
	// Size returns the device's size in bytes, and an error where the device does not exist.
	Size(ctx context.Context, device string) (int64, error)
}

// Storage is Ceph beside the implementation.
type Storage interface {
	// Create makes an image and returns Ceph's id of it.
	Create(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) (imageID string, err error)
	Grow(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) error
	Remove(ctx context.Context, ref escache.VolumeRef) error
	// Occupy takes the image's exclusive lock as another client, until it is closed. It may be
	// unsupported.
	Occupy(ctx context.Context, ref escache.VolumeRef) (io.Closer, error)
	// Stall makes all writes to Ceph hang, without an error, until it is closed. It may be
	// unsupported.
	Stall(ctx context.Context) (io.Closer, error)
}

// portsAndMinors is how many of each the suite uses from Target's first ones on.
const portsAndMinors = 64

// withDefaults fills in what was left out.
func withDefaults(target Target) Target {
	if target.CacheBytes == 0 {
		target.CacheBytes = 64 << 20
	}
	if target.ImageBytes == 0 {
		target.ImageBytes = 256 << 20
	}
	if target.CallTimeout == 0 {
		target.CallTimeout = 2 * time.Minute
	}
	return target
}

// Validate reports everything that is wrong at once.
func (target *Target) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i, h := range target.Hosts {
		switch {
		case h.Name == "" || h.Address == "":
			bad("host %d: name and address are needed", i+1)
		case (h.URL == "") == (h.Socket == ""):
			bad("host %s: either the URL of its API or the path of its socket is needed", h.Name)
		case h.URL != "" && (h.TLS.CA == "" || h.TLS.Cert == "" || h.TLS.Key == ""):
			bad("host %s: the files of authority, certificate and key are needed with a URL", h.Name)
		case h.Devices == nil:
			bad("host %s: a way to use its devices is needed", h.Name)
		}
	}
	if target.Hosts[0].Name == target.Hosts[1].Name || target.Hosts[0].Address == target.Hosts[1].Address {
		bad("the two hosts must have different names and addresses")
	}
	if target.Pool == "" || target.Storage == nil {
		bad("a pool and a way to make images in it are needed")
	}
	if target.FirstPort < 1 || target.FirstPort+portsAndMinors > 65536 || target.FirstMinor < 0 {
		bad("ports from %d and minors from %d are no ranges of %d", target.FirstPort, target.FirstMinor, portsAndMinors)
	}
	return errors.Join(errs...)
}
