// Command kubectl-escache is the kubectl plugin of escache-csi. It shows the state of caches,
// flushes them, evacuates hosts and discards lost caches.
package main

import (
	"os"

	"github.com/escache/escache-csi/internal/plugin"
)

var version = "unknown" // set when linking

func main() {
	os.Exit(plugin.Run(version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
