package model

// Family is a family of troubles, or of deeds, that an exploration tries. Each exploration has the
// families that it is about, because all of them at once are too many states.
type Family uint32

// The families.
const (
	Power     Family = 1 << iota // hosts lose their power
	Links                        // links between hosts are cut
	Control                      // hosts are cut off from the control plane
	Storage                      // hosts are cut off from Ceph
	Answers                      // escached is started again; the controller gets another host's answers
	Disks                        // hosts return with an empty disk
	Crashes                      // the controller dies
	Spares                       // hosts that have no copy are given the volume too
	Failing                      // a disk fails under a host that runs
	Living                       // a fenced holder that lives is asked to give its device up
	Draining                     // volumes write through while they are attached, and are turned back
	Discards                     // operators discard caches
	SetBack                      // etcd is restored
	Outsiders                    // others put clients on the blocklist
	Doubles                      // another machine has a host's name
	Repairing                    // a lost copy is replaced while the volume is attached
	Permits                      // hosts may go on without a peer that has no disk; disks work again
	Moving                       // volumes are moved to other groups
	Resizing                     // caches are to get another size
	Outside                      // n4 is not in the group, and may have the volume without a cache
	Removed                      // a copy was removed, and what removed it died
	Late                         // maps come late, and write back before anybody asks whether they may be used
	Detached                     // dirty volumes that no pod has are written back, also for no pod
	Trimming                     // volumes that nobody has are trimmed by a host without a copy
	GivenBack                    // a pod gets a volume where it is being written back, and is gone before it is staged
	Seconds                      // the power fails in the seconds in which nobody has counted what only the peer has
)

// Basic is what the protocol was made for.
const Basic = Power | Links | Control | Storage | Answers | Disks | Crashes | Spares

func (m *Model) has(f Family) bool { return m.Bounds.With&f == f }

// familyOf says in which family a trouble is.
var familyOf = [kinds]Family{
	powerOff: Power, cutLink: Links, cutControl: Control, cutStorage: Storage,
	takeAddress: Answers, restartEscached: Answers, replaceDisk: Disks, controllerDies: Crashes, failDisk: Failing, failBoth: Failing,
	backUp: SetBack, setBack: SetBack, outsiderBlocks: Outsiders, outsiderRemoves: Outsiders, doubleAnswers: Doubles,
}

// allows reports whether the exploration has this kind of move. What is in no family is always
// there.
func (m *Model) allows(k kind) bool { return familyOf[k] == 0 || m.has(familyOf[k]) }
