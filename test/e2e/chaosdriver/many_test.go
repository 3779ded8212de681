//go:build e2e

package chaosdriver

// Several volumes at once.
func manyRows() []row {
	return []row{{when: "many", what: "four volumes on one host that loses its power", run: fourVolumes}}
}

func fourVolumes(s *scene) {
	host := s.holder
	all := []*scene{s}
	for range 3 {
		all = append(all, s.another(host))
	}
	for _, o := range all {
		o.write()
	}
	heirs := map[*scene]string{}
	for _, o := range all {
		heirs[o] = o.partner().Name
		o.fault()
	}
	s.powerOff(host)
	s.taint(s, host.Name)
	for _, o := range all {
		o.detached()
		o.ask(s.lab.Host(s, heirs[o]))
	}
	for _, o := range all {
		o.runs(s.lab.Host(s, heirs[o]))
		o.tookOver()
	}
	s.boot(host)
	for _, o := range all {
		o.whole()
		o.finish()
	}
}
