package failure

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Message turns an error into a sentence that tells the user what to do.
func Message(err error) string {
	var call *url.Error
	var network net.Error
	switch {
	case meta.IsNoMatchError(err), IsNoResource(err):
		return "this Kubernetes cluster does not know the kinds of " + v1alpha1.GroupName + ": install escache-csi's Helm chart, " +
			"or choose the right cluster with --context or --kubeconfig"
	case apierrors.IsForbidden(err):
		return strings.TrimPrefix(err.Error(), "error: ") + ". Ask an administrator for this permission"
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept your credentials; log in again, or choose others with --context"
	case errors.As(err, &call) && errors.As(err, &network):
		host := call.URL
		if u, parseErr := url.Parse(call.URL); parseErr == nil {
			host = u.Host
		}
		return fmt.Sprintf("the API server at %s does not answer (%v); check --context, --server and the network", host, call.Err)
	default:
		return strings.TrimPrefix(err.Error(), ErrUsage.Error()+": ")
	}
}

// IsNoResource reports whether the API server answered that it has no such path, as without the
// CRDs.
func IsNoResource(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && apierrors.IsNotFound(err) && status.Status().Details != nil && status.Status().Details.Name == ""
}
