package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
)

func renameCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rename DIRECTORY",
		Short: "make a file for each number on standard input, as programs do that want it whole or not at all, and print the number",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return renameAll(c.Context(), args[0], c.InOrStdin(), c.OutOrStdout())
		},
	}
}

// renameAll says a number when its file is stable, and its name.
func renameAll(ctx context.Context, dir string, in io.Reader, out io.Writer) error {
	directory, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer directory.Close()
	numbers := bufio.NewScanner(in)
	for ctx.Err() == nil && numbers.Scan() {
		n, err := strconv.Atoi(numbers.Text())
		if err != nil {
			return err
		}
		if err := renameOne(dir, n); err != nil {
			return err
		}
		if err := directory.Sync(); err != nil {
			return err
		}
		fmt.Fprintln(out, n)
	}
	return numbers.Err()
}

// renameOne makes a file that contains its number, and gives it its name once the content is stable.
func renameOne(dir string, n int) error {
	temporary := filepath.Join(dir, "new")
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := fmt.Fprint(file, n); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, fmt.Sprint("file.", n)))
}
