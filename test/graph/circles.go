package main

import "slices"

func nodesOf(arrows []arrow) []string {
	var nodes []string
	for _, a := range arrows {
		nodes = append(nodes, a.from, a.to)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// reachable returns what can be reached from a node, the node itself only if it is part of a
// circle.
func reachable(arrows []arrow, from string) []string {
	var found []string
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, a := range arrows {
			if a.from == next[0] && !slices.Contains(found, a.to) {
				found = append(found, a.to)
				next = append(next, a.to)
			}
		}
	}
	return found
}

// circlesOf returns the largest groups of folders that all reach each other.
func circlesOf(arrows []arrow) [][]string {
	var circles [][]string
	for _, node := range nodesOf(arrows) {
		if slices.ContainsFunc(circles, func(c []string) bool { return slices.Contains(c, node) }) {
			continue
		}
		circle := []string{node}
		for _, other := range reachable(arrows, node) {
			if other != node && slices.Contains(reachable(arrows, other), node) {
				circle = append(circle, other)
			}
		}
		if len(circle) > 1 {
			slices.Sort(circle)
			circles = append(circles, circle)
		}
	}
	return circles
}

// floorsOf returns the number of folders on the longest way down. A circle counts as one floor.
func floorsOf(arrows []arrow) int {
	var below func(node string) int
	below = func(node string) int {
		deepest := 0
		for _, a := range arrows {
			if a.from == node && !slices.Contains(reachable(arrows, a.to), node) {
				deepest = max(deepest, below(a.to))
			}
		}
		return 1 + deepest
	}
	floors := 0
	for _, node := range nodesOf(arrows) {
		floors = max(floors, below(node))
	}
	return floors
}
