package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

const (
	volumesPath  = "/apis/" + v1alpha1.GroupName + "/v1alpha1/cachevolumes"
	readOnlyPath = "/apis/" + v1alpha1.GroupName + "/v1alpha1/readonlyvolumes"
)

// Volume reads a CacheVolume, current as of the call.
func (c *Client) Volume(ctx context.Context, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	if err := c.read(ctx, "CacheVolume", volumesPath, name, v); err != nil {
		return nil, err
	}
	return v, nil
}

// ReadOnlyVolume reads a ReadOnlyVolume, current as of the call.
func (c *Client) ReadOnlyVolume(ctx context.Context, name string) (*v1alpha1.ReadOnlyVolume, error) {
	v := &v1alpha1.ReadOnlyVolume{}
	if err := c.read(ctx, "ReadOnlyVolume", readOnlyPath, name, v); err != nil {
		return nil, err
	}
	return v, nil
}

// read reads one object of a kind.
func (c *Client) read(ctx context.Context, kind, path, name string, into any) error {
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return fmt.Errorf("read %s %q: %w: no object has that name", kind, name, ErrNotFound)
	}
	if err := c.call(ctx, http.MethodGet, path+"/"+url.PathEscape(name), "", nil, into); err != nil {
		return fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	return nil
}

// VolumeOf finds the CacheVolume of an image. An image has its CacheVolume's name behind ImagePrefix:
// one small read finds it, which matters because I/O may be frozen until VolumeOf returns. An image
// that was made under another prefix takes more reads, at worst a list of all CacheVolumes, page by
// page.
func (c *Client) VolumeOf(ctx context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error) {
	for _, name := range c.namesOf(ref.Image) {
		v, err := c.Volume(ctx, name)
		if err == nil && v.Spec.Pool == ref.Pool && v.Spec.Image == ref.Image {
			return v, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
	}
	type item struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Pool  string `json:"pool"`
			Image string `json:"image"`
		} `json:"spec"`
	}
	query := url.Values{"limit": {"250"}}
	for {
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []item          `json:"items"`
		}
		if err := c.call(ctx, http.MethodGet, volumesPath+"?"+query.Encode(), "", nil, &page); err != nil {
			return nil, fmt.Errorf("list CacheVolumes: %w", err)
		}
		for _, i := range page.Items {
			if i.Spec.Pool == ref.Pool && i.Spec.Image == ref.Image {
				return c.Volume(ctx, i.Metadata.Name)
			}
		}
		if page.Metadata.Continue == "" {
			return nil, fmt.Errorf("CacheVolume of image %s/%s: %w", ref.Pool, ref.Image, ErrNotFound)
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// namesOf returns the names that the CacheVolume of an image may have, the likeliest first.
func (c *Client) namesOf(image string) []string {
	var names []string
	add := func(name string, ok bool) {
		if ok && name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	add(strings.CutPrefix(image, c.ImagePrefix))
	_, name, ok := strings.Cut(image, "-")
	add(name, ok)
	add(image, true)
	return names
}

// PatchStatus changes fields of a CacheVolume's status. It fails with ErrConflict if the object has
// changed since v was read. With the list of
// outdated nodes it changes the summary of that list, too.
func (c *Client) PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error) {
	if nodes, changes := status["outdated"].([]string); changes {
		status = maps.Clone(status)
		summary := map[string]any{}
		if given, ok := status["summary"].(map[string]any); ok {
			summary = maps.Clone(given)
		}
		summary["outdated"] = strings.Join(nodes, ",")
		status["summary"] = summary
	}
	return c.patch(ctx, v, volumesPath+"/"+url.PathEscape(v.Name)+"/status", map[string]any{
		"metadata": map[string]any{"resourceVersion": v.ResourceVersion}, "status": status,
	})
}

// Annotate sets an annotation of a CacheVolume. It fails with ErrConflict if the object has changed
// since v was read.
func (c *Client) Annotate(ctx context.Context, v *v1alpha1.CacheVolume, key, value string) (*v1alpha1.CacheVolume, error) {
	return c.patch(ctx, v, volumesPath+"/"+url.PathEscape(v.Name), map[string]any{
		"metadata": map[string]any{"resourceVersion": v.ResourceVersion, "annotations": map[string]any{key: value}},
	})
}

func (c *Client) patch(ctx context.Context, v *v1alpha1.CacheVolume, path string, patch map[string]any) (*v1alpha1.CacheVolume, error) {
	changed := &v1alpha1.CacheVolume{}
	if err := c.call(ctx, http.MethodPatch, path, "application/merge-patch+json", patch, changed); err != nil {
		return nil, fmt.Errorf("change CacheVolume %s: %w", v.Name, err)
	}
	return changed, nil
}
