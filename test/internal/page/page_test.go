package page

import (
	"slices"
	"strings"
	"testing"
)

const install = `# Install

Text.

## Get it

    sha256sum --check sums
    tar -xzf a.tar.gz \
      -C /usr

### More

    for host in n1 n2; do
      ssh $host true
    done
    ls

## Steps

1. Make users, with ` + "`ceph auth`" + `:

       ceph auth get x |
         kubectl create -f -
       kubectl get ns

2. Label: ` + "`kubectl label node n1`" + `

3. Apply:

       kubectl apply -f - <<'END'
       a: b
       c: d |
       END
       kubectl wait pod/first
`

func TestCommandsAreFoundAndSplit(t *testing.T) {
	p := Page(install)
	for name, c := range map[string]struct{ block, want string }{
		"a section ends at the next heading": {p.Section(t, "Get it").Block(t, "sha256sum"), "sha256sum --check sums / tar -xzf a.tar.gz \\\n  -C /usr"},
		"a loop":                             {p.Section(t, "More").Block(t, "ssh"), "for host in n1 n2; do\n  ssh $host true\ndone / ls"},
		"a step":                             {p.Section(t, "Steps").Step(t, 1), "ceph auth get x |\n  kubectl create -f - / kubectl get ns"},
		"the last step, with input":          {p.Step(t, 3), "kubectl apply -f - <<'END'\na: b\nc: d |\nEND / kubectl wait pod/first"},
		"a quoted command":                   {p.Quoted(t, "kubectl label node"), "kubectl label node n1"},
		"a line":                             {p.Line(t, "    ls"), "ls"},
	} {
		if got := Commands(c.block); !slices.Equal(got, strings.Split(c.want, " / ")) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}
