package paging_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/paging"
)

// server has ConfigMaps and serves pages of them, as an API server does.
type server struct {
	client.WithWatch

	objects int
	asked   []int64 // the limit of each request
	expires int     // the number of the request whose page has expired; 0: none
	fails   int     // the number of the request that fails
}

var errDown = errors.New("down")

func (s *server) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	s.asked = append(s.asked, o.Limit)
	if o.Namespace != "shop" {
		return fmt.Errorf("namespace %q", o.Namespace)
	}
	switch len(s.asked) {
	case s.expires:
		return apierrors.NewResourceExpired("the continue token is too old")
	case s.fails:
		return errDown
	}
	first, _ := strconv.Atoi(o.Continue)
	end := s.objects
	if o.Limit > 0 {
		end = min(end, first+int(o.Limit))
	}
	out := list.(*corev1.ConfigMapList)
	for n := first; n < end; n++ {
		out.Items = append(out.Items, corev1.ConfigMap{Data: map[string]string{"n": strconv.Itoa(n)}})
	}
	out.ResourceVersion = "7"
	if end < s.objects {
		out.Continue = strconv.Itoa(end)
	}
	return nil
}

func TestAListIsReadInPages(t *testing.T) {
	for name, c := range map[string]struct {
		server server
		asked  []int64
		err    error
	}{
		"nothing":               {server{}, []int64{500}, nil},
		"one page":              {server{objects: 500}, []int64{500}, nil},
		"pages":                 {server{objects: 1201}, []int64{500, 500, 500}, nil},
		"the second expired":    {server{objects: 1201, expires: 2}, []int64{500, 500, 0}, nil},
		"the third is not read": {server{objects: 1201, fails: 3}, []int64{500, 500, 500}, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			all := &corev1.ConfigMapList{}
			err := paging.Client{WithWatch: &c.server}.List(t.Context(), all, client.InNamespace("shop"))
			if !errors.Is(err, c.err) || !slices.Equal(c.server.asked, c.asked) {
				t.Fatalf("%v, pages of %v, want %v", err, c.server.asked, c.asked)
			}
			if err != nil {
				return
			}
			if len(all.Items) != c.server.objects || all.ResourceVersion != "7" || all.Continue != "" {
				t.Fatalf("%d objects of %d, version %q, continue %q", len(all.Items), c.server.objects, all.ResourceVersion, all.Continue)
			}
			for n, o := range all.Items {
				if o.Data["n"] != strconv.Itoa(n) {
					t.Fatalf("object %d is %s", n, o.Data["n"])
				}
			}
		})
	}
}

func TestACallerCanLimitAList(t *testing.T) {
	s, some := &server{objects: 1201}, &corev1.ConfigMapList{}
	err := paging.Client{WithWatch: s}.List(t.Context(), some, client.InNamespace("shop"), client.Limit(1))
	if err != nil || len(some.Items) != 1 || some.Continue == "" || !slices.Equal(s.asked, []int64{1}) {
		t.Errorf("%v: %d objects, continue %q, pages of %v", err, len(some.Items), some.Continue, s.asked)
	}
}

// kinds answers only those who say what they want.
type kinds struct{ client.WithWatch }

func (kinds) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if kind := list.GetObjectKind().GroupVersionKind().Kind; kind != "SecretList" {
		return fmt.Errorf("a list of kind %q", kind)
	}
	return nil
}

func TestAListWithoutATypeOfItsOwnKeepsItsKind(t *testing.T) {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("SecretList")
	if err := (paging.Client{WithWatch: kinds{}}).List(t.Context(), list); err != nil {
		t.Error(err)
	}
	if list.GetKind() != "SecretList" {
		t.Errorf("it became a %q", list.GetKind())
	}
}

func TestEachObjectOnce(t *testing.T) {
	s, next := &server{objects: 1201}, 0
	err := paging.Each(t.Context(), s, &corev1.ConfigMapList{}, func(o *corev1.ConfigMap) error {
		if o.Data["n"] != strconv.Itoa(next) {
			t.Errorf("object %d is %s", next, o.Data["n"])
		}
		next++
		return nil
	}, client.InNamespace("shop"))
	if err != nil || next != s.objects {
		t.Errorf("%v after %d objects", err, next)
	}
	s = &server{objects: 1201, fails: 2}
	if err := paging.Each(t.Context(), s, &corev1.ConfigMapList{}, func(*corev1.ConfigMap) error { return nil },
		client.InNamespace("shop")); !errors.Is(err, errDown) {
		t.Errorf("got %v", err)
	}
	if err := paging.Each(t.Context(), &server{objects: 1}, &corev1.ConfigMapList{}, func(*corev1.Secret) error { return nil },
		client.InNamespace("shop")); err == nil {
		t.Error("a ConfigMap is no Secret")
	}
}
