package console

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/paging"
)

// RequestTimeout bounds one request to the API server, unless --request-timeout says otherwise.
const RequestTimeout = 30 * time.Second

// RESTConfig says how to reach the API server that the flags and the kubeconfig name.
func (c *Console) RESTConfig() (*restclient.Config, error) {
	config, err := c.Config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	if config.Timeout == 0 {
		config.Timeout = RequestTimeout
	}
	return config, nil
}

// Connect returns a client for the API server, which reads lists in pages.
func (c *Console) Connect() (client.WithWatch, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	// The API server limits calls itself (priority and fairness). The client's default limit would
	// delay polls, and make them fail near the end of --timeout.
	config.QPS = -1
	config.WarningHandler = nil
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return paging.Client{WithWatch: api}, nil
}

// Clientset returns a client for what Connect's cannot read: logs.
func (c *Console) Clientset() (kubernetes.Interface, error) {
	config, err := c.Config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Namespace returns the one of the flags or of the kubeconfig.
func (c *Console) Namespace() (string, error) {
	namespace, _, err := c.Config.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}
