//go:build e2e

package controller

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const class = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: escache}
provisioner: csi.escache.io
allowVolumeExpansion: true
parameters: {clusterID: lab, pool: fast, dataPool: rbd, imageFeatures: "layering,exclusive-lock", objectSize: 8Mi, cacheSize: "10%,min=64Mi", highWatermark: "70", lowWatermark: "30"}
`

const claim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOncePod], storageClassName: escache, resources: {requests: {storage: 2Gi}}}
`

// topologyArgs keep external-provisioner from choosing groups by a hash of the claim's name:
// placement chooses.
var topologyArgs = map[string][]string{"csi-provisioner": {"--strict-topology=true", "--immediate-topology=false"}}

func claimLife(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	w.kubectl(t, class, "apply", "-f", "-")
	w.kubectl(t, claim, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")

	v := w.volumes(t)[0]
	if v.Status.Phase != v1alpha1.VolumeReady || v.Annotations[v1alpha1.AnnotationClaim] != "default/data" {
		t.Errorf("record %+v", v)
	}
	if want := int64(208 << 20); v.Spec.CacheBytes != want {
		t.Errorf("cache of %d bytes, want %d", v.Spec.CacheBytes, want)
	}
	var image struct {
		Size       int64    `json:"size"`
		ObjectSize int64    `json:"object_size"`
		Features   []string `json:"features"`
		DataPool   string   `json:"data_pool"`
	}
	must(t, json.Unmarshal([]byte(w.rbd(t, "info", "--format", "json", "fast/"+v.Spec.Image)), &image))
	slices.Sort(image.Features)
	if image.Size != 2*gib || image.ObjectSize != 8<<20 || image.DataPool != "rbd" ||
		!slices.Equal(image.Features, []string{"data-pool", "exclusive-lock", "layering"}) {
		t.Errorf("image %+v", image)
	}
	t.Logf("\n%s\n%s", w.kubectl(t, "", "get", "nodegroups"), w.kubectl(t, "", "get", "cachevolumes"))

	w.kubectl(t, "", "patch", "pvc", "data", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"3Gi"}}}}`)
	w.kubectl(t, "", "wait", "--for=jsonpath={.spec.sizeBytes}=3221225472", "cachevolume/"+v.Name, "--timeout=60s")
	eventually(t, 20*time.Second, func() bool {
		must(t, json.Unmarshal([]byte(w.rbd(t, "info", "--format", "json", "fast/"+v.Spec.Image)), &image))
		return image.Size == 3*gib
	}, func() string { return "the image did not grow" })

	attachment := fmt.Sprintf(`{"apiVersion":"storage.k8s.io/v1","kind":"VolumeAttachment","metadata":{"name":"data"},"spec":{"attacher":%q,`+
		`"nodeName":%q,"source":{"persistentVolumeName":%q}}}`, v1alpha1.DriverName, v.Spec.Replicas[0],
		w.kubectl(t, "", "get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"))
	w.kubectl(t, attachment, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.attached}=true", "volumeattachment/data", "--timeout=60s")
	w.kubectl(t, "", "delete", "volumeattachment", "data", "--timeout=60s")

	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass", "escache")
}

// badObjects shows that the API server itself refuses what would make no sense.
func badObjects(t *testing.T, w *world) {
	const volume = `{"apiVersion":"escache.io/v1alpha1","kind":"CacheVolume","metadata":{"name":"bad"},"spec":{"clusterID":"lab","pool":"rbd",` +
		`"image":"i","sizeBytes":1073741824,"cacheBytes":67108864,"cacheMode":"writeback","group":"g1","replicas":["n1","n2"],"port":7800,"minor":100}}`
	const group = `{"apiVersion":"escache.io/v1alpha1","kind":"NodeGroup","metadata":{"name":"bad"},"spec":{"nodes":["a","b","c"]}}`
	const flush = `{"apiVersion":"escache.io/v1alpha1","kind":"CacheFlush","metadata":{"name":"bad"},"spec":{"volume":"v"}}`
	const rebuild = `{"apiVersion":"escache.io/v1alpha1","kind":"CacheAdoption","metadata":{"name":"bad"},"spec":{"clusterID":"lab","pool":"none",` +
		`"rebuild":{}}}`
	for _, object := range []string{volume, group, flush, rebuild} {
		if out, err := w.try(object, "apply", "-f", "-"); err != nil {
			t.Fatalf("a good object is refused: %s", out)
		}
	}
	for name, tc := range map[string]struct{ object, from, to, says string }{
		"two replicas on one node": {volume, `["n1","n2"]`, `["n1","n1"]`, "two different nodes"},
		"one replica":              {volume, `["n1","n2"]`, `["n1"]`, "at least 2 items"},
		"odd size":                 {volume, `1073741824`, `1073741825`, "multiple of 4096"},
		"shrunk":                   {volume, `1073741824`, `1048576`, "cannot shrink"},
		"other pool":               {volume, `"rbd"`, `"fast"`, "pool is immutable"},
		"data pool added":          {volume, `"pool":"rbd"`, `"pool":"rbd","dataPool":"fast"`, "dataPool is immutable"},
		"other port":               {volume, `7800`, `7801`, "port is immutable"},
		"other size of the cache":  {volume, `67108864`, `134217728`, "cacheBytes is changed by csi-controller only"},
		"odd size of the cache": {
			volume, `"cacheBytes":67108864`, `"cacheBytes":67108864,"wantedCacheBytes":134217729`, "wantedCacheBytes is a multiple of 4 MiB",
		},
		"unknown mode": {volume, `writeback`, `writeonce`, "Unsupported value"},
		"two nodes":    {group, `["a","b","c"]`, `["a","b"]`, "at least 3 items"},
		"seventeen nodes": {
			group, `["a","b","c"]`, `["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]`, "at most 16 items",
		},
		"one node twice":      {group, `["a","b","c"]`, `["a","b","a"]`, "are different ones"},
		"two nodes replaced":  {group, `["a","b","c"]`, `["a","x","y"]`, "one node at a time"},
		"nothing to flush":    {flush, `"volume":"v"`, `"mode":"Drain"`, "exactly one"},
		"two things to flush": {flush, `"volume":"v"`, `"volume":"v","node":"n"`, "exactly one"},
		"nothing to adopt":    {rebuild, `,"rebuild":{}`, ``, "image is required"},
		"a rebuild elsewhere": {rebuild, `"rebuild":{}`, `"rebuild":{},"group":"g1"`, "rebuild goes without group"},
		"a slash in a pool":   {rebuild, `"pool":"none"`, `"pool":"rbd/namespace"`, "spec.pool in body should match"},
		"a slash in an image": {rebuild, `"rebuild":{}`, `"image":"rbd/image"`, "spec.image in body should match"},
		"a choice for all":    {rebuild, `"rebuild":{}`, `"rebuild":{"useCopy":"n1","after":"i"}`, "useCopy is for one image"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := w.try(strings.Replace(tc.object, tc.from, tc.to, 1), "apply", "-f", "-")
			if err == nil || !strings.Contains(out, tc.says) {
				t.Errorf("got %v: %s", err, out)
			}
		})
	}
	groupsGrowAndShrink(t, w, group)
	w.kubectl(t, "", "delete", "cachevolume/bad", "nodegroup/bad", "cacheflush/bad", "cacheadoption/bad")
}

// groupsGrowAndShrink changes a group: any number of nodes may come at once, one may go or be replaced.
func groupsGrowAndShrink(t *testing.T, w *world, group string) {
	t.Helper()
	for _, step := range []struct {
		nodes string
		says  string // empty: it is taken
	}{
		{`["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p"]`, ""},
		{`["a","b","c","d","e"]`, "one node at a time"},
		{`["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o"]`, ""},
		{`["a","b","c","d","e","f","g","h","i","j","k","l","m","x","y"]`, "one node at a time"},
		{`["a","b","c","d","e","f","g","h","i","j","k","l","m","n","x","y"]`, ""},
	} {
		out, err := w.try(strings.Replace(group, `["a","b","c"]`, step.nodes, 1), "apply", "-f", "-")
		if (err == nil) != (step.says == "") || !strings.Contains(out, step.says) {
			t.Errorf("%s: got %v: %s", step.nodes, err, out)
		}
	}
}

// try is kubectl that may fail.
func (w *world) try(stdin string, args ...string) (string, error) {
	command := exec.Command(w.kube.Kubectl(), append([]string{"--kubeconfig", w.kube.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(stdin)
	out, err := command.CombinedOutput()
	return string(out), err
}
