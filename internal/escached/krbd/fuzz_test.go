package krbd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzMonitors reads any mon_host. Each monitor is IP:PORT, and none has a letter that would end the
// list of monitors or an option in what the kernel is told.
func FuzzMonitors(f *testing.F) {
	f.Add("10.0.0.1,10.0.0.2:6790;v1:10.0.0.3:6789/0 [v2:10.0.0.4:3300/0,v1:10.0.0.4:6789/0]")
	f.Add("[v2:[fd00::1]:3300/0,v1:[fd00::1]:6789/0] mon.example")
	f.Add("v1:[::ffff:1.2.3.4]:99999999999")
	f.Fuzz(func(t *testing.T, value string) {
		mons, err := parseMonHost(value, func(string) ([]string, error) { return []string{"192.0.2.1", "2001:db8::1"}, nil })
		if err == nil && len(mons) == 0 {
			t.Error("neither a monitor nor an error")
		}
		for _, mon := range mons {
			host, port, err := net.SplitHostPort(mon)
			if err != nil || net.ParseIP(host) == nil || strings.ContainsAny(mon, ", \t\n=") {
				t.Errorf("%q: monitor %q: %v", value, mon, err)
			}
			if n, err := net.LookupPort("tcp", port); err != nil || n < 1 {
				t.Errorf("%q: monitor %q has no port", value, mon)
			}
		}
	})
}

// FuzzDevice reads any contents of an image's directory in sysfs. Only a map of escached's own
// making counts, and its numbers are those that stand there.
func FuzzDevice(f *testing.F) {
	f.Add("rbd", "escache-pvc-1", "10ab", "1073741824", "10.0.0.1:0/3137012424", "10.0.0.1:6789 name=admin,secret=x,exclusive,noshare rbd v1 -", "-")
	f.Add("rbd", "v", "", "0", "[fd00::1]:0/1", "exclusive", "snap")
	dir := filepath.Join(f.TempDir(), "bus/rbd/devices/7")
	block := filepath.Join(dir, "../../../../block/rbd7")
	for _, d := range []string{dir, block} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, pool, name, id, size, address, config, snapshot string) {
		for file, text := range map[string]string{
			"pool": pool, "name": name, "image_id": id, "size": size, "client_addr": address, "config_info": config, "current_snap": snapshot,
			"../../../../block/rbd7/dev": "252:0",
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, ours, err := readDevice(dir)
		if err != nil {
			return
		}
		if d.ID != 7 || d.Number != "252:0" || d.Bytes < 0 || d.Pool != strings.TrimSpace(pool) || d.Image != strings.TrimSpace(name) {
			t.Errorf("%+v", d)
		}
		if ours && (!strings.Contains(config, "noshare") || strings.TrimSpace(snapshot) != "-") {
			t.Errorf("%q, snapshot %q counts as escached's", config, snapshot)
		}
	})
}
