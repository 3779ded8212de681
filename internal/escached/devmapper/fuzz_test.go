package devmapper

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzAnswers reads any answer of the kernel to each question. It never reads beyond the answer or
// for ever, and what it makes of it stands in the answer.
func FuzzAnswers(f *testing.F) {
	k := &kernel{
		names: []string{"escache-a", "other"},
		targets: map[string][3]string{
			"escache-a": {"writecache", "s 252:0 147:100 4096 2 start_sector 2048", "1 16000 15990 2 7 3 20 4 5 0 11 0 2 0"},
		},
		bare: "escache-bare",
	}
	for number, name := range map[uintptr]string{listDevices: "", listVersions: "", tableStatus: "escache-a"} {
		buf := make([]byte, 1024)
		copy(buf[offName:], name)
		endian.PutUint32(buf[offDataSize:], uint32(len(buf)))
		endian.PutUint32(buf[offDataStart:], headBytes)
		if err := k.answer(0, number, buf); err != nil {
			f.Fatal(err)
		}
		f.Add(buf[:endian.Uint32(buf[offDataSize:])])
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		c := &control{ask: func(_ int, _ uintptr, buf []byte) error {
			copy(buf, answer)
			endian.PutUint32(buf[offFlags:], endian.Uint32(buf[offFlags:])&^flagFull)
			return nil
		}}
		if names, err := c.names(0, "escache-"); err == nil {
			for _, name := range names {
				if !strings.HasPrefix(name, "escache-") || strings.ContainsRune(name, 0) || !bytes.Contains(answer, []byte(name)) {
					t.Errorf("name %q", name)
				}
			}
		}
		if d, there, err := c.device(0, "escache-a"); err == nil && (!there || strings.ContainsRune(d.Table+d.Status+d.Target, 0)) {
			t.Errorf("%v, %+v", there, d)
		}
		if version, err := c.version(0, "writecache"); err == nil && version != "" && !bytes.Contains(answer, []byte("writecache\x00")) {
			t.Errorf("version %q of a target that is not listed", version)
		}
	})
}
