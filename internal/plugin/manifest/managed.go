package manifest

import (
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ManagedBy names the tool that makes an object from files of its own, so that a change of the object
// alone does not last. It is empty if none is known. The keys are those that Helm, Argo CD and Flux
// document for what they manage.
func ManagedBy(o client.Object) string {
	labels, notes := o.GetLabels(), o.GetAnnotations()
	application, _, _ := strings.Cut(notes["argocd.argoproj.io/tracking-id"], ":")
	switch {
	case notes["meta.helm.sh/release-name"] != "":
		return fmt.Sprintf("Helm release %s in namespace %s", notes["meta.helm.sh/release-name"], notes["meta.helm.sh/release-namespace"])
	case application != "":
		return "application " + application + " of Argo CD"
	case labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return "Kustomization " + labels["kustomize.toolkit.fluxcd.io/name"] + " of Flux"
	case labels["app.kubernetes.io/managed-by"] == "Helm":
		return "a Helm chart"
	default:
		return ""
	}
}
