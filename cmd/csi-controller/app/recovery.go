package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/adoption"
	"github.com/escache/escache-csi/internal/controller/discard"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/failover"
	"github.com/escache/escache-csi/internal/controller/fallback"
	"github.com/escache/escache-csi/internal/controller/move"
	"github.com/escache/escache-csi/internal/controller/rebuild"
	"github.com/escache/escache-csi/internal/controller/release"
	"github.com/escache/escache-csi/internal/controller/repair"
	"github.com/escache/escache-csi/internal/controller/unfence"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// RecoveryOptions are the flags of the reconcilers that bring volumes back after the loss of hosts.
type RecoveryOptions struct {
	// TaintDeadNodes has nodes that are proven dead tainted out-of-service.
	TaintDeadNodes bool
	// TaintAfter is how long the proof has to hold without a break.
	TaintAfter time.Duration

	// RepairAfter is how long a host is gone, or a copy without a link, before its replicas of attached
	// volumes are replaced on another host of the group. What is proven lost, such as a failed disk, is
	// replaced at once. Dirty volumes that no node has are written back instead. 0: only what somebody asks
	// for is done.
	RepairAfter time.Duration
	// RepairDrain has a volume write through to Ceph while its lost replica is being replaced.
	RepairDrain bool
	// RepairParallel bounds the volumes that are copied at once. One host takes part in one copy at
	// a time. It also bounds those that are written back at once.
	RepairParallel int

	// UncachedFallback lets volumes whose StorageClass allows it be attached outside their group, without a
	// cache, while no host of the group takes pods.
	UncachedFallback bool
}

// defaultRecovery returns the flags' defaults.
//
// A node's death must be proven for two minutes before the node is tainted. That is longer than a
// kubelet's restart or a switch's reboot takes, and shorter than the five minutes that Kubernetes
// itself waits before it evicts pods.
//
// A lost replica is replaced after a quarter of an hour: a server needs up to ten minutes to reboot, and
// then catches up with only what it missed, where a replacement copies the whole cache.
func defaultRecovery() RecoveryOptions {
	return RecoveryOptions{TaintAfter: 2 * time.Minute, RepairAfter: 15 * time.Minute, RepairDrain: true, RepairParallel: 4}
}

// repairPatience is how long a repair waits for Ceph to take the dirty data before it makes the
// second copy anyway.
const repairPatience = 2 * time.Minute

// fallbackPatience is how long a group is without a host that takes pods before pods may leave it. A pod
// that left it for a moment would be without its cache until it is started again.
const fallbackPatience = 2 * time.Minute

// A request for lost records looks at so many images, and at so many at once. A host may have to read the
// disk to say what is dirty in one.
const (
	rebuildPage     = 100
	rebuildParallel = 8
	askHost         = 10 * time.Second
)

func (o *RecoveryOptions) bind(f *pflag.FlagSet) {
	f.BoolVar(&o.TaintDeadNodes, "taint-dead-nodes", o.TaintDeadNodes,
		"taint a node node.kubernetes.io/out-of-service when Kubernetes, this controller and its replication peers all say that it is dead")
	f.DurationVar(&o.TaintAfter, "taint-after", o.TaintAfter,
		"how long a node must count as dead, without a break, before --taint-dead-nodes taints it")
	f.DurationVar(&o.RepairAfter, "repair-after", o.RepairAfter,
		"how long a host is gone before its replicas of attached volumes are replaced. Dirty volumes that no node has are written back "+
			"then. What is proven lost counts at once; 0: nothing is begun but what kubectl escache repair asks for")
	f.BoolVar(&o.RepairDrain, "repair-drain", o.RepairDrain,
		"have a volume write through to Ceph while its lost replica is being replaced")
	f.IntVar(&o.RepairParallel, "repair-parallel", o.RepairParallel,
		"how many volumes are copied to a new replica at once, at most one for each host; and how many that no node has are written back")
	f.BoolVar(&o.UncachedFallback, "uncached-fallback", o.UncachedFallback,
		"let volumes of StorageClasses with uncachedFallback be attached outside their group, without a cache, while no host of the "+
			"group takes pods")
}

func (o *RecoveryOptions) validate() error {
	var errs []error
	if o.TaintAfter < 10*time.Second {
		errs = append(errs, fmt.Errorf("--taint-after %s is below ten seconds, which any restart takes", o.TaintAfter))
	}
	if o.RepairAfter != 0 && o.RepairAfter < 10*time.Second {
		errs = append(errs, fmt.Errorf("--repair-after %s is below ten seconds, which any restart takes; 0 turns repairs off",
			o.RepairAfter))
	}
	if o.RepairParallel < 1 {
		errs = append(errs, fmt.Errorf("--repair-parallel %d is below one; --repair-after=0 turns repairs off", o.RepairParallel))
	}
	return errors.Join(errs...)
}

// recovery starts the reconcilers that bring volumes back after the loss of hosts.
func (p parts) recovery(locked *volumes.Locked, guarded client.Client, drainer *drain.Drainer) error {
	live, events := p.manager.GetAPIReader(), p.manager.GetEventRecorder("escache-csi-controller")
	lift := unfence.New(unfence.Config{
		Client: guarded, Volumes: locked, Log: p.log.With("component", "unfence"),
		Again: 3 * p.options.Poll, Longest: p.options.LongestCall, Parallel: 16,
	})
	errs := []error{lift.SetupWithManager(p.manager), p.manager.Add(&unfence.Watch{
		Fences: locked, Log: p.log.With("component", "unfence"), Every: p.options.Poll, Longest: p.options.LongestCall,
	}), p.manager.Add(&unfence.Left{
		Fences: locked, Log: p.log.With("component", "unfence"), Every: 3 * p.options.Poll, Longest: p.options.LongestCall,
	}), discard.New(discard.Config{
		Client: guarded, Live: live, Volumes: locked, Events: events,
		Log: p.log.With("component", "discard"), Now: time.Now, Again: 5 * time.Second, Longest: p.options.LongestCall,
	}).SetupWithManager(p.manager), release.New(release.Config{
		Live: live, Volumes: locked, Events: events,
		Log: p.log.With("component", "release"), Again: 5 * time.Second, Longest: p.options.LongestCall,
	}).SetupWithManager(p.manager), move.New(move.Config{
		Client: guarded, Live: live, Volumes: locked, Events: events, Log: p.log.With("component", "move"),
		Again: 5 * time.Second, Soon: time.Second, Seldom: time.Minute, Longest: p.options.LongestCall, Parallel: 4,
	}).SetupWithManager(p.manager), adoption.New(adoption.Config{
		Client: guarded, Live: live, Volumes: locked, Events: events,
		Rebuild: rebuild.New(rebuild.Config{
			Live: live, Images: p.images, Hosts: p.hosts, Records: locked, Kubernetes: p.own,
			Ask: askHost, PageSize: rebuildPage, Parallel: rebuildParallel,
		}),
		Log: p.log.With("component", "adoption"), Again: 5 * time.Second, Longest: p.options.LongestCall,
	}).SetupWithManager(p.manager)}
	if o := p.options.Recovery; o.TaintDeadNodes {
		errs = append(errs, p.manager.Add(failover.New(failover.Config{
			Policy: failover.Policy{After: o.TaintAfter}, Client: guarded, Live: live, Hosts: p.hosts, Events: events,
			Log: p.log.With("component", "failover"), Now: time.Now, Every: p.options.Poll, Ask: min(p.options.Poll, 4*time.Second),
		})))
	}
	o := p.options.Recovery
	if o.UncachedFallback {
		errs = append(errs, p.manager.Add(fallback.New(fallback.Config{
			Client: guarded, Events: events, Log: p.log.With("component", "fallback"), Now: time.Now,
			Every: p.options.Poll, Patience: fallbackPatience,
		})))
	}
	errs = append(errs, p.manager.Add(repair.New(repair.Config{
		Policy: repair.Policy{After: o.RepairAfter, Drain: o.RepairDrain, Patience: repairPatience, Parallel: o.RepairParallel},
		Client: guarded, Live: live, Volumes: locked, Drainer: drainer, Hosts: p.hosts, Locks: p.locks, Events: events,
		Log: p.log.With("component", "repair"), Now: time.Now,
		Every: p.options.Poll, Longest: p.options.LongestCall, Ask: min(p.options.Poll, 4*time.Second),
	})))
	return errors.Join(errs...)
}
