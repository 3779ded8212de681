// Package node is the CSI Node and Identity service of an escache host.
//
// It keeps no state. The kernel's mount table shows what is staged, escached what is connected, and
// the CacheVolume who may write. So the process can be killed at any time, and the next one goes
// on.
package node
