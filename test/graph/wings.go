package main

import (
	"maps"
	"slices"
	"strings"
)

// height orders the wings: an import must not go up. hack held the programs under test/ in older
// commits.
var height = map[string]int{"api": 0, "internal": 1, "cmd": 2, "test": 3, "hack": 3}

// wrongWay returns the imports that go up. Tests beside the code in internal and cmd may use the
// helpers in test: they are not part of any program, and the helpers start what such a test needs
// (Ceph, a Kubernetes API, a fake host).
func wrongWay(imports []imported) []imported {
	return slices.DeleteFunc(slices.Clone(imports), func(i imported) bool {
		from, to := wing(i.from), wing(i.to)
		return height[to] <= height[from] || i.inTest && height[to] == height["test"] && from != "api"
	})
}

func wing(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// arrow says how often the packages in one folder import packages in another.
type arrow struct {
	from, to         string
	imports, inTests int
}

// arrowsIn returns the arrows between the folders directly inside parent. "" is the module itself.
// The parent's own package counts as one of them.
func arrowsIn(imports []imported, parent string) []arrow {
	arrows := map[[2]string]arrow{}
	for _, i := range imports {
		from, inFrom := childOf(parent, i.from)
		to, inTo := childOf(parent, i.to)
		if !inFrom || !inTo || from == to {
			continue
		}
		a := arrows[[2]string{from, to}]
		a.from, a.to = from, to
		if i.inTest {
			a.inTests++
		} else {
			a.imports++
		}
		arrows[[2]string{from, to}] = a
	}
	return slices.SortedFunc(maps.Values(arrows), func(a, b arrow) int {
		return strings.Compare(a.from+" "+a.to, b.from+" "+b.to)
	})
}

// childOf returns the folder directly inside parent that holds path, or parent itself.
func childOf(parent, path string) (string, bool) {
	if path == parent {
		return parent, true
	}
	prefix := parent + "/"
	if parent == "" {
		prefix = ""
	}
	rest, inside := strings.CutPrefix(path, prefix)
	first, _, _ := strings.Cut(rest, "/")
	return prefix + first, inside
}

func productionOnly(arrows []arrow) []arrow {
	return slices.DeleteFunc(arrows, func(a arrow) bool { return a.imports == 0 })
}

// foldersOf returns all folders that hold packages, the module ("") first.
func foldersOf(imports []imported) []string {
	folders := map[string]bool{"": true}
	for _, i := range imports {
		for _, path := range []string{i.from, i.to} {
			for end := strings.LastIndexByte(path, '/'); end > 0; end = strings.LastIndexByte(path[:end], '/') {
				folders[path[:end]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(folders))
}

// parentBetween is a package that imports some of its own sub-folders and is imported by others.
type parentBetween struct {
	name         string
	above, below []string
}

func parentsBetween(imports []imported) []parentBetween {
	var found []parentBetween
	for _, folder := range foldersOf(imports) {
		p := parentBetween{name: folder}
		for _, a := range productionOnly(arrowsIn(imports, folder)) {
			if a.from == folder {
				p.below = append(p.below, strings.TrimPrefix(a.to, folder+"/"))
			}
			if a.to == folder {
				p.above = append(p.above, strings.TrimPrefix(a.from, folder+"/"))
			}
		}
		if len(p.above) > 0 && len(p.below) > 0 {
			found = append(found, p)
		}
	}
	return found
}
