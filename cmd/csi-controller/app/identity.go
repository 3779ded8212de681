package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/pause"
)

// kubernetesCluster returns the identity of the Kubernetes cluster: the UID of the namespace
// kube-system, which no other has and which a restored etcd keeps.
func kubernetesCluster(ctx context.Context, kube client.Reader) (string, error) {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := &corev1.Namespace{}
	err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, n)
	switch {
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("the UID of namespace %[1]s is the identity of this Kubernetes cluster, with which its images are marked: "+
			"let csi-controller's service account get that one namespace, with a rule in its ClusterRole like the chart's "+
			"(apiGroups: [\"\"], resources: [namespaces], resourceNames: [%[1]s], verbs: [get]): %[2]w", metav1.NamespaceSystem, err)
	case err != nil:
		return "", fmt.Errorf("read the identity of this Kubernetes cluster: %w", err)
	case n.UID == "":
		return "", fmt.Errorf("namespace %s has no UID", metav1.NamespaceSystem)
	}
	return string(n.UID), nil
}

// knownCluster is kubernetesCluster that waits for an API server that does not answer.
func knownCluster(ctx context.Context, kube client.Reader, log *slog.Logger, again time.Duration) (string, error) {
	for {
		identity, err := kubernetesCluster(ctx, kube)
		if err == nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || ctx.Err() != nil {
			return identity, err
		}
		log.WarnContext(ctx, "the API server does not say which Kubernetes cluster this is; trying again", "error", err)
		if err := pause.For(ctx, again); err != nil {
			return "", err
		}
	}
}
