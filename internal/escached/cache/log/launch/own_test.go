package launch

import (
	"os"
	"testing"
)

func TestAProcessIsInTheCgroupOfItsVolume(t *testing.T) {
	for text, want := range map[string]bool{
		"0::/escache-cache/escache-1\n":                         true,
		"0::/../../../escache-cache/escache-1\n":                true, // seen from a pod
		"12:cpu:/\n0::/escache-cache/escache-1\n":               true,
		"0::/escache-cache/escache-1":                           true,
		"0::/escache-cache/escache-12\n":                        false,
		"0::/escache-cache/escache-1/more\n":                    false,
		"0::/escache-cache\n":                                   false,
		"0::/kubepods/pod1/escache-cache/escache-1\n":           false, // of a pod that may make cgroups
		"0::/../pod2/escache-cache/escache-1\n":                 false,
		"0::/..escache-cache/escache-1\n":                       false,
		"0::/system.slice/escached.service\n":                   false,
		"0::/\n":                                                false,
		"1:cpu:/escache-cache/escache-1\n":                      false, // anything but version 2
		"1:name=x:0::/escache-cache/escache-1\n0::/elsewhere\n": false,
		"": false,
	} {
		if got := isCgroupOf(text, "escache-1"); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestThisProcessIsItsUsersAndOnTheHost(t *testing.T) {
	if !isUsers(os.Getpid()) || !isOnHost(os.Getpid()) || isProgram(os.Getpid()) {
		t.Errorf("user %v, host %v, program %v", isUsers(os.Getpid()), isOnHost(os.Getpid()), isProgram(os.Getpid()))
	}
	const nobody = 1 << 30 // no process has this number
	if isUsers(nobody) || isOnHost(nobody) || isProgram(nobody) {
		t.Error("a process that is not there is one's own")
	}
}
