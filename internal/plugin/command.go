// Package plugin is kubectl-escache, the kubectl plugin for operators. It talks only to the
// Kubernetes API: it shows what the driver has recorded there, and requests work by creating
// objects of escache.io.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/paging"
)

// Exit codes, for scripts.
const (
	exitDone     = 0
	exitFailed   = 1 // refused, not found, or the work failed
	exitUsage    = 2 // the command line is wrong
	exitTimeUp   = 3 // not finished within --timeout, or interrupted
	exitDeclined = 4 // the user did not type the name
)

var (
	errUsage       = errors.New("usage")
	errTimeUp      = errors.New("time is up")
	errInterrupted = errors.New("interrupted")
	errDeclined    = errors.New("nothing was changed")
)

// Run runs the command line and returns the exit code.
func Run(version string, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(klog.Logger{}) // operators need none of client-go's log lines
	log.SetLogger(klog.Logger{})  // and no stack trace of controller-runtime that says that it has no logger
	command := newCommand(version, genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut})
	command.SetArgs(args)
	command.SetIn(in)
	command.SetOut(out)
	command.SetErr(errOut)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	_, _ = fmt.Fprintln(errOut, "error:", userMessage(err))
	switch {
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errTimeUp), errors.Is(err, errInterrupted):
		return exitTimeUp
	case errors.Is(err, errDeclined):
		return exitDeclined
	default:
		return exitFailed
	}
}

// cli holds what every verb needs.
type cli struct {
	genericiooptions.IOStreams

	config *genericclioptions.ConfigFlags
	now    func() time.Time
}

func newCommand(version string, streams genericiooptions.IOStreams) *cobra.Command {
	c := &cli{IOStreams: streams, config: genericclioptions.NewConfigFlags(true), now: time.Now}
	root := &cobra.Command{
		Use:   "kubectl-escache",
		Short: "See, flush and evacuate the caches of escache-csi",
		Long: "See, flush and evacuate the caches of escache-csi.\n\n" +
			"Exit codes: 0 done, 1 failed or refused, 2 wrong command line, 3 not finished within --timeout, 4 not confirmed.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl escache"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          noArgs,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	c.config.AddFlags(root.PersistentFlags())
	root.AddCommand(
		c.status(), c.flush(), c.cordon(), c.evacuate(), c.uncordon(), c.explain(), c.orphans(), c.adopt(), c.release(),
		c.repair(), c.move(), c.rebalance(), c.replaceHost(), c.discardCache(), c.supportBundle(), c.preflight(version), c.bench(),
	)
	return root
}

func noArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: %s has no %q; see --help", errUsage, command.CommandPath(), args[0])
	}
	return nil
}

// oneArg accepts exactly one argument; what is its name in the usage line.
func oneArg(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%w: name one %s: %s %s", errUsage, what, command.CommandPath(), what)
		}
		return nil
	}
}

// requestTimeout bounds one request to the API server, unless --request-timeout says otherwise.
const requestTimeout = 30 * time.Second

// restConfig says how to reach the API server that the flags and the kubeconfig name.
func (c *cli) restConfig() (*restclient.Config, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if config.Timeout == 0 {
		config.Timeout = requestTimeout
	}
	return config, nil
}

// connect returns a client for the API server, which reads lists in pages.
func (c *cli) connect() (client.WithWatch, error) {
	config, err := c.restConfig()
	if err != nil {
		return nil, err
	}
	// The API server limits calls itself (priority and fairness). The client's default limit would
	// delay polls, and make them fail near the end of --timeout.
	config.QPS = -1
	config.WarningHandler = nil
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return paging.Client{WithWatch: api}, nil
}

func (c *cli) clientset() (kubernetes.Interface, error) {
	config, err := c.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

func (c *cli) namespace() (string, error) {
	namespace, _, err := c.config.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

func (c *cli) printf(format string, args ...any) { _, _ = fmt.Fprintf(c.Out, format, args...) }

func (c *cli) printJSON(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	c.printf("%s\n", text)
	return nil
}

// confirm asks the user to type the name, and fails with errDeclined if they do not.
func (c *cli) confirm(what, name string) error {
	c.printf("%s\nType %s to continue: ", what, name)
	var typed string
	_, _ = fmt.Fscanln(c.In, &typed)
	if strings.TrimSpace(typed) != name {
		c.printf("\n")
		return fmt.Errorf("%w: %q is not %q", errDeclined, typed, name)
	}
	return nil
}
