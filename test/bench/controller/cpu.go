package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// processors is the processor time by program.
type processors map[string]time.Duration

// tick is the unit in which Linux tells times of processes, on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// spent is what this process and all that it has started have used so far.
func spent() (processors, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	type process struct {
		parent  int
		program string
		used    time.Duration
	}
	all := map[int]process{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		id, program, rest := splitStat(string(text))
		fields := strings.Fields(rest)
		if len(fields) < 13 {
			return nil, fmt.Errorf("%s: %q", file, text)
		}
		var n [3]int // parent, user and system time
		for i, at := range []int{1, 11, 12} {
			if n[i], err = strconv.Atoi(fields[at]); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		all[id] = process{parent: n[0], program: program, used: time.Duration(n[1]+n[2]) * tick}
	}
	out := processors{}
	for id, p := range all {
		for up := id; up > 1; up = all[up].parent {
			if up == os.Getpid() {
				out[p.program] += p.used
				break
			}
		}
	}
	return out, nil
}

// splitStat takes "ID (PROGRAM) REST" apart. Programs of the tools' cache have their version in the
// name.
func splitStat(text string) (id int, program, rest string) {
	number, after, _ := strings.Cut(text, " (")
	id, _ = strconv.Atoi(number)
	end := strings.LastIndex(after, ") ")
	if end < 0 {
		return id, "", ""
	}
	program, _, _ = strings.Cut(after[:end], "-v")
	return id, strings.TrimRight(program, "-"), after[end+2:]
}

// since is what was used after an earlier look.
func (p processors) since(earlier processors) processors {
	out := processors{}
	for program, used := range p {
		if used -= earlier[program]; used > 0 {
			out[program] = used
		}
	}
	return out
}

func (p processors) total() (sum time.Duration) {
	for _, used := range p {
		sum += used
	}
	return sum
}

// print says what each program has used for one of n calls, those first that used most, and how
// many calls a second that allows.
func (p processors) print(out io.Writer, what string, n int) {
	each := func(used time.Duration) float64 { return float64(used) / float64(n) / float64(time.Millisecond) }
	atMost := float64(runtime.NumCPU()) * 1000 / each(p.total())
	fmt.Fprintf(out, "%s: %.1f ms, so at most %.0f per second:", what, each(p.total()), atMost)
	programs := slices.SortedFunc(maps.Keys(p), func(a, b string) int { return int(p[b] - p[a]) })
	for _, program := range programs {
		if each(p[program]) >= 0.05 {
			fmt.Fprintf(out, " %s %.1f", program, each(p[program]))
		}
	}
	fmt.Fprintln(out)
}
