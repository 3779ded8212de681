// Package csi is the CSI Controller and Identity service. It parses a request once, at the edge,
// takes the volume's lock, and has the package volumes do the work.
//
// It holds no state of its own: truth is in the CacheVolume objects, in Ceph and on the hosts. Every
// call can be repeated, also after a crash in its middle.
package csi
