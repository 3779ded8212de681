// Command blockcheck writes numbered blocks to a device and prints which ones the device
// acknowledged. Later it reports which of those are missing, stale or corrupt. It prints checksums of
// disks below caches, so that copies can be compared. It also measures write times, and the network
// between two hosts. It is linked statically and runs on the lab's hosts.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(program()) }

func program() int {
	// SIGINT and SIGTERM end a writer between two writes, so that its list is complete.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "blockcheck", Short: "write, verify and time blocks on a device, and files", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(writeCommand(), verifyCommand(), listCommand(), sumsCommand(), benchCommand(), renameCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "blockcheck:", err)
		return 1
	}
	return 0
}
