// Package csi is the CSI Controller and Identity service. A request is parsed once, at the edge, by the package
// requests. Then the call takes the volume's lock, and lets the package volumes do the work. The packages attachment and
// snapshots decide what has to be done for their calls.
//
// It holds no state of its own: the truth is in the CacheVolume objects, in Ceph and on the hosts.
// Every call can be repeated, also after a crash in the middle.
package csi
