package lvm

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

// FuzzTag reads any tag. One that is escached's holds what its letters say and nothing else; any
// value can be written, in letters that LVM allows, and read back.
func FuzzTag(f *testing.F) {
	for _, tag := range []string{
		"escache.pool=rbd", "escache.image=a+20b", "escache.self=n1/10.0.0.1", "escache.peer=n2/fd00::2", "escache.image=gr+C3+B6+C3+9Fe",
		"escache.x=+", "escache.x=+4", "escache.=v", "other", "mit Leerzeichen", "\x01\xff",
	} {
		f.Add(tag)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if key, value, ok := decodeTag(text); ok {
			if want, good := plainly(strings.TrimPrefix(text, tagPrefix+key+"=")); !good || value != want {
				t.Errorf("%q was read as %q=%q", text, key, value)
			}
		}
		tag := encodeTag("image", text)
		if strings.ContainsFunc(tag, func(r rune) bool {
			return !strings.ContainsRune("_+.=:&#!/-", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			t.Errorf("%q: LVM would refuse %q", text, tag)
		}
		if key, value, ok := decodeTag(tag); !ok || key != "image" || value != text {
			t.Errorf("%q came back as %q, %q, %v", text, key, value, ok)
		}
	})
}

// plainly decodes a value: two hex digits follow each "+".
func plainly(text string) (string, bool) {
	parts := strings.Split(text, "+")
	out := parts[0]
	for _, part := range parts[1:] {
		if len(part) < 2 {
			return "", false
		}
		c, err := hex.DecodeString(part[:2])
		if err != nil {
			return "", false
		}
		out += string(c) + part[2:]
	}
	return out, true
}

// FuzzReport reads any output of lvs and vgs. Only volumes with tags of escached are listed, each
// with the size that is written there, and no size is negative.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"report":[{"lv":[
		{"lv_name":"root","lv_size":"104857600","lv_active":"active","lv_tags":"mine"},
		{"lv_name":"escache-1","lv_size":"67108864","lv_active":"","lv_tags":"escache.pool=rbd,other,escache.image=a+20b"}]}]}`))
	f.Add([]byte(`  {
      "report": [
          {
              "vg": [
                  {"vg_uuid":"VrBDsh-h4CL-CN8H-gQ3x-IT5q-H5S5-WzVlCH", "vg_size":"10733223936", "vg_free":"10599006208",
                   "vg_extent_size":"4194304", "vg_missing_pv_count":"0"}
              ]
          }
      ]
      ,
      "log": [
      ]
  }`))
	f.Add([]byte(`{"report":[{"vg":[]}]}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		all, err := parseVolumes(out)
		if err != nil && all != nil {
			t.Errorf("volumes beside an error: %+v, %v", all, err)
		}
		for _, v := range all {
			if len(v.Tags) == 0 || v.Bytes < 0 {
				t.Errorf("%+v", v)
			}
		}
		s, err := New("vg", &fakeRunner{out: string(out)}).Space(t.Context())
		if err == nil && (s.Capacity < 0 || s.Free < 0 || s.Free > s.Capacity || s.Extent <= 0 || s.Missing < 0 || s.GroupID == "") {
			t.Errorf("%+v", s)
		}
		if err == nil && !json.Valid(out) {
			t.Errorf("%q is not JSON", out)
		}
	})
}
