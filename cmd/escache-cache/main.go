// Command escache-cache serves the device of one volume whose cache has the engine `log`. escached starts one for each connected volume.
package main

import "github.com/escache/escache-csi/cmd/escache-cache/app"

// version is set by the linker.
var version = "unknown"

func main() { app.Main(version) }
