package loss

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// discardFlags are the flags of discard-cache.
type discardFlags struct {
	dryRun  bool
	reason  string
	timeout time.Duration
}

// Discard returns the command discard-cache.
func Discard(c *console.Console) *cobra.Command {
	var f discardFlags
	command := &cobra.Command{
		Use:   "discard-cache VOLUME",
		Short: "Give up the data of a volume that only its lost caches have",
		Long: "Give up the data of a volume that only its lost caches have, so that it can be attached with the data in Ceph.\n\n" +
			"The driver refuses while a host with a current copy answers. You have to type the volume's name.",
		Example: "  kubectl escache discard-cache pvc-0a1b --dry-run\n" +
			"  kubectl escache discard-cache pvc-0a1b --reason=\"n1 and n2 burnt\"",
		Args: console.OneArg("VOLUME"),
		RunE: func(command *cobra.Command, args []string) error {
			return runDiscard(command.Context(), c, args[0], f)
		},
	}
	command.Flags().BoolVar(&f.dryRun, "dry-run", false, "only show what would be lost, and check your permission")
	command.Flags().StringVar(&f.reason, "reason", "", "why you do it; kept on record")
	command.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "stop waiting after this time; the request stays")
	return command
}

func runDiscard(ctx context.Context, c *console.Console, name string, f discardFlags) error {
	api, err := c.Connect()
	if err != nil {
		return err
	}
	v, err := claims.ReadVolume(ctx, api, name)
	if err != nil {
		return err
	}
	if v.Status.Authority != v1alpha1.AuthorityCache {
		return fmt.Errorf("all data of volume %s is in Ceph: there is nothing to discard", name)
	}
	if err := printLoss(ctx, c, api, v); err != nil {
		return err
	}
	if !f.dryRun {
		if err := c.Confirm("This loses acknowledged writes for good.", name); err != nil {
			return err
		}
	}
	review := &authenticationv1.SelfSubjectReview{}
	if err := api.Create(ctx, review); err != nil {
		return fmt.Errorf("ask who you are: %w", err)
	}
	request := &v1alpha1.CacheDiscard{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec: v1alpha1.CacheDiscardSpec{
			Volume: name, Confirm: name, Epoch: v.Status.Epoch, RequestedBy: review.Status.UserInfo.Username, Reason: f.reason,
		},
	}
	if f.dryRun {
		if err := api.Create(ctx, request, client.DryRunAll); err != nil {
			return err
		}
		c.Printf("dry run: nothing was changed\n")
		return nil
	}
	if err := api.Create(ctx, request); err != nil {
		return err
	}
	return awaitDiscard(ctx, c, api, request, f.timeout)
}

// printLoss shows how much may be lost, and what is known of the copies.
func printLoss(ctx context.Context, c *console.Console, api client.Reader, v *v1alpha1.CacheVolume) error {
	c.Printf("Volume %s of claim %s: %s were dirty when last recorded.\n",
		v.Name, claims.OnRecord(v), v1alpha1.HumanBytes(v.Status.DirtyBytes))
	g := &v1alpha1.NodeGroup{}
	if err := api.Get(ctx, client.ObjectKey{Name: v.Spec.Group}, g); err != nil {
		return err
	}
	for _, node := range v.Spec.Replicas {
		copyIs := "current"
		if v.Status.IsOutdated(node) {
			copyIs = "outdated"
		}
		seen := "is not in the status of group " + g.Name
		if i := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node }); i >= 0 {
			m := g.Status.Members[i]
			seen = "was last seen " + console.Ago(m.LastSeen, c.Now())
			if m.Ready {
				seen = "answers"
			}
		}
		c.Printf("  on record the copy on %s is %s; the host %s\n", node, copyIs, seen)
	}
	return nil
}

func awaitDiscard(ctx context.Context, c *console.Console, api client.Reader, request *v1alpha1.CacheDiscard, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return console.Poll(ctx, console.PollInterval/4, func() (bool, error) {
		if err := api.Get(ctx, client.ObjectKeyFromObject(request), request); err != nil {
			return false, err
		}
		switch request.Status.Phase { //nolint:exhaustive // all others are pending
		case v1alpha1.DiscardDone:
			c.Printf("discarded: the truth of volume %s is in Ceph now; the copies on %s will be wiped when their hosts are back\n",
				request.Spec.Volume, strings.Join(request.Status.Nodes, " and "))
			return true, nil
		case v1alpha1.DiscardRefused:
			return true, fmt.Errorf("refused, nothing was changed: %s", request.Status.Message)
		default:
			return false, nil
		}
	}, func() error {
		return fmt.Errorf("%w: CacheDiscard %s is pending (%s); the driver keeps trying. "+
			"To withdraw it: kubectl delete cachediscard %s",
			failure.ErrTimeUp, request.Name, request.Status.Message, request.Name)
	})
}
