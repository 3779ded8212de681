// Command csi-controller serves CSI's Controller service, and runs the controllers of escache's
// kinds.
package main

import "github.com/escache/escache-csi/cmd/csi-controller/app"

// version is set by the linker.
var version = "unknown"

func main() { app.Main(version) }
