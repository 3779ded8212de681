// Command commands writes docs/commands.md: what `kubectl escache` and `escached` say of themselves with --help.
//
//	go run ./test/commands
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/escache/escache-csi/cmd/escached/app"
	"github.com/escache/escache-csi/internal/plugin"
)

const path = "docs/commands.md"

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "commands: write "+path) }
	flag.Parse()
	text, err := page()
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "commands:", err)
		os.Exit(1)
	}
}

const introduction = `# Commands

` + "`make generate` writes this page from what the programs say with `--help`." + `

` + "The flags of csi-controller and csi-node are not here: the chart sets them from its values, which the" + `
` + "[chart's README](../charts/escache-csi/README.md) explains." + `

## kubectl escache

` + "`kubectl escache` also takes the usual flags of kubectl, such as `--context` and `--namespace`. The exit codes are: 0 done," + `
` + "1 failed or refused, 2 wrong command line, 3 not finished within `--timeout`, 4 not confirmed." + `
`

// leftOut are commands that cobra adds.
var leftOut = map[string]bool{"completion": true, "help": true}

func page() (string, error) {
	var out strings.Builder
	out.WriteString(introduction)
	if err := each(&out, "kubectl escache", helpOfPlugin); err != nil {
		return "", err
	}
	out.WriteString("\n## escached\n\n`escached` runs on the hosts of the caches.\n")
	whole, err := helpOfEscached()
	if err != nil {
		return "", err
	}
	write(&out, "escached", whole)
	if err := each(&out, "escached", helpOfEscached); err != nil {
		return "", err
	}
	return out.String(), nil
}

// each writes every command of a program that has flags or words of its own.
func each(out *strings.Builder, program string, help func(args ...string) (string, error)) error {
	whole, err := help()
	if err != nil {
		return err
	}
	names := commands(whole)
	if len(names) == 0 {
		return fmt.Errorf("%s has no commands:\n%s", program, whole)
	}
	for _, name := range names {
		text, err := help(name)
		if err != nil {
			return err
		}
		if program == "escached" && !strings.Contains(text, "\nExamples:") {
			continue // nobody calls it by hand
		}
		write(out, program+" "+name, text)
	}
	return nil
}

// commands are the names in the list of a program's commands.
func commands(help string) []string {
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var names []string
	for line := range strings.Lines(list) {
		if name := strings.Fields(line); len(name) > 0 && !leftOut[name[0]] {
			names = append(names, name[0])
		}
	}
	return names
}

var helpFlag = regexp.MustCompile(`(?m)^ +-h, --help .*\n`)

func write(out *strings.Builder, name, help string) {
	help, _, _ = strings.Cut(help, "\nGlobal Flags:")
	help, _, _ = strings.Cut(help, "\nUse \""+name)
	help = strings.TrimSuffix(strings.TrimSpace(helpFlag.ReplaceAllString(help, "")), "\nFlags:")
	fmt.Fprintf(out, "\n### %s\n\n```text\n%s\n```\n", name, strings.TrimSpace(help))
}

func helpOfPlugin(args ...string) (string, error) {
	var out, problem bytes.Buffer
	if exit := plugin.Run("", append(args, "--help"), nil, &out, &problem); exit != 0 {
		return "", fmt.Errorf("kubectl escache %q: exit code %d: %s", args, exit, problem.String())
	}
	return out.String(), nil
}

func helpOfEscached(args ...string) (string, error) {
	var out bytes.Buffer
	command := app.Command("")
	command.SetArgs(append(args, "--help"))
	command.SetOut(&out)
	err := command.Execute()
	return out.String(), err
}
