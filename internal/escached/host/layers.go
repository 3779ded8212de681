package host

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/deviceusers"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/trim"
)

// The layers below the verbs. Each interface has only the methods that host and engine call.
type (
	// Store holds the logical volumes and their tags.
	Store interface {
		Space(ctx context.Context) (lvm.Space, error)
		Volumes(ctx context.Context, readOnly bool) ([]lvm.Volume, error)
		Create(ctx context.Context, name string, size int64, tags map[string]string) error
		// Remove reports whether there was a volume.
		Remove(ctx context.Context, name string) (was bool, err error)
		Activate(ctx context.Context, names ...string) error
		Erase(ctx context.Context, name string, offset, size int64) error
		Retag(ctx context.Context, name string, from, to map[string]string) error
		Rewrite(ctx context.Context, name string, tags map[string]string) error
		Path(name string) string
	}
	// Replicator changes DRBD devices.
	Replicator interface {
		CreateMetadata(ctx context.Context, name string) error
		WipeMetadata(ctx context.Context, name string) error
		Up(ctx context.Context, name string) error
		Attach(ctx context.Context, name string) error
		Adjust(ctx context.Context, name string) error
		Freeze(ctx context.Context, name string, freeze bool) error
		Down(ctx context.Context, name string) error
		Disconnect(ctx context.Context, name string) error
		Connect(ctx context.Context, name string) error
		SkipFirstSync(ctx context.Context, name string) error
		Promote(ctx context.Context, name string) error
		Demote(ctx context.Context, name string) error
		Leave(ctx context.Context, name string) error
		Detach(ctx context.Context, name string) error
		ResumeIO(ctx context.Context, name string) error
		Outdate(ctx context.Context, name string) error
		Concede(ctx context.Context, name string) error
	}
	// Records is the arbiter. Record reads a volume's record; an error means that there is no answer.
	// OutdateSelf and OutdatePeer return nil only if the replica here, or the peer's, is on record as
	// outdated.
	Records interface {
		OutdatePeer(ctx context.Context, req escache.OutdatePeerRequest) error
		OutdateSelf(ctx context.Context, req escache.OutdateSelfRequest) error
		Record(ctx context.Context, ref escache.VolumeRef) (escache.VolumeRecord, error)
	}
	// Resources writes DRBD's resource files.
	Resources interface {
		Write(r drbd.Resource) (changed bool, err error)
		Forget(name string) error
		List(prefix string) ([]string, error)
		Tidy() error
	}
	// ReplicaStates reads the state of all DRBD devices.
	ReplicaStates interface{ Read() (drbd.Table, error) }
	// Images maps RBD images.
	Images interface {
		Map(ctx context.Context, volume, pool, image string) (krbd.Device, error)
		MapForFilesystem(ctx context.Context, volume, pool, image string) (krbd.Device, error)
		MapReadOnly(ctx context.Context, volume, pool, image string) (krbd.Device, error)
		Unmap(ctx context.Context, volume string, id int) error
		Find(pool, image string) ([]krbd.Device, error)
		Available() bool
	}
	// Trimmer has the filesystem of a device discard its free space.
	Trimmer interface {
		Trim(ctx context.Context, volume string, r trim.Request) (trim.Result, error)
	}
	// Kernel loads the kernel's modules and describes what the running kernel has.
	Kernel interface {
		Load(ctx context.Context) error
		// Describe also returns what the kernel lacks, a sentence each.
		Describe(ctx context.Context) (found escache.Kernel, missing []string)
	}
)

// Layers has all layers below the verbs.
type Layers struct {
	Store      Store
	Replicator Replicator
	Resources  Resources
	States     ReplicaStates
	Records    Records
	Images     Images
	Caches     cache.Engines
	Kernel     Kernel
	Trimmer    Trimmer
	// Memory reads how much memory this host has.
	Memory memory.Reader
	// KillUsers ends the processes that use block devices, and returns them.
	KillUsers func(ctx context.Context, paths ...string) ([]deviceusers.Process, error)
	// Listens returns nil if something takes connections at an address.
	Listens func(ctx context.Context, address string) error
	// Stuck returns the volumes that have a child process stuck in the kernel, by name.
	Stuck func() map[string]*command.StuckError
}
