// Package node is the CSI Node and Identity service of an escache host.
//
// It keeps no state: what is staged is found in the kernel's mount table, what is connected in escached, and who may write in
// the CacheVolume. So it can be killed at any time, and the next one goes on.
package node
