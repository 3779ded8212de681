package cachetest

// Checks returns the rules of the contract. mutants_test.go has a broken engine for each, which the
// check must catch.
func Checks() []Check {
	var out []Check
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"a wiped disk is unused and clean", wipes},
		{"Prepare leaves a disk that is used, and keeps what is on it", prepares},
		{"Prepare refuses the cache of another image", refusesForeign},
		{"Prepare refuses a blank disk that was used here", refusesBlank},
		{"Prepare refuses a damaged disk and does not format it", refusesDamage},
		{"crossed watermarks are refused", refusesOptions},
		{"Assemble makes the device that it was asked for", assembles},
		{"States shows only names with the prefix", filtersStates},
		{"what is not assembled is ErrAbsent", absent},
		{"Remove removes once, and nothing that is open", removes},
		{"writes are dirty until they are written back", writesBack},
		{"write-through makes nothing dirty", writesThrough},
		{"options change under running I/O, and the mode stays", setsOptions},
		{"what is dirty outlives the device", outlives},
		{"a refused write-back loses nothing and can be tried again", retries},
		{"so does one that is refused in write-through", retriesThrough},
		{"a hold keeps the origin as it is until Resume", holdsStill},
		{"with a pause no write is done until Resume", pauses},
		{"a hold over a failing origin is an error", holdFails},
		{"a hold outlives the process", holdOutlives},
		{"Resume does nothing to a cache that works", resumesNothing},
		{"Resize grows the device and keeps its data", resizes},
		{"a larger cache takes no less memory", takesMemory},
		{"a larger disk has no less time to be read", takesTimeToRead},
		{"an engine that was stopped at any step can go on", goesOn},
	} {
		out = append(out, Check{Name: c.name, Run: func(t T, h Host) {
			t.Helper()
			c.run(newSuite(t, h))
		}})
	}
	return out
}
