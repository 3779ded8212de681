package device

import "testing"

// The log has a record a moment before its writer has settled it. On the disk it counts, because something before it was dirty.
func TestWritingThroughIsNotCleanWhileARecordIsJustComing(t *testing.T) {
	for name, bring := range map[string]func(d *Device) error{
		"write-back up to what was answered": func(d *Device) error { return d.BringUpTo(t.Context(), 1) },
		"the image refuses what is coming": func(d *Device) error {
			work, err := d.log.Oldest(1, 1)
			if err == nil {
				d.log.Done(work) // of record 1 only: the next one is refused
				err = d.Release()
			}
			return err
		},
	} {
		d, disk, origin := start(t)
		must(t, d.Write(1, block(1)))
		must(t, d.Flush())
		d.WriteThrough(true)
		b := d.log.NewBatch()
		b.Write(1, block(2))
		b.Unanswered()
		last, err := d.log.Append(b)
		must(t, err)
		must(t, bring(d))
		if s := d.State(); s.Dirty == 0 && (origin.has(1) == 0 || dirtyOn(t, disk) != 0) {
			t.Errorf("%s: nothing is dirty, but %d blocks are on the disk, and the image has %d", name, dirtyOn(t, disk), origin.has(1))
		}
		must(t, d.settle(last))
		dirty(t, d, name+", and the writer has settled", false)
		if origin.has(1) != 2 || dirtyOn(t, disk) != 0 {
			t.Errorf("%s: the image has %d, and %d blocks are dirty on the disk", name, origin.has(1), dirtyOn(t, disk))
		}
	}
}
