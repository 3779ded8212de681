// Command csi-controller is the half of the driver that runs on masters.
package main

import (
	"os"

	"github.com/escache/escache-csi/cmd/csi-controller/app"
)

// version is set when the binary is built.
var version = "unknown"

func main() { os.Exit(app.Run(version, os.Args[1:], os.Stdout, os.Stderr)) }
