// Command csi-node serves CSI's Node service on an escache host.
package main

import "github.com/escache/escache-csi/cmd/csi-node/app"

// version is set by the linker.
var version = "unknown"

func main() { app.Main(version) }
