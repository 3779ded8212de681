package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../"

func TestThePageIsWhatTheProgramsSay(t *testing.T) {
	want, err := page()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(root + path); err != nil || string(got) != want {
		t.Errorf("%s is old (%v): run make generate", path, err)
	}
}

var flagWord = regexp.MustCompile(`(?:^|[ (])(--[a-z][a-z-]*|-[a-z])\b`)

// TestEveryFlagInTheDocsIsThere looks at what pages, chart and programs say of kubectl escache.
func TestEveryFlagInTheDocsIsThere(t *testing.T) {
	usual, err := helpOfPlugin()
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string][]string{}
	for _, name := range commands(usual) {
		help, err := helpOfPlugin(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{help, usual} {
			_, list, _ := strings.Cut(text, "\nFlags:\n")
			for line := range strings.Lines(list) {
				words, _, _ := strings.Cut(strings.TrimLeft(line, " "), "   ")
				for _, word := range flagWord.FindAllStringSubmatch(words, -1) {
					flags[name] = append(flags[name], word[1])
				}
			}
		}
	}
	call := regexp.MustCompile("kubectl escache ([a-z-]+)((?: \\\\\n *| )[^`\n|;&\"]*)")
	found := 0
	for _, file := range texts(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range call.FindAllStringSubmatch(string(text), -1) {
			words, _, _ := strings.Cut(match[2], "#")
			for _, word := range flagWord.FindAllStringSubmatch(words, -1) {
				found++
				if !slices.Contains(flags[match[1]], word[1]) {
					t.Errorf("%s: kubectl escache %s has no flag %s", file, match[1], word[1])
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d flags are found", found)
	}
}

// texts are the files in which people read commands.
func texts(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md", "charts/escache-csi/README.md", "charts/escache-csi/values.yaml"} {
		found, err := filepath.Glob(root + pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(fmt.Errorf("%s: %w", pattern, err))
		}
		all = append(all, found...)
	}
	return all
}
