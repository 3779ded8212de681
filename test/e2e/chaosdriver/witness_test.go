//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// A database and a program that renames files see a loss as users do. The checker of the other rows
// knows blocks only.
func witnessRows() []row {
	return []row{
		{when: "database", what: "its host loses its power while it commits, twice", run: databaseLosesPower},
	}
}

// Each client has a directory of its own on the volume's ext4.
const (
	witnessDir  = "/mnt/witness"
	databaseDir = witnessDir + "/database"
	filesDir    = witnessDir + "/files"
	commits     = 30
)

// database is SQLite with a write-ahead log, which it moves into the database often. A row's body
// follows from its number, and is longer than a page for most.
func database() labtest.Client {
	return labtest.Client{
		Command: []string{"sqlite3", "-batch", "-bail", databaseDir + "/db"},
		Begin: "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=20;\n" +
			"CREATE TABLE IF NOT EXISTS changes (n INTEGER PRIMARY KEY, body TEXT);\n",
		// Its own output waits in a buffer, that of a child does not.
		Change: func(n int) string {
			return fmt.Sprintf("INSERT INTO changes VALUES (%d, %s);\n.shell echo %[1]d\n", n, bodyOf(strconv.Itoa(n)))
		},
	}
}

func bodyOf(n string) string {
	return fmt.Sprintf("printf('%%.*c', %[1]s * 997 %% 9000, 'x') || %[1]s", n)
}

// renamer writes files, and gives each its name once it is stable.
func renamer() labtest.Client {
	return labtest.Client{
		Command: []string{"blockcheck", "rename", filesDir},
		Change:  func(n int) string { return fmt.Sprintln(n) },
	}
}

// witnesses are the clients at work on a volume.
type witnesses struct {
	s               *scene
	database, files *labtest.Commits
}

func (w *witnesses) start(databaseFrom, filesFrom int) {
	w.s.Helper()
	w.database = w.s.holder.StartClient(w.s, database(), databaseFrom)
	w.files = w.s.holder.StartClient(w.s, renamer(), filesFrom)
	w.database.WaitForMore(w.s, commits, goOnTime)
	w.files.WaitForMore(w.s, commits, goOnTime)
}

// mount mounts the volume as csi-node does. The kernel replays the journal, and then nothing may be
// wrong with the filesystem.
func (w *witnesses) mount() {
	w.s.Helper()
	w.s.holder.Shell(w.s, fmt.Sprintf("mkdir -p %[1]s && mount -t ext4 -o errors=remount-ro %[2]s %[1]s && umount %[1]s && e2fsck -fn %[2]s && "+
		"mount -t ext4 -o errors=remount-ro %[2]s %[1]s", witnessDir, w.s.device))
}

func (w *witnesses) unmount() {
	w.s.Helper()
	w.s.holder.Shell(w.s, "umount "+witnessDir)
}

// unmountAll lets go of the volume after a failure.
func (w *witnesses) unmountAll() {
	if !w.s.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.s.Context()), commandTime)
	defer cancel()
	for _, h := range w.s.lab.Hosts {
		_, _ = h.Try(ctx, nil, "umount", witnessDir) // it may be off, or have nothing mounted
	}
}

// verify finds every change that was committed, whole, and at most the one more that was under way.
// It returns the numbers of the last ones.
func (w *witnesses) verify() (rows, files int) {
	w.s.Helper()
	out := w.s.holder.Shell(w.s, "sqlite3 -batch -bail "+databaseDir+"/db 'PRAGMA integrity_check' 'SELECT count(*) FROM changes' "+
		`'SELECT max(n) FROM changes' "SELECT count(*) FROM changes WHERE body <> `+bodyOf("n")+`"`)
	said := strings.Fields(out)
	if len(said) != 4 || said[0] != "ok" || said[3] != "0" {
		w.lostf("the database is damaged: %q", out)
	}
	rows = w.number(said[2])
	w.all("the database", w.database.Last(), w.number(said[1]), rows)

	out = w.s.holder.Shell(w.s, "cd "+filesDir+` && for f in file.*; do [ "file.$(cat "$f")" = "$f" ] || echo "$f"; done`)
	if out != "" {
		w.lostf("files that were renamed when they were stable are not whole: %s", out)
	}
	said = strings.Fields(w.s.holder.Shell(w.s, "ls "+filesDir+` | sed -n 's/^file\.//p' | sort -n | sed -n '$=; $p'`))
	if len(said) != 2 {
		w.lostf("the directory has no files that were renamed: %q", said)
	}
	files = w.number(said[1])
	w.all("the directory", w.files.Last(), w.number(said[0]), files)
	return rows, files
}

// all checks that the changes that were found are those up to the last one. Each has a number of its own, from 1, so none is
// missing if there are as many as the last one's number.
func (w *witnesses) all(where string, committed, found, last int) {
	w.s.Helper()
	if found != last || last < committed || last > committed+1 {
		w.lostf("%s has %d changes, the last is %d, and %d were committed", where, found, last, committed)
	}
}

func (w *witnesses) lostf(format string, args ...any) {
	w.s.Helper()
	w.s.check.Lost++
	w.s.Fatalf(format, args...)
}

func (w *witnesses) number(text string) int {
	w.s.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		w.s.Fatalf("not a number: %q", text)
	}
	return n
}

func databaseLosesPower(s *scene) {
	w := &witnesses{s: s}
	s.Cleanup(w.unmountAll)
	s.holder.Shell(s, "mkfs.ext4 -q -E nodiscard "+s.device)
	w.mount()
	s.holder.Shell(s, "mkdir -p "+databaseDir+" "+filesDir+" && sync")
	w.start(1, 1)
	for range 2 {
		lost, heir := s.holder, s.partner()
		s.fault()
		s.powerOff(lost)
		w.database.Lost(s)
		w.files.Lost(s)
		s.loses()
		s.use(heir)
		w.mount()
		rows, files := w.verify()
		s.Logf("%d of %d rows that were committed, %d of %d files", rows, w.database.Last(), files, w.files.Last())
		w.start(rows+1, files+1)
		s.recovered = append(s.recovered, time.Since(s.begun))
		s.boot(lost)
		s.whole()
	}
	w.database.Stop(s)
	w.files.Stop(s)
	w.verify()
	w.unmount()
	s.takenOver = true
	s.finish()
}
