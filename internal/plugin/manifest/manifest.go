// Package manifest prints objects as kubectl apply takes them, and knows which tool applies those
// that exist.
package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
)

// YAML returns an object as kubectl apply takes it.
func YAML(o runtime.Object) (string, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return "", err
	}
	delete(content, "status")
	if metadata, ok := content["metadata"].(map[string]any); ok {
		delete(metadata, "creationTimestamp")
	}
	var text strings.Builder
	err = (&printers.YAMLPrinter{}).PrintObj(&unstructured.Unstructured{Object: content}, &text)
	return text.String(), err
}

// Storage is a size as Kubernetes writes it.
func Storage(bytes int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}
