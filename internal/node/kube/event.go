package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Event is one thing that happened to a volume; `kubectl describe` shows it.
type Event struct {
	// Warning is true if a problem begins, false if it is over.
	Warning bool
	Reason  string
	Message string
	Time    time.Time
}

type objectReference struct {
	Kind       string    `json:"kind"`
	APIVersion string    `json:"apiVersion"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid,omitempty"`
}

// coreEvent has the fields of a core/v1 Event that this package writes.
type coreEvent struct {
	metav1.TypeMeta `json:",inline"`

	Metadata           metav1.ObjectMeta `json:"metadata"`
	InvolvedObject     objectReference   `json:"involvedObject"`
	Reason             string            `json:"reason"`
	Message            string            `json:"message"`
	Type               string            `json:"type"`
	Count              int               `json:"count"`
	FirstTimestamp     metav1.Time       `json:"firstTimestamp"`
	LastTimestamp      metav1.Time       `json:"lastTimestamp"`
	Source             eventSource       `json:"source"`
	ReportingComponent string            `json:"reportingComponent"`
	ReportingInstance  string            `json:"reportingInstance"`
}

type eventSource struct {
	Component string `json:"component"`
	Host      string `json:"host"`
}

// messageLimit is the API server's limit for an Event's message, in bytes.
const messageLimit = 1024

// eventName returns a name that is unique to the Event. The time is not enough: one poll finds
// several changes.
func eventName(object, node string, e Event) string {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, node, "/", e.Reason, "/", e.Message) // a hash never fails
	return fmt.Sprintf("%s.%x.%08x", object, e.Time.UnixNano(), hash.Sum32())
}

// Emit writes an Event on the volume's PersistentVolumeClaim, or on the CacheVolume if no claim is
// known.
func (c *Client) Emit(ctx context.Context, node string, v *v1alpha1.CacheVolume, e Event) error {
	object := objectReference{
		Kind: "CacheVolume", APIVersion: v1alpha1.GroupVersion().String(), Name: v.Name, UID: v.UID,
	}
	namespace := "default" // where Events of cluster-scoped objects are
	if ns, name, ok := strings.Cut(v.Annotations[v1alpha1.AnnotationClaim], "/"); ok {
		var claim metav1.PartialObjectMetadata
		path := "/api/v1/namespaces/" + url.PathEscape(ns) + "/persistentvolumeclaims/" + url.PathEscape(name)
		if err := c.call(ctx, http.MethodGet, path, "", nil, &claim); err == nil {
			object = objectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: ns, Name: name, UID: claim.UID}
			namespace = ns
		}
	}
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	at := metav1.NewTime(e.Time)
	event := coreEvent{
		TypeMeta:       metav1.TypeMeta{Kind: "Event", APIVersion: "v1"},
		Metadata:       metav1.ObjectMeta{Name: eventName(object.Name, node, e), Namespace: namespace},
		InvolvedObject: object, Reason: e.Reason, Message: e.Message[:min(len(e.Message), messageLimit)], Type: kind, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		Source:             eventSource{Component: "csi-node", Host: node},
		ReportingComponent: v1alpha1.DriverName, ReportingInstance: node,
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/events"
	// A conflict means that the Event is written already: the answer to an earlier try was lost.
	if err := c.call(ctx, http.MethodPost, path, "application/json", event, nil); err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("write Event %s of volume %s: %w", e.Reason, v.Name, err)
	}
	return nil
}
