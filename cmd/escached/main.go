// Command escached is the service on each NVMe host that turns RBD images into devices with a
// replicated write-back cache.
package main

import "github.com/escache/escache-csi/cmd/escached/app"

// version is set by the linker.
var version = "unknown"

func main() { app.Main(version) }
