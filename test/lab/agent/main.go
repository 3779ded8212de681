// Command lab-agent runs on a lab's machine and executes the commands that arrive over the
// management network.
package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/escache/escache-csi/test/lab/internal/remote"
)

func main() {
	fmt.Fprintln(os.Stderr, "lab-agent:", listen())
	time.Sleep(time.Second) // init starts it again at once
	os.Exit(1)
}

// listen serves until it cannot, and says why.
func listen() error {
	for name, value := range map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DM_DISABLE_UDEV": "1",
	} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment: %w", err)
		}
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", remote.Port))
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := remote.Serve(conn); err != nil {
				fmt.Fprintln(os.Stderr, "lab-agent:", err)
			}
		}()
	}
}
