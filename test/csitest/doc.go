// Package csitest is for tests of csi-controller. A World is the whole service with hosts, Ceph and
// API server in memory: tests call it as Kubernetes does, and see what is on record, in Ceph and on
// the hosts.
package csitest
