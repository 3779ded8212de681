// Command growimage makes an RBD image larger as csi-controller does, also while a host has it
// mapped. It is a program of its own because the tests that use it are linked without Ceph's
// libraries.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/escache/escache-csi/internal/rbd"
)

func main() {
	dir := flag.String("dir", "", "directory with one directory for each cluster, with ceph.conf and keyring in it")
	cluster := flag.String("cluster", "", "name of the cluster's directory")
	pool := flag.String("pool", "", "pool of the image")
	image := flag.String("image", "", "name of the image")
	size := flag.Int64("bytes", 0, "size that it has afterwards, at least")
	flag.Parse()
	if err := grow(*dir, *cluster, rbd.ImageRef{Pool: *pool, Name: *image}, *size); err != nil {
		fmt.Fprintln(os.Stderr, "growimage:", err)
		os.Exit(1)
	}
}

func grow(dir, id string, image rbd.ImageRef, bytes int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	clusters := rbd.NewClusters(rbd.Options{Dir: dir})
	defer clusters.Close()
	cluster, err := clusters.Get(id)
	if err != nil {
		return err
	}
	_, err = cluster.GrowImage(ctx, image, bytes)
	return err
}
