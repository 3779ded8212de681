// Command kubectl-escache is a kubectl plugin for those who run escache-csi: state, flushing, evacuation and the few dangerous verbs.
package main

import (
	"os"

	"github.com/escache/escache-csi/internal/plugin"
)

var version = "unknown" // set when linking

func main() {
	os.Exit(plugin.Run(version, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
