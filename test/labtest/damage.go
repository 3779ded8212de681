package labtest

import "fmt"

// Damage runs a script on the host while nothing uses the disks of caches there: neither escached nor
// DRBD runs. It returns when escached is back.
func (h *Host) Damage(t T, script string) {
	t.Helper()
	h.Shell(t, fmt.Sprintf(`set -e
lab-service stop escached
for resource in $(drbdsetup show | sed -n 's/^resource \(.*\) {/\1/p'); do drbdsetup down $resource; done
%s
lab-service start escached`, script))
	h.WaitForService(t, restartLimit)
}
