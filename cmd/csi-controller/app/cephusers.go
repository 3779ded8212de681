package app

import (
	"context"
	"errors"
	"io/fs"

	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/rbd"
)

// cephUsers returns the users whose keyrings are below the directories: one directory for each clusterID, as --ceph-dir has
// them. A directory that is not there has none. The function that it returns ends their connections.
func cephUsers(controllerDir, hostsDir string) ([]preflight.CephUser, func(), error) {
	var users []preflight.CephUser
	var all []*rbd.Clusters
	for _, of := range []struct {
		dir   string
		hosts bool
	}{{controllerDir, false}, {hostsDir, true}} {
		if of.dir == "" {
			continue
		}
		clusters := rbd.NewClusters(rbd.Options{Dir: of.dir, Connections: 1})
		ids, err := clusters.IDs()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		all = append(all, clusters)
		for _, id := range ids {
			rights := func(ctx context.Context, pools []string) (preflight.Rights, error) {
				cluster, err := clusters.Get(id)
				if err != nil {
					return preflight.Rights{}, err
				}
				found, err := cluster.Rights(ctx, pools)
				return preflight.Rights(found), err
			}
			users = append(users, preflight.CephUser{ClusterID: id, Hosts: of.hosts, Rights: rights})
		}
	}
	return users, func() {
		for _, clusters := range all {
			clusters.Close()
		}
	}, nil
}
