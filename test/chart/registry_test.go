package chart

import (
	"strings"
	"testing"
)

// TestOneRegistryForAllImages wants every image, those of the sidecars too, from global.imageRegistry,
// and nothing else changed: a mirror has the same repositories, tags and digests.
func TestOneRegistryForAllImages(t *testing.T) {
	const mirror = "mirror.example:5000/cluster"
	withEach(t, func(t *testing.T, version string) {
		for name, values := range cases(t) {
			before := images(t, renderWith(t, version, values))
			after := images(t, renderWith(t, version, values, "--set", "global.imageRegistry="+mirror))
			if len(before) != len(after) || len(before) < 5 {
				t.Fatalf("%s: %d images, and %d with a registry for all", name, len(before), len(after))
			}
			for i, image := range after {
				_, repository, _ := strings.Cut(before[i], "/")
				if want := mirror + "/" + repository; image != want {
					t.Errorf("%s: %s, not %s", name, image, want)
				}
			}
		}
	})
}

func TestAWrongRegistryIsRefused(t *testing.T) {
	for _, registry := range []string{"https://mirror.example", "mirror.example/", "mirror example"} {
		_, err := helm(t, helm4, "template", release, chartDir, "--values", cases(t)["default"], "--set", "global.imageRegistry="+registry)
		if err == nil || !strings.Contains(err.Error(), "/global/imageRegistry") {
			t.Errorf("%q: %v", registry, err)
		}
	}
}

// images are those of all containers, in the order of the manifests.
func images(t *testing.T, manifests string) []string {
	t.Helper()
	var out []string
	for _, o := range parse(t, manifests) {
		for _, c := range containers(o) {
			image, ok := c["image"].(string)
			if !ok || image == "" {
				t.Fatalf("%s %s has a container without an image", o.kind(), o.name())
			}
			out = append(out, image)
		}
	}
	return out
}
