// Package controller is the CSI Controller and Identity service: it turns requests into CacheVolumes, RBD images and
// replicas.
//
// It holds no state of its own. The CacheVolume is written before the first side effect, so every step can be repeated, and a
// crash at any point leaves nothing unknown. Who may write is decided in the package authority, where a volume goes in
// placement; this package carries the decisions out.
package controller
