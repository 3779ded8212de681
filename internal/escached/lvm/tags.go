package lvm

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// tagPrefix begins every tag of escached. LVM allows only [A-Za-z0-9_+.=:&#!/-] in a tag, and 1024
// bytes. A tag is "escache.KEY=VALUE". In VALUE, a byte that LVM may refuse is written as "+XX".
const tagPrefix = "escache."

// encodeTag returns the tag of one pair. Keys are escached's own and need no encoding.
func encodeTag(key, value string) string {
	var b strings.Builder
	b.WriteString(tagPrefix + key + "=")
	for _, c := range []byte(value) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "+%02X", c)
		}
	}
	return b.String()
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' || c == '/' || c == ':'
}

// decodeTag returns the key and value of a tag. ok is false if the tag is not escached's.
func decodeTag(tag string) (key, value string, ok bool) {
	rest, ours := strings.CutPrefix(tag, tagPrefix)
	key, enc, pair := strings.Cut(rest, "=")
	if !ours || !pair || key == "" {
		return "", "", false
	}
	var b strings.Builder
	for i := 0; i < len(enc); i++ {
		if enc[i] != '+' {
			b.WriteByte(enc[i])
			continue
		}
		if i+2 >= len(enc) {
			return "", "", false
		}
		c, err := hex.DecodeString(enc[i+1 : i+3])
		if err != nil {
			return "", "", false
		}
		b.Write(c)
		i += 2
	}
	return key, b.String(), true
}

func encodeTags(tags map[string]string) map[string]bool {
	out := make(map[string]bool, len(tags))
	for k, v := range tags {
		out[encodeTag(k, v)] = true
	}
	return out
}

// addTag adds one tag. Earlier versions could leave two values of a key, after a change that failed and was made all the
// same.
func (v *Volume) addTag(key, value string) {
	before, twice := v.Tags[key]
	if twice && !slices.Contains(v.Twice, key) {
		v.Twice = append(v.Twice, key)
		slices.Sort(v.Twice)
	}
	if twice && key == epochKey && newer(before, value) {
		return
	}
	v.Tags[key] = value
}

// epochKey is the one key of which it is clear which value counts: epochs only grow.
const epochKey = "epoch"

func newer(a, b string) bool {
	first, err := strconv.ParseInt(a, 10, 64)
	second, wrong := strconv.ParseInt(b, 10, 64)
	return err == nil && (wrong != nil || first > second)
}

// splitTags returns the tags of LVM's field lv_tags.
func splitTags(field string) []string { return strings.Split(strings.TrimSpace(field), ",") }
