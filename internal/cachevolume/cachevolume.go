// Package cachevolume says in one place what csi-controller and csi-node both derive from a
// CacheVolume object: the name of the volume in the escache API, and the request that connects it.
package cachevolume

import (
	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Ref returns the volume's name in the escache API.
func Ref(v *v1alpha1.CacheVolume) escache.VolumeRef {
	return escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
}

// Attachment is what a call about an attached volume names, so that no host carries out one that comes too
// late, or that is meant for another machine.
type Attachment struct {
	escache.VolumeRef

	Node string
	// HostID is the identity on record of the machine that is meant. Without one on record it is empty: then
	// whichever machine has the node's name carries the call out.
	HostID string
	Epoch  int64
}

// On returns the volume's present attachment, for calls to a node's host.
func On(v *v1alpha1.CacheVolume, node string) Attachment {
	return Attachment{VolumeRef: Ref(v), Node: node, HostID: v.Status.HostID(node), Epoch: v.Status.Epoch}
}

// Engine returns the cache engine of the volume. It is empty for the engine that every host has,
// because an older escached does not know the field, and refuses it.
func Engine(v *v1alpha1.CacheVolume) escache.Engine {
	return escache.Engine(v.Spec.Engine().Recorded())
}

// Options returns the options that the volume's cache is to have.
func Options(v *v1alpha1.CacheVolume) escache.CacheOptions {
	o := v.Spec.CacheOptions
	return escache.CacheOptions{
		HighWatermark: int(o.HighWatermark), LowWatermark: int(o.LowWatermark),
		MaxDirtyAgeSeconds: min(int(o.MaxDirtyAgeSeconds), escache.MaxDirtyAgeSeconds), // older records may have more
		WriteBackOrder:     escache.WriteBackOrder(o.WriteBackOrder),
	}
}

// ConnectRequest returns the dev_connect of the volume's present attachment. csi-node sends it for
// a pod, csi-controller to write a cache back; both send the same, because a pod's attachment may
// follow a write-back on the same host without taking the device down.
func ConnectRequest(v *v1alpha1.CacheVolume) escache.ConnectRequest {
	request := escache.ConnectRequest{
		VolumeRef: Ref(v), ImageID: v.Status.ImageID, Epoch: v.Status.Epoch, Engine: Engine(v),
		Options: escache.ConnectOptions{Mode: escache.Mode(v.Spec.CacheMode), CacheOptions: Options(v)},
	}
	for _, client := range v.Status.Fenced {
		if client.Address != "" {
			request.Fenced = append(request.Fenced, client.Address)
		}
	}
	if v.Status.UncachedAttached() {
		request.Uncached, request.Engine, request.Options = true, "", escache.ConnectOptions{}
		return request
	}
	if v.Status.Authority != v1alpha1.AuthorityCache {
		// The record says that all data is in Ceph. Nothing may become dirty until it says
		// otherwise.
		request.Options.Mode = escache.ModeWritethrough
	}
	return request
}
