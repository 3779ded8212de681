// Package csi is the CSI Controller and Identity service. It parses a request once, at the edge,
// takes the volume's lock, and lets the package volumes do the work.
//
// It holds no state of its own: the truth is in the CacheVolume objects, in Ceph and on the hosts.
// Every call can be repeated, also after a crash in the middle.
package csi
