package inspection

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// strip removes fields that may hold secrets (environment values, last-applied-configuration) and
// managedFields.
func strip(o runtime.Object) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	m.SetManagedFields(nil)
	annotations := m.GetAnnotations()
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	m.SetAnnotations(annotations)
	if pod, ok := o.(*corev1.Pod); ok {
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				for j := range containers[i].Env {
					containers[i].Env[j].Value = ""
				}
			}
		}
	}
	return nil
}

// secrets match Ceph keys, bearer tokens, PEM private keys, and values whose name says that they
// are secret.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`\bAQ[A-Za-z0-9+/]{36}==`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`),
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----`),
	regexp.MustCompile(`(?i)\b(?:secret|password|passwd|token|userkey)["']?\s*[=:]\s*["']?[^\s"',}]{6,}`),
}

const redacted = "[cut]"

func redactSecrets(text []byte) []byte {
	for _, pattern := range secrets {
		text = pattern.ReplaceAll(text, []byte(redacted))
	}
	return text
}
