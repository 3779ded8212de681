package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/test/lab/labclient"
)

func statusCommand(connect connector) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the lab's parts and nodes", Args: cobra.NoArgs,
		RunE: bounded(connect, func(ctx context.Context, client *labclient.Client, _ []string) error {
			status, err := client.Status(ctx)
			if err != nil {
				return err
			}
			return show(os.Stdout, status)
		}),
	}
}

func show(out io.Writer, status labclient.Status) error {
	fmt.Fprintf(out, "lab %q, up for %s (ready after %.1fs), files in %s\n\n",
		status.Name, time.Since(status.Started).Round(time.Second), status.Ready.Seconds(), status.StateDir)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PART\tSTATE\tADDRESS\tLOG")
	for _, part := range status.Parts {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", part.Name, part.State, part.Address, part.Log)
	}
	fmt.Fprintln(table, "\nNODE\tSTATE\tFOR\tBOOT\tDATA\tMGMT\tFAULTS")
	for _, node := range status.Nodes {
		faults := node.Cuts
		if node.DiskFailed {
			faults = append(faults, "disk failed")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1fs\t%s\t%s\t%s\n", node.Name, node.State, time.Since(node.Since).Round(time.Second),
			node.Boot.Seconds(), node.DataAddress, node.MgmtAddress, strings.Join(faults, ", "))
	}
	return table.Flush()
}

func logsCommand(connect connector) *cobra.Command {
	return &cobra.Command{
		Use: "logs [PART|NODE|NODE/SERVICE]", Short: "Print a log; without an argument, list them", Args: cobra.MaximumNArgs(1),
		Long: "Prints the log of a part, the console of a node, or the log of a service on a node, such as n1/escached.",
		RunE: bounded(connect, func(ctx context.Context, client *labclient.Client, args []string) error {
			status, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return listLogs(os.Stdout, status)
			}
			if node, service, ok := strings.Cut(args[0], "/"); ok {
				code, err := client.Exec(ctx, node, labclient.Command{Args: []string{"cat", "/var/log/" + service + ".log"}},
					labclient.Streams{Out: os.Stdout, Err: os.Stderr})
				if err == nil && code != 0 {
					return exitStatusError(code)
				}
				return err
			}
			return printLog(os.Stdout, status, args[0])
		}),
	}
}

func listLogs(out io.Writer, status labclient.Status) error {
	for name, path := range logs(status) {
		if _, err := fmt.Fprintln(out, name, path); err != nil {
			return err
		}
	}
	return nil
}

func printLog(out io.Writer, status labclient.Status, name string) error {
	for part, path := range logs(status) {
		if part == name {
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(out, file)
			return err
		}
	}
	return errors.New("no such log; `lab logs` lists them")
}

// logs yields every log file of the lab by its name, in the order of the status.
func logs(status labclient.Status) func(yield func(name, path string) bool) {
	return func(yield func(name, path string) bool) {
		for _, part := range status.Parts {
			if part.Log != "" && !yield(part.Name, part.Log) {
				return
			}
		}
		for _, node := range status.Nodes {
			if !yield(node.Name, node.Console) {
				return
			}
		}
	}
}
