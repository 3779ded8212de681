// Package preflight checks a Kubernetes cluster, and the driver in it, by what is in the Kubernetes API. It
// calls no hosts: `escached preflight` checks a host from within. It calls Ceph only if it is given its users.
package preflight

import (
	"context"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/checklist"
)

// Cluster is the Kubernetes cluster that is checked.
type Cluster struct {
	API client.Reader
	// Kubernetes is the API server's version.
	Kubernetes version.Info
	// Namespace is the driver's.
	Namespace string
	// Group names the only NodeGroup whose hosts are checked; empty: all are.
	Group string
	// WithoutSecrets leaves the Secrets out, for an account that may not read them.
	WithoutSecrets bool
	// CephUsers are those whose capabilities are checked; none: nothing of Ceph is.
	CephUsers []CephUser
	// Version is that of the program that checks.
	Version string
	Now     func() time.Time
}

// Checks returns the checks of the cluster.
func (c *Cluster) Checks() []checklist.Check {
	return []checklist.Check{
		checklist.One("Kubernetes", c.kubernetes),
		{Name: "CRDs", Run: c.kinds},
		checklist.One("CSIDriver", c.driver),
		{Name: "pods", Run: c.pods},
		checklist.One("leader", c.leader),
		{Name: "NodeGroups", Run: c.groups},
		checklist.One("versions", c.versions),
		{Name: "StorageClasses", Run: c.classes},
		{Name: "Secrets", Run: c.secrets},
		{Name: "Ceph users", Timeout: capsTimeout, Run: c.caps},
		checklist.One("snapshots", c.snapshots),
	}
}

// The oldest minor version of Kubernetes 1 that works, and the one that has VolumeAttributesClasses.
const (
	oldestMinor     = 30
	attributesMinor = 34
)

func (c *Cluster) kubernetes(context.Context) checklist.Result {
	v := c.Kubernetes
	minor, err := strconv.Atoi(strings.TrimRight(v.Minor, "+")) // some vendors add a "+"
	switch {
	case err != nil || v.Major != "1":
		return checklist.Badf(checklist.Unknown, "compare it with docs/support.md", "version %s, which this program does not know",
			v.GitVersion)
	case minor < oldestMinor:
		return checklist.Badf(checklist.Failed, "upgrade Kubernetes (docs/support.md)", "version %s; the driver needs 1.%d", v.GitVersion,
			oldestMinor)
	case minor < attributesMinor:
		return checklist.Goodf("version %s; changing a volume by a VolumeAttributesClass needs 1.%d", v.GitVersion, attributesMinor)
	}
	return checklist.Goodf("version %s", v.GitVersion)
}

const (
	installRemedy = "install the chart: docs/install.md"
	crdRemedy     = "apply the CRDs of the release: helm show crds CHART | kubectl apply --server-side --force-conflicts -f -"
)

// unread is the result if something cannot be read.
func unread(err error) checklist.Result {
	switch {
	case meta.IsNoMatchError(err):
		return checklist.Badf(checklist.Unknown, crdRemedy, "not checked: the cluster does not know the kind (%v)", err)
	case apierrors.IsForbidden(err):
		return checklist.Badf(checklist.Failed, "ask an administrator for this permission", "%v", err)
	}
	return checklist.Badf(checklist.Failed, "repeat it; if that does not help, see what the API server lacks", "%v", err)
}
