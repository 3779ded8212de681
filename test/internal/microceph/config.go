package microceph

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"
)

// conf is ceph.conf for daemons and clients alike.
func (c *Cluster) conf() string {
	var b strings.Builder
	section := func(name string, lines ...string) {
		fmt.Fprintf(&b, "[%s]\n%s\n", name, strings.Join(lines, "\n"))
	}
	global := []string{
		"fsid = " + c.fsid,
		fmt.Sprintf("mon_host = %s", c.mon.vector(c.cfg.Address)),
		"public_addr = " + c.cfg.Address,
		"cluster_addr = " + c.cfg.Address,
		"auth_cluster_required = cephx",
		"auth_service_required = cephx",
		"auth_client_required = cephx",
		"auth_allow_insecure_global_id_reclaim = false",
		// $name is Ceph's own: mon.a, osd.0, client.admin …
		"keyring = " + c.keyring("$name"),
		"log_file = " + c.log("$name"),
		"admin_socket = " + c.adminSocket("$name"),
		"run_dir = " + c.cfg.RunDir,
		// A single copy is the point of this cluster, so nothing shall refuse it or warn of it.
		"osd_pool_default_size = 1",
		"osd_pool_default_min_size = 1",
		"osd_pool_default_pg_num = 8",
		"osd_pool_default_pg_autoscale_mode = off",
		"osd_crush_chooseleaf_type = 0",
		"mon_allow_pool_size_one = true",
		"mon_allow_pool_delete = true",
		"mon_warn_on_pool_no_redundancy = false",
		// A stalled OSD loses its read leases after 0.8 of this, and with no other OSD to renew
		// them its placement groups stay laggy for good.
		"osd_heartbeat_grace = 3600",
		// The disk under the monitor belongs to the machine; how full that is says nothing about
		// this cluster.
		"mon_data_avail_crit = 1",
		"mon_data_avail_warn = 2",
		"mgr_initial_modules =",
	}
	section("global", global...)
	section("client",
		"log_file =",
		// One socket per process would outlive it; clients need none.
		"admin_socket =")
	section("mon", "mon_data = "+c.path("mon"))
	section("mgr", "mgr_data = "+c.path("mgr"))
	section("osd",
		"osd_data = "+c.path("osd"),
		"osd_objectstore = memstore",
		fmt.Sprintf("memstore_device_bytes = %d", c.cfg.CapacityBytes),
		// A loaded machine would otherwise never scrub, and warn of it.
		"osd_scrub_load_threshold = 2000")
	return b.String()
}

// vector is the monitor's address as ceph.conf and monmaptool spell it.
func (a monitorAddress) vector(host string) string {
	return fmt.Sprintf("[v2:%s:%d,v1:%s:%d]", host, a.v2, host, a.v1)
}

// identity is an entity with its key and what it may do.
type identity struct {
	entity string
	key    string
	caps   [][2]string // service and grant, in order
}

// keyring is the identity as a keyring file.
func (id identity) keyring() string {
	lines := []string{"[" + id.entity + "]", "\tkey = " + id.key}
	for _, grant := range id.caps {
		lines = append(lines, fmt.Sprintf("\tcaps %s = %q", grant[0], grant[1]))
	}
	return strings.Join(lines, "\n") + "\n"
}

// newKey makes a cephx secret: type 1 (AES), creation time, length and 16 random bytes, little
// endian, in base64.
func newKey(now time.Time) string {
	secret := make([]byte, 16)
	rand.Read(secret) // never fails, by its contract
	var b bytes.Buffer
	for _, field := range []any{uint16(1), uint32(now.Unix()), uint32(now.Nanosecond()), uint16(len(secret)), secret} {
		if err := binary.Write(&b, binary.LittleEndian, field); err != nil {
			panic(err) // a bytes.Buffer takes everything of a fixed size
		}
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// writeFiles writes ceph.conf and the keyrings, and returns the OSD's key, which the monitor is
// told with `osd new`.
func (c *Cluster) writeFiles(now time.Time) (osdKey string, err error) {
	for _, dir := range []string{c.cfg.RunDir, c.path("log"), c.path("mon"), c.path("mgr"), c.path("osd")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
	}
	osdKey = newKey(now)
	admin := identity{"client.admin", newKey(now), [][2]string{{"mon", "allow *"}, {"osd", "allow *"}, {"mgr", "allow *"}}}
	mgr := identity{manager, newKey(now), [][2]string{{"mon", "allow profile mgr"}, {"osd", "allow *"}}}
	mon := identity{"mon.", newKey(now), [][2]string{{"mon", "allow *"}}}
	files := map[string]string{
		c.Conf():                  c.conf(),
		c.keyring("client.admin"): admin.keyring(),
		c.keyring(manager):        mgr.keyring(),
		c.keyring(osd):            identity{entity: osd, key: osdKey}.keyring(),
		// The monitor's first store takes all identities from its keyring, so none has to be asked
		// for later.
		c.keyring(monitor): mon.keyring() + admin.keyring() + mgr.keyring(),
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return osdKey, os.Chmod(c.Conf(), 0o644)
}
