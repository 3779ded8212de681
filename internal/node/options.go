package node

import (
	"slices"
	"strconv"
	"strings"
)

// splitOptions splits items of several mount options at commas, as mount(8) does. Commas between
// quotes belong to a value.
func splitOptions(items []string) []string {
	var options []string
	for _, item := range items {
		quoted := false
		options = append(options, strings.FieldsFunc(item, func(r rune) bool {
			if r == '"' {
				quoted = !quoted
			}
			return r == ',' && !quoted
		})...)
	}
	return options
}

// isOn reports whether an option is wanted. Of an option and its opposite the last one counts.
func isOn(options []string, name, opposite string) bool {
	for _, o := range slices.Backward(options) {
		if o == name || o == opposite {
			return o == name
		}
	}
	return false
}

// sameContext compares SELinux contexts USER:ROLE:TYPE:SENSITIVITY:CATEGORIES. The kernel sorts the
// categories, and writes three or more in a row as c1.c3.
func sameContext(a, b string) bool {
	const parts = 5
	left, right := strings.SplitN(a, ":", parts), strings.SplitN(b, ":", parts)
	if len(left) < parts || len(right) < parts {
		return a == b
	}
	return slices.Equal(left[:parts-1], right[:parts-1]) && slices.Equal(categories(left[parts-1]), categories(right[parts-1]))
}

// maxCategory is the highest that SELinux's policies have.
const maxCategory = 1023

// categories returns the categories that a text names, sorted. A text that cannot be read is its
// own only category.
func categories(text string) []string {
	var all []string
	for item := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(item, ".")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(strings.TrimPrefix(first, "c"))
		to, err2 := strconv.Atoi(strings.TrimPrefix(last, "c"))
		if err1 != nil || err2 != nil || from < 0 || to > maxCategory {
			return []string{text}
		}
		for c := from; c <= to; c++ {
			all = append(all, "c"+strconv.Itoa(c))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
