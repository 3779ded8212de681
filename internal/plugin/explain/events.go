package explain

import (
	"context"
	"slices"
	"strings"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// maxEvents is how many Events are shown, the newest.
const maxEvents = 10

// printEvents shows the Events of the volume, of its claim, and of pods that cannot have it.
func printEvents(ctx context.Context, c *console.Console, api client.Reader, kind string, v metav1.Object, u claims.Use) {
	c.Printf("\nEvents:\n")
	if u.Claim == "" {
		u.Namespace, u.Claim, _ = strings.Cut(v.GetAnnotations()[v1alpha1.AnnotationClaim], "/")
	}
	namespaces := []string{metav1.NamespaceDefault}
	if u.Claim != "" && u.Namespace != metav1.NamespaceDefault {
		namespaces = append(namespaces, u.Namespace)
	}
	var about []eventsv1.Event
	for _, n := range namespaces {
		list := &eventsv1.EventList{}
		if err := api.List(ctx, list, client.InNamespace(n)); err != nil {
			c.Printf("  cannot read those of namespace %s: %v\n", n, err)
			continue
		}
		for _, e := range list.Items {
			r := e.Regarding
			ofClaim := u.Claim != "" && r.Kind == "PersistentVolumeClaim" && r.Name == u.Claim && r.Namespace == u.Namespace
			if ofClaim || u.About(&e) || (r.Kind == kind && r.Name == v.GetName()) {
				about = append(about, e)
			}
		}
	}
	slices.SortFunc(about, func(a, b eventsv1.Event) int { return claims.LastSeen(a).Compare(claims.LastSeen(b)) })
	if len(about) == 0 {
		c.Printf("  none (Kubernetes keeps Events for a limited time)\n")
	}
	for _, e := range about[max(0, len(about)-maxEvents):] {
		c.Printf("  %s  %-8s%s: %s\n", claims.LastSeen(e).Format(time.DateTime), e.Type, e.Reason, e.Note)
	}
}

// waitingFor returns a trouble for each pod that waits for a volume.
func waitingFor(ctx context.Context, c *console.Console, api client.Reader, volume string, u claims.Use) []trouble.Trouble {
	waiting, err := claims.Uses{volume: u}.Waiting(ctx, api, u.Namespace, c.Now())
	if err != nil {
		c.Printf("  cannot read why pods wait: %v\n", err)
	}
	return waiting[volume]
}

func printTroubles(c *console.Console, all []trouble.Trouble, width int) {
	for _, t := range trouble.Lines(all) {
		c.Printf("%s%s", wordwrap.Line("  "+t.What, "    ", width), wordwrap.Line("    -> "+t.Todo, "       ", width))
	}
}
