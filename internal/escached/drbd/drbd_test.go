package drbd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/internal/command"

	"github.com/escache/escache-csi/api/escache"
)

const proc = `version: 8.4.11 (api:1/proto:86-101)
srcversion: 2A5DFCD31AE4EBF93C0E357
 0: cs:Unconfigured
 1: cs:Connected ro:Secondary/Primary ds:UpToDate/UpToDate C r-----
    ns:0 nr:4 dw:4 dr:0 al:0 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:0
 2: cs:WFConnection ro:Primary/Unknown ds:UpToDate/DUnknown C s-----
    ns:0 nr:0 dw:72 dr:0 al:0 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:68

 3: cs:SyncTarget ro:Secondary/Primary ds:Inconsistent/UpToDate C r-----
    ns:0 nr:127924 dw:127924 dr:0 al:0 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:1000
	[=====>..............] sync'ed: 31.5% (87468/127924)K
	finish: 0:00:02 speed: 36,000 (36,000) want: 102,400 K/sec
 4: cs:WFConnection ro:Secondary/Unknown ds:UpToDate/Outdated A r-----
    ns:0 nr:0 dw:72 dr:0 al:1 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:68
 5: cs:SyncSource ro:Primary/Secondary ds:UpToDate/Inconsistent C r-----
    ns:9 nr:0 dw:9 dr:9 al:0 bm:0 lo:0 pe:2 ua:0 ap:0 ep:1 wo:f oos:73400320
	[>....................] sync'ed:  0.4% (71680/71936)M
	finish: 12:05:07 speed: 1,204,224 (987) K/sec (stalled)
 6: cs:VerifyS ro:Primary/Secondary ds:UpToDate/UpToDate C r-----
    ns:9 nr:0 dw:9 dr:9 al:0 bm:0 lo:0 pe:2 ua:0 ap:0 ep:1 wo:f oos:0
	[>....................] verified:  0.4% (71680/71936)M
	finish: 0:00:07 speed: 1,204 (987) want: 9 K/sec
`

func TestParseProc(t *testing.T) {
	got, err := parse(strings.NewReader(proc))
	want := Table{Version: "8.4.11", Unconfigured: []int{0}, Devices: map[int]Status{
		1: {
			Connection: "Connected", Role: "Secondary", PeerRole: "Primary", Disk: "UpToDate", PeerDisk: "UpToDate",
			SyncedPercent: 100, DiskWrittenKiB: 4,
		},
		2: {
			Connection: "WFConnection", Role: "Primary", PeerRole: "Unknown", Disk: "UpToDate", PeerDisk: "DUnknown",
			Suspended: true, SyncedPercent: 100, DiskWrittenKiB: 72, OutOfSyncKiB: 68,
		},
		3: {
			Connection: "SyncTarget", Role: "Secondary", PeerRole: "Primary", Disk: "Inconsistent", PeerDisk: "UpToDate",
			SyncedPercent: 31.5, DiskWrittenKiB: 127924, OutOfSyncKiB: 1000, ResyncKiBPerSecond: 36000, ResyncLeft: 2 * time.Second,
		},
		4: {
			Connection: "WFConnection", Role: "Secondary", PeerRole: "Unknown", Disk: "UpToDate", PeerDisk: "Outdated",
			SyncedPercent: 100, DiskWrittenKiB: 72, OutOfSyncKiB: 68,
		},
		5: {
			Connection: "SyncSource", Role: "Primary", PeerRole: "Secondary", Disk: "UpToDate", PeerDisk: "Inconsistent",
			SyncedPercent: 0.4, DiskWrittenKiB: 9, OutOfSyncKiB: 70 << 20, ResyncKiBPerSecond: 1204224,
			ResyncLeft: 12*time.Hour + 5*time.Minute + 7*time.Second,
		},
		6: { // compares, and copies nothing
			Connection: "VerifyS", Role: "Primary", PeerRole: "Secondary", Disk: "UpToDate", PeerDisk: "UpToDate",
			SyncedPercent: 100, DiskWrittenKiB: 9,
		},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for minor, current := range map[int]bool{1: true, 2: false, 3: false, 4: true, 5: true, 6: true} {
		if got.Devices[minor].Current() != current {
			t.Errorf("minor %d: current must be %v", minor, current)
		}
	}
}

func TestWhatBeginsAResyncIsWaitedFor(t *testing.T) {
	for connection, want := range map[escache.LinkState]bool{
		"WFBitMapT": true, "WFSyncUUID": true, "StartingSyncT": true, "WFReportParams": true,
		"SyncTarget": false, Connected: false, "WFConnection": false, StandAlone: false,
	} {
		if got := (Status{Connection: connection, Disk: Outdated}).Negotiating(); got != want {
			t.Errorf("%s: negotiating %v", connection, got)
		}
	}
	if !(Status{Connection: Connected, Disk: "Attaching"}).Negotiating() {
		t.Error("a disk that is being attached is not known yet")
	}
}

func TestAFrozenDeviceWithoutALinkIsReadAsThat(t *testing.T) {
	got, err := parse(strings.NewReader("101: cs:StandAlone ro:Primary/Unknown ds:Diskless/DUnknown   s-----\n"))
	want := Status{
		Connection: StandAlone, Role: Primary, PeerRole: "Unknown", Disk: Diskless, PeerDisk: "DUnknown", Suspended: true, SyncedPercent: 100,
	}
	if err != nil || got.Devices[101] != want {
		t.Fatalf("got %+v, %v", got.Devices[101], err)
	}
}

func TestProcWithoutModuleIsEmpty(t *testing.T) {
	got, err := Proc{Path: filepath.Join(t.TempDir(), "drbd")}.Read()
	if err != nil || got.Version != "" {
		t.Fatal(got, err)
	}
}

func TestFilesAreWrittenOnceAndForgottenTwice(t *testing.T) {
	f := Files{Dir: filepath.Join(t.TempDir(), "drbd.d")}
	r := Resource{
		Name: "escache-1", Minor: 101, Port: 7801, Disk: "/dev/vg/escache-1", LocalHost: "n1", LocalAddress: "10.0.0.1",
		PeerHost: "n2", PeerAddress: "fd00::2", ResyncRate: "100M", FencePeer: "/usr/bin/escached fence-peer",
		DiskFailed: "/usr/bin/escached disk-failed",
	}
	for i, want := range []bool{true, false} {
		if changed, err := f.Write(r); err != nil || changed != want {
			t.Fatalf("write %d: changed %v, %v", i, changed, err)
		}
	}
	text, _ := os.ReadFile(filepath.Join(f.Dir, "escache-1.res"))
	for _, part := range []string{
		"fencing resource-and-stonith;", `fence-peer "/usr/bin/escached fence-peer";`,
		"on-io-error call-local-io-error;", `local-io-error "/usr/bin/escached disk-failed";`, "device /dev/drbd101 minor 101;",
		`on "n1" { address 10.0.0.1:7801; }`, `on "n2" { address ipv6 [fd00::2]:7801; }`, "c-plan-ahead 0; resync-rate 100M;", "max-buffers 16000;",
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
	if names, err := f.List("escache-"); err != nil || !reflect.DeepEqual(names, []string{"escache-1"}) {
		t.Fatal(names, err)
	}
	for range 2 {
		if err := f.Forget("escache-1"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRefusalsHaveDifferentErrors(t *testing.T) {
	for text, want := range map[string]error{
		"1: State change failed: (-7) Refusing to be Primary while peer is not outdated": ErrPeerNotFenced,
		"1: State change failed: (-1) Multiple primaries not allowed by config":          ErrPeerPrimary,
		"1: State change failed: (-2) Need access to UpToDate data":                      ErrNoCurrentData,
		"1: State change failed: (-12) Device is held open by someone":                   ErrOpen,
		"1: Failure: (151) Need to be StandAlone":                                        ErrLinkLost,
	} {
		if err := refusal(&command.ExitError{Command: "drbdadm", Code: 11, Stderr: text}); !errors.Is(err, want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

type impatient struct{ calls []string }

func (r *impatient) Run(_ context.Context, c command.Command) (command.Result, error) {
	r.calls = append(r.calls, strings.Join(c.Args[2:], " ")) // after --config-file
	if len(r.calls) == 1 {
		return command.Result{}, &command.ExitError{
			Command: "drbdadm up r", Code: 20, Stderr: "Command 'drbdsetup-84 new-minor r 102 0' did not terminate within 5 seconds",
		}
	}
	return command.Result{}, nil
}

// TestAnAttachThatTookLongIsRepeated: in the kernel it has succeeded.
func TestAnAttachThatTookLongIsRepeated(t *testing.T) {
	for said, fails := range map[string]bool{"Device '102' is configured!": false, "No valid meta data found": true} {
		var calls []string
		run := command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
			calls = append(calls, strings.Join(c.Args[2:], " "))
			switch len(calls) {
			case 3:
				return command.Result{}, &command.ExitError{Code: 20, Stderr: "Command 'drbdsetup-84 attach 102' did not terminate within 5 seconds"}
			case 4:
				return command.Result{}, &command.ExitError{Code: 20, Stderr: said}
			}
			return command.Result{}, nil
		})
		err := NewControl(run, Files{Dir: t.TempDir()}).Attach(t.Context(), "r")
		if (err != nil) != fails || !slices.Equal(calls, []string{"new-resource r", "new-minor r", "attach r", "attach r"}) {
			t.Errorf("%s: %q, %v", said, calls, err)
		}
	}
}

func TestDrbdadmsOwnImpatienceIsNoFailure(t *testing.T) {
	files := Files{Dir: t.TempDir()}
	r := &impatient{}
	if err := NewControl(r, files).Up(t.Context(), "r"); err != nil || !reflect.DeepEqual(r.calls, []string{"up r", "adjust r"}) {
		t.Fatalf("an interrupted up is finished by adjust: %q, %v", r.calls, err)
	}
	r = &impatient{}
	if err := NewControl(r, files).Demote(t.Context(), "r"); err != nil || !reflect.DeepEqual(r.calls, []string{"secondary r", "secondary r"}) {
		t.Fatalf("all others are repeated: %q, %v", r.calls, err)
	}
}

// drbdadm knows --force for create-md. For other commands it refuses it and hands on to drbdmeta what
// stands between two dashes and the command.
func TestMetadataIsChangedWithoutAQuestion(t *testing.T) {
	var got []string
	run := command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
		got = c.Args
		return command.Result{}, nil
	})
	files := Files{Dir: t.TempDir()}
	c := NewControl(run, files)
	for _, row := range []struct {
		change func(ctx context.Context, name string) error
		want   []string
	}{
		{c.WipeMetadata, []string{"--force", "wipe-md", "r"}},
		{c.Concede, []string{"--force", "::::0:0", "set-gi", "r/0"}},
	} {
		want := append([]string{"--config-file", files.configPath("r"), "--"}, row.want...)
		if err := row.change(t.Context(), "r"); err != nil || !slices.Equal(got, want) {
			t.Errorf("drbdadm %q, %v", got, err)
		}
	}
}

// shaking answers as the kernel does while the two ends shake hands, a number of times.
type shaking struct{ left, calls int }

func (r *shaking) Run(context.Context, command.Command) (command.Result, error) {
	r.calls++
	if r.left == 0 {
		return command.Result{}, nil
	}
	r.left--
	return command.Result{}, &command.ExitError{
		Command: "drbdadm down r", Code: 11, Stderr: "r: State change failed: (-18) In transient state, retry after next state change",
	}
}

func TestALinkIsTakenAwayAfterTheHandshake(t *testing.T) {
	files := Files{Dir: t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		r := &shaking{left: 2 * patience}
		if err := NewControl(r, files).Down(t.Context(), "r"); err != nil || r.calls != 2*patience+1 {
			t.Errorf("a handshake that ends is waited for: %d calls, %v", r.calls, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r = &shaking{left: 1 << 30}
		if err := NewControl(r, files).Down(ctx, "r"); err == nil || !strings.Contains(err.Error(), "(-18)") {
			t.Errorf("one that does not end is told at the deadline, with its reason: %v", err)
		}
	})
}

// refusing answers as the kernel did to a drbdadm that was run on a resource in StandAlone.
type refusing struct{ stderr string }

func (r refusing) Run(context.Context, command.Command) (command.Result, error) {
	return command.Result{}, &command.ExitError{Command: "drbdadm disconnect r", Code: 10, Stderr: r.stderr}
}

// TestWhatEndsFrozenIOIsNotStoppedByWhatHangsInIt: a command that hangs stops all later ones with its key.
func TestWhatEndsFrozenIOIsNotStoppedByWhatHangsInIt(t *testing.T) {
	var keys []string
	c := NewControl(command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
		keys = append(keys, c.Volume)
		return command.Result{}, nil
	}), Files{Dir: t.TempDir()})
	asking := []func(context.Context, string) error{c.Disconnect, c.Connect}
	freeing := []func(context.Context, string) error{c.Leave, c.Detach, c.ResumeIO}
	for _, do := range append(asking, freeing...) {
		if err := do(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Contains(keys, "r") {
		t.Errorf("the keys are %q", keys)
	}
	for _, key := range keys[:len(asking)] {
		if slices.Contains(keys[len(asking):], key) {
			t.Errorf("if asking hangs, freeing is stopped: %q", keys)
		}
	}
}

func TestALinkThatIsNotThereIsTakenAway(t *testing.T) {
	files := Files{Dir: t.TempDir()}
	for stderr, fails := range map[string]bool{
		"??: Failure: (162) Invalid configuration request\nadditional info from kernel:\nunknown connection": false,
		"??: Failure: (162) Invalid configuration request\nadditional info from kernel:\nunknown resource":   true,
	} {
		c := NewControl(refusing{stderr}, files)
		for name, err := range map[string]error{"disconnect": c.Disconnect(t.Context(), "r"), "leave": c.Leave(t.Context(), "r")} {
			if (err != nil) != fails {
				t.Errorf("%s, %q: %v", name, stderr, err)
			}
		}
		if err := c.Connect(t.Context(), "r"); err == nil {
			t.Error("connecting passes for disconnecting")
		}
	}
}

type recorder struct{ args []string }

func (r *recorder) Run(_ context.Context, c command.Command) (command.Result, error) {
	r.args = c.Args
	return command.Result{}, nil
}

func TestDrbdadmReadsNoOtherVolumesFile(t *testing.T) {
	files := Files{Dir: filepath.Join(t.TempDir(), "drbd.d")}
	config := filepath.Join(files.Dir, "r.conf")
	r := &recorder{}
	if err := NewControl(r, files).Down(t.Context(), "r"); err != nil || !reflect.DeepEqual(r.args, []string{"--config-file", config, "down", "r"}) {
		t.Fatalf("%q, %v", r.args, err)
	}
	text, err := os.ReadFile(config)
	if err != nil || strings.Count(string(text), "include") != 1 || !strings.Contains(string(text), "include \""+files.Dir+"/r.res\";") {
		t.Fatalf("%s, %v", text, err)
	}
	if err := files.Forget("r"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(files.Dir); err != nil || len(left) > 0 {
		t.Fatalf("left: %v, %v", left, err)
	}
}

func TestALinkIsNamedByItsTwoEndsAlikeOnBoth(t *testing.T) {
	secret := func(r Resource) string {
		_, rest, ok := strings.Cut(string(r.Text()), "shared-secret ")
		if !ok {
			t.Fatalf("no secret in\n%s", r.Text())
		}
		word, _, _ := strings.Cut(rest, ";")
		return word
	}
	here := Resource{Name: "r", Port: 7800, LocalHost: "n1.example", LocalAddress: "10.0.0.1", PeerHost: "n2", PeerAddress: "10.0.0.2"}
	there := Resource{Name: "r", Port: 7800, LocalHost: "n2.example", LocalAddress: "10.0.0.2", PeerHost: "n1", PeerAddress: "10.0.0.1"}
	third, other := here, here
	third.PeerAddress, other.Name = "10.0.0.3", "s"
	if secret(here) != secret(there) {
		t.Errorf("the ends of one link differ: %s, %s", secret(here), secret(there))
	}
	if secret(here) == secret(third) || secret(here) == secret(other) {
		t.Error("another partner, or another volume, has the same word")
	}
}

const secret = "uZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"

func TestOnlyRootReadsTheSecret(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	r := Resource{Name: "escache-1", LocalAddress: "10.0.0.1", PeerAddress: "10.0.0.2", Port: 7800}
	path := filepath.Join(f.Dir, "escache-1.res")
	if err := os.WriteFile(path, r.Text(), 0o644); err != nil { // an earlier version's
		t.Fatal(err)
	}
	for _, r.Secret = range []escache.Secret{"", secret} {
		if _, err := f.Write(r); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st.Mode(), err)
		}
	}
}

func TestBothEndsOfALinkHaveOneSecretAndNobodyElseHasIt(t *testing.T) {
	line := func(r Resource) string {
		_, after, _ := strings.Cut(string(r.Text()), "shared-secret ")
		text, _, _ := strings.Cut(after, ";")
		return text
	}
	one := Resource{Name: "escache-1", LocalAddress: "10.0.0.1", PeerAddress: "10.0.0.2", Port: 7800, Secret: secret}
	two, former, guessing, without := one, one, one, one
	two.LocalAddress, two.PeerAddress = one.PeerAddress, one.LocalAddress
	former.PeerAddress = "10.0.0.3"
	guessing.Secret = escache.Secret("a" + secret[1:])
	without.Secret = ""
	if line(one) != line(two) || len(line(one)) != len(secret)+2 {
		t.Errorf("%s, and on the peer %s", line(one), line(two))
	}
	if strings.Contains(line(one), secret) {
		t.Error("DRBD shows its arguments, and needs to know no more than this link's secret")
	}
	for what, r := range map[string]Resource{"former partner": former, "another secret": guessing, "no secret": without} {
		if line(r) == line(one) {
			t.Errorf("%s is let in", what)
		}
	}
	// Links of earlier versions go on.
	if got := line(without); got != `"13eab34bcd5de91851efb246eb81d41c"` {
		t.Error(got)
	}
}

// drbdadm prints the command that has failed, and hands the secret on as an argument.
func TestAnErrorDoesNotHaveTheSecret(t *testing.T) {
	run := command.RunnerFunc(func(context.Context, command.Command) (command.Result, error) {
		return command.Result{}, &command.ExitError{Command: "drbdadm up r", Code: 10, Stderr: "r: Failure: (102) Local address(port) already in use.\n" +
			"Command 'drbdsetup-84 connect r ipv4:10.0.0.1:7800 ipv4:10.0.0.2:7800 --protocol=C --shared-secret=" + secret +
			" --cram-hmac-alg=sha256' terminated with exit code 10"}
	})
	err := NewControl(run, Files{Dir: t.TempDir()}).Up(t.Context(), "r")
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "already in use") || command.ExitCode(err) != 10 {
		t.Error(err)
	}
}

func TestTidyRemovesWhatAKilledWriteLeft(t *testing.T) {
	f := Files{Dir: t.TempDir()}
	if _, err := f.Write(Resource{Name: "escache-1", LocalAddress: "10.0.0.1", PeerAddress: "10.0.0.2", Port: 7800}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".escache-123.new", "global_common.conf"} {
		if err := os.WriteFile(filepath.Join(f.Dir, name), []byte("resource"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Tidy(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(f.Dir, "*"))
	hidden, _ := filepath.Glob(filepath.Join(f.Dir, ".*"))
	if err != nil || len(hidden) != 0 || !slices.Contains(left, filepath.Join(f.Dir, "escache-1.res")) ||
		!slices.Contains(left, filepath.Join(f.Dir, "global_common.conf")) {
		t.Errorf("%q, hidden %q, %v", left, hidden, err)
	}
}
