package trouble

import "slices"

// Fault is what is wrong with one object. Its zero value is nothing.
type Fault struct {
	Reasons []string
	Gravity int // of the gravest
}

// Faults are what is wrong, by kind and name of the object.
type Faults map[[2]string]Fault

// FaultsOf sorts troubles by their objects.
func FaultsOf(all []Trouble) Faults {
	faults := Faults{}
	for _, t := range all {
		f, known := faults[[2]string{t.Kind, t.Name}]
		if !known || t.Gravity < f.Gravity {
			f.Gravity = t.Gravity
		}
		if !slices.Contains(f.Reasons, t.Reason) {
			f.Reasons = append(f.Reasons, t.Reason)
		}
		faults[[2]string{t.Kind, t.Name}] = f
	}
	return faults
}

// Of returns what is wrong with an object.
func (f Faults) Of(kind, name string) Fault { return f[[2]string{kind, name}] }

// Wrong reports whether something is wrong with an object.
func (f Faults) Wrong(kind, name string) bool { return len(f.Of(kind, name).Reasons) > 0 }
