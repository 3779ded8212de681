package renewal

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// document is a Secret or a ConfigMap.
type document struct {
	kind   string
	object client.Object
	get    func(key string) []byte
	set    func(key string, value []byte)
}

func (d *document) String() string { return d.kind + " " + d.object.GetName() }

func (r *Renewal) secret(suffix string) *document {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Prefix + suffix}}
	return &document{
		kind: "Secret", object: s,
		get: func(key string) []byte { return s.Data[key] },
		set: func(key string, value []byte) { s.Data[key] = value },
	}
}

// authoritiesMap is for those who need no key: whom hosts, and whom their callers believe.
func (r *Renewal) authoritiesMap() *document {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Prefix + believed}}
	return &document{
		kind: "ConfigMap", object: m,
		get: func(key string) []byte { return []byte(m.Data[key]) },
		set: func(key string, value []byte) { m.Data[key] = string(value) },
	}
}

func (d *document) read(ctx context.Context, from client.Reader) error {
	err := from.Get(ctx, client.ObjectKeyFromObject(d.object), d.object)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s is not there; helm upgrade makes it", d)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", d, err)
	}
	return nil
}

// write fails with errChanged if the object is not as it was read.
func (d *document) write(ctx context.Context, to client.Writer) error {
	err := to.Update(ctx, d.object)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w: %w", d, errChanged, err)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d, err)
	}
	return nil
}
