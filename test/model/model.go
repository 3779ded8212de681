package model

// Bounds keep the number of states finite.
type Bounds struct {
	// Writes, Epochs and Faults are how many of each there may be in all.
	Writes, Epochs, Faults uint8
	// With is what may happen at all.
	With Family
}

// Model is the protocol, whole or without some of its guards.
type Model struct {
	Bounds Bounds

	without [guardsEnd]bool
	real    rules
}

// New returns a model of the protocol without some guards.
func New(bounds Bounds, without ...Guard) *Model {
	group := names[:]
	if bounds.With&Outside != 0 {
		group = names[:outsider]
	}
	m := &Model{Bounds: bounds, real: newRules(group)}
	for _, g := range without {
		m.without[g] = true
	}
	return m
}

func (m *Model) on(g Guard) bool { return !m.without[g] }

// emit takes a state that a move leads to.
type emit func(move, *state)

// moves gives every state that one step leads to. Each starts from a copy.
func (m *Model) moves(s *state, out emit) {
	m.environment(s, out)
	for i := range s.host {
		h := uint8(i)
		m.kernel(s, h, out)
		if s.host[i].up {
			m.node(s, h, out)
		}
	}
	m.control(s, out)
}
