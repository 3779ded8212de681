package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// Enter replaces this process by a command inside the lab's namespaces, with the lab's environment
// and the present working directory.
func Enter(ctx context.Context, client *labclient.Client, command []string) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	supervisor, err := client.Supervisor(ctx)
	if err != nil {
		return err
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("%w: run hack/setup.sh lab", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	args := append([]string{
		"nsenter", "--target", strconv.Itoa(supervisor), "--mount", "--net", "--pid", "--uts", "--ipc", "--wdns=" + dir, "--",
	}, command...)
	// Not beside the variables of this process: of two with one name the first counts.
	env := status.Environment
	if bin := env[labclient.EnvBin]; bin != "" {
		env["PATH"] = bin + ":" + os.Getenv("PATH")
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment of the command: %w", err)
		}
	}
	return fmt.Errorf("run nsenter: %w", syscall.Exec(nsenter, args, os.Environ()))
}
