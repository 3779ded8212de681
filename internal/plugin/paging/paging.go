// Package paging reads long lists from the API server in pages, as kubectl get does (--chunk-size), so
// that neither end has to hold or send thousands of objects at once.
package paging

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Size is how many objects a page has: as many as kubectl's.
const Size = 500

// Client is a client whose List reads pages. It leaves a list alone that the caller limits itself.
type Client struct{ client.WithWatch }

// List reads all pages into list. If a page has expired on the API server, it reads the list whole.
func (c Client) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if asked := (&client.ListOptions{}).ApplyOptions(opts); asked.Limit != 0 || asked.Continue != "" {
		return c.WithWatch.List(ctx, list, opts...)
	}
	all, _, err := pages(c.WithWatch, list, opts).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(all)
	if err != nil {
		return err
	}
	read, err := meta.ListAccessor(all)
	if err != nil {
		return err
	}
	list.SetResourceVersion(read.GetResourceVersion())
	return meta.SetList(list, items)
}

// Each calls do for each object of a list. At most two pages are in memory at a time: the objects that
// do does not keep are freed. list only says of which kind the objects are, and stays empty.
func Each[T runtime.Object](
	ctx context.Context, api client.Reader, list client.ObjectList, do func(T) error, opts ...client.ListOption,
) error {
	p := pages(api, list, opts)
	p.PageBufferSize = 1
	return p.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("%T has a %T in it", list, o)
		}
		return do(object)
	})
}

// All reads all objects of a kind, sorted by name, without what no output shows. list says which
// kind.
func All[T any, P interface {
	*T
	client.Object
}](ctx context.Context, api client.Reader, list client.ObjectList) ([]T, error) {
	var all []T
	err := Each(ctx, api, list, func(o P) error {
		o.SetManagedFields(nil)
		all = append(all, *o)
		return nil
	})
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(P(&a).GetName(), P(&b).GetName()) })
	return all, err
}

// pages returns a pager for the kind of list.
func pages(api client.Reader, list client.ObjectList, opts []client.ListOption) *pager.ListPager {
	kind, named := reflect.TypeOf(list).Elem(), list.GetObjectKind().GroupVersionKind()
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, ok := reflect.TypeAssert[client.ObjectList](reflect.New(kind))
		if !ok {
			return nil, fmt.Errorf("%s is no list", kind)
		}
		page.GetObjectKind().SetGroupVersionKind(named) // unstructured lists have no other kind
		// The options of the page come last: they count.
		here := append(append([]client.ListOption{}, opts...), client.Limit(o.Limit), client.Continue(o.Continue))
		return page, api.List(ctx, page, here...)
	})
	p.PageSize = Size
	return p
}
