package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller"
	"github.com/escache/escache-csi/internal/controller/discard"
	"github.com/escache/escache-csi/internal/controller/failover"
	"github.com/escache/escache-csi/internal/controller/unfence"
)

// RecoveryOptions are the flags of what brings volumes back after the loss of hosts.
type RecoveryOptions struct {
	TaintDeadNodes bool
	TaintAfter     time.Duration
}

// defaultRecovery has a dead node's proof last two minutes before the node is tainted: longer than the kubelet's restart and a
// switch's reboot, shorter than the five minutes that Kubernetes itself waits before it evicts pods.
func defaultRecovery() RecoveryOptions {
	return RecoveryOptions{TaintAfter: 2 * time.Minute}
}

func (o *RecoveryOptions) bind(f *pflag.FlagSet) {
	f.BoolVar(&o.TaintDeadNodes, "taint-dead-nodes", o.TaintDeadNodes,
		"taint a node node.kubernetes.io/out-of-service when Kubernetes, this controller and its replication peers all say that it is dead")
	f.DurationVar(&o.TaintAfter, "taint-after", o.TaintAfter, "how long that proof has to hold without a break")
}

func (o *RecoveryOptions) validate() error {
	if o.TaintAfter < 10*time.Second {
		return fmt.Errorf("--taint-after %s is below ten seconds, which any restart takes", o.TaintAfter)
	}
	return nil
}

// recovery is what brings volumes back after the loss of hosts.
func (p parts) recovery(service *controller.Service, guarded client.Client) error {
	live, events := p.manager.GetAPIReader(), p.manager.GetEventRecorder("escache-csi-controller")
	lift := unfence.New(unfence.Config{
		Volumes: service, Log: p.log.With("component", "unfence"), Again: 3 * p.options.Poll, Longest: p.options.LongestCall,
	})
	errs := []error{lift.SetupWithManager(p.manager), discard.New(discard.Config{
		Client: guarded, Live: live, Volumes: service, Events: events,
		Log: p.log.With("component", "discard"), Now: time.Now, Again: 5 * time.Second, Longest: p.options.LongestCall,
	}).SetupWithManager(p.manager)}
	if o := p.options.Recovery; o.TaintDeadNodes {
		errs = append(errs, p.manager.Add(failover.New(failover.Config{
			Policy: failover.Policy{After: o.TaintAfter}, Client: guarded, Live: live, Hosts: p.hosts, Events: events,
			Log: p.log.With("component", "failover"), Now: time.Now, Every: p.options.Poll, Ask: min(p.options.Poll, 4*time.Second),
		})))
	}
	return errors.Join(errs...)
}
