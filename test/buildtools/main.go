// Command buildtools prints the path of a third-party program that labs and tests run, and builds
// it first if the cache lacks it:
//
//	$(go run ./test/buildtools kubectl) --kubeconfig=… get pods
//	go run ./test/buildtools --build-all
//	go run ./test/buildtools --fetch-all
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

func main() {
	everything := flag.Bool("build-all", false, "build all of them")
	modules := flag.Bool("fetch-all", false, "only download the Go modules that they are built from")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *everything, *modules, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "buildtools:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, everything, modules bool, names []string) error {
	cache, err := buildcache.Open("")
	if err != nil {
		return err
	}
	// Standard output has only the path, so that scripts can use it.
	builder, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	if err != nil {
		return err
	}
	switch {
	case modules:
		return builder.Fetch(ctx)
	case everything:
		return builder.All(ctx)
	case len(names) == 0:
		return errors.New("name a tool, or use --build-all or --fetch-all")
	}
	for _, name := range names {
		path, err := builder.Path(ctx, name)
		if err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}
