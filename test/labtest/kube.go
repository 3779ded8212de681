package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// Shell runs a script on a host of the lab within limit, and returns what it printed, without white
// space around it.
func Shell(t T, lab *labclient.Client, host, script string, limit time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := lab.Shell(ctx, host, script)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return strings.TrimSpace(out)
}

// HostsOff returns the names of the lab's hosts that have no power.
func HostsOff(ctx context.Context, lab *labclient.Client) ([]string, error) {
	status, err := lab.Status(ctx)
	var names []string
	for _, n := range status.Nodes {
		if n.State == labclient.NodeOff {
			names = append(names, n.Name)
		}
	}
	return names, err
}

// VolumeOf returns the name of a claim's CacheVolume. It asks with kubectl.
func VolumeOf(kubectl func(args ...string) string, claim string) string {
	pv := kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	return kubectl("get", "pv", pv, "-o", "jsonpath={.spec.csi.volumeHandle}")
}

// Pod is a pod that runs a script with one volume, on a given host.
type Pod struct {
	Name, Host, Claim, Script string
	// Namespace may be empty: kubectl's own.
	Namespace string
	// Block: the volume is the device /dev/data. Otherwise it is mounted at /data.
	Block bool
	// More claims are at /CLAIM, or the devices /dev/CLAIM.
	More []string
	// HostNetwork: the pod has the network of its host.
	HostNetwork bool
}

// Object returns the pod's manifest.
func (p Pod) Object(t T) string {
	t.Helper()
	places, path := "volumeMounts", "mountPath: /"
	if p.Block {
		places, path = "volumeDevices", "devicePath: /dev/"
	}
	allPlaces := []string{"{name: data, " + path + "data}"}
	allVolumes := []string{"{name: data, persistentVolumeClaim: {claimName: " + p.Claim + "}}"}
	for _, claim := range p.More {
		allPlaces = append(allPlaces, "{name: "+claim+", "+path+claim+"}")
		allVolumes = append(allVolumes, "{name: "+claim+", persistentVolumeClaim: {claimName: "+claim+"}}")
	}
	place, volumes := strings.Join(allPlaces, ", "), strings.Join(allVolumes, ", ")
	name := p.Name
	if p.Namespace != "" {
		name += ", namespace: " + p.Namespace
	}
	quoted, err := json.Marshal(p.Script)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  hostNetwork: %v
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: c
    image: lab.escache.io/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, %s]
    %s: [%s]
  volumes: [%s]
`, name, p.HostNetwork, p.Host, quoted, places, place, volumes)
}
