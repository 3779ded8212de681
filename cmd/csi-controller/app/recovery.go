package app

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller"
	"github.com/escache/escache-csi/internal/controller/discard"
)

// recovery is what brings volumes back after the loss of hosts.
func (p parts) recovery(service *controller.Service, guarded client.Client) error {
	return discard.New(discard.Config{
		Client: guarded, Live: p.manager.GetAPIReader(), Volumes: service, Events: p.manager.GetEventRecorder("escache-csi-controller"),
		Log: p.log.With("component", "discard"), Now: time.Now, Again: 5 * time.Second, Longest: p.options.LongestCall,
	}).SetupWithManager(p.manager)
}
