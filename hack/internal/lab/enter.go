package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/escache/escache-csi/hack/labclient"
)

// Enter replaces this process by a command inside the lab's namespaces, with the lab's environment and the present working directory.
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
	env := os.Environ()
	for name, value := range status.Environment {
		env = append(env, name+"="+value)
	}
	if bin := status.Environment[labclient.EnvBin]; bin != "" {
		env = append(env, "PATH="+bin+":"+os.Getenv("PATH"))
	}
	return fmt.Errorf("run nsenter: %w", syscall.Exec(nsenter, args, env))
}
