// Package adoption carries out CacheAdoptions: it makes volumes of RBD images that exist, without
// copying or formatting them. Package rebuild carries out those that ask for lost records.
package adoption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/placement"
)

// Volumes adopts images; *volumes.Locked.
type Volumes interface {
	Adopt(ctx context.Context, a volumes.Adoption) (*v1alpha1.CacheVolume, error)
	Withdraw(ctx context.Context, volume, request string) error
}

// Rebuilder re-creates lost records; *rebuild.Rebuilder.
type Rebuilder interface {
	Run(ctx context.Context, a *v1alpha1.CacheAdoption) (v1alpha1.CacheAdoptionStatus, error)
}

// Config holds what a Reconciler needs.
type Config struct {
	Client  client.Client
	Live    client.Reader
	Volumes Volumes
	Rebuild Rebuilder
	Events  events.EventRecorder
	Log     *slog.Logger
	// Again is the time from a failed try to the next; Longest bounds one try.
	Again   time.Duration
	Longest time.Duration
}

// Reconciler carries out CacheAdoptions. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every CacheAdoption while this process leads, and
// for every volume whose adoption was not finished by an earlier process.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		For(&v1alpha1.CacheAdoption{}).
		Watches(&v1alpha1.CacheVolume{}, &handler.EnqueueRequestForObject{},
			builder.WithPredicates(predicate.NewPredicateFuncs(unfinished))).
		WithEventFilter(predicate.GenerationChangedPredicate{}).
		Complete(r)
}

// unfinished reports whether a volume is to be made of an image and does not have it yet.
func unfinished(o client.Object) bool {
	v, ok := o.(*v1alpha1.CacheVolume)
	return ok && v.Spec.Adoption != nil && v.Status.Phase == ""
}

// VolumeID returns the id of the volume that a CacheAdoption makes.
func VolumeID(a *v1alpha1.CacheAdoption) string { return "adopted-" + string(a.UID) }

// Reconcile carries out one CacheAdoption, or records why not. If no CacheAdoption has that name, it takes
// back what was begun for those that are gone.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	a := &v1alpha1.CacheAdoption{}
	err := r.Live.Get(ctx, request.NamespacedName, a)
	if apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.takeBack(ctx)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if final(a) || !a.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	before := a.Status
	v, err := r.carryOut(ctx, a)
	a.Status.Phase = phaseOf(err, a.Spec.DryRun)
	if err != nil {
		a.Status = v1alpha1.CacheAdoptionStatus{Phase: a.Status.Phase, Message: err.Error()}
	}
	if !equality.Semantic.DeepEqual(before, a.Status) {
		if err := r.Client.Status().Update(ctx, a); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	if !final(a) {
		return ctrl.Result{RequeueAfter: r.Again}, nil
	}
	r.Log.InfoContext(ctx, "adoption ended", "adoption", a.Name, "pool", a.Spec.Pool, "image", a.Spec.Image, "phase", a.Status.Phase,
		"volume", a.Status.Volume, "message", a.Status.Message)
	if a.Status.Phase == v1alpha1.AdoptionDone && v != nil {
		r.Events.Eventf(v, a, corev1.EventTypeNormal, "Adopted", "Adopt", "image %s of pool %s is this volume's", v.Spec.Image, v.Spec.Pool)
	}
	return ctrl.Result{}, nil
}

// carryOut does what a CacheAdoption asks for, and writes the result into its status. It returns the
// volume if the result is one.
func (r *Reconciler) carryOut(ctx context.Context, a *v1alpha1.CacheAdoption) (*v1alpha1.CacheVolume, error) {
	if a.Spec.Rebuild != nil {
		status, err := r.Rebuild.Run(ctx, a)
		a.Status = status
		return nil, err
	}
	v, err := r.adopt(ctx, a)
	a.Status = v1alpha1.CacheAdoptionStatus{}
	if err != nil {
		return nil, err
	}
	a.Status.SizeBytes, a.Status.CacheBytes = v.Spec.SizeBytes, v.Spec.CacheBytes
	if !a.Spec.DryRun {
		a.Status.Volume, a.Status.Group = v.Name, v.Spec.Group
	}
	return v, nil
}

// takeBack withdraws the adoptions whose CacheAdoption was deleted before they were done. Nobody would
// finish them.
func (r *Reconciler) takeBack(ctx context.Context) error {
	begun, wanted := &v1alpha1.CacheVolumeList{}, &v1alpha1.CacheAdoptionList{}
	if err := r.Client.List(ctx, begun); err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	begun.Items = slices.DeleteFunc(begun.Items, func(v v1alpha1.CacheVolume) bool { return !unfinished(&v) })
	if len(begun.Items) == 0 {
		return nil
	}
	// A record is written after its CacheAdoption, so this list has those of all that were begun.
	if err := r.Live.List(ctx, wanted); err != nil {
		return fmt.Errorf("list adoptions: %w", err)
	}
	var failures []error
	for i := range begun.Items {
		v := &begun.Items[i]
		request := v.Spec.Adoption.Request
		if slices.ContainsFunc(wanted.Items, func(a v1alpha1.CacheAdoption) bool { return string(a.UID) == request }) {
			continue
		}
		if err := r.Volumes.Withdraw(ctx, v.Name, request); err != nil {
			failures = append(failures, fmt.Errorf("take back the adoption of image %s as volume %s: %w", v.Spec.Image, v.Name, err))
			continue
		}
		r.Log.InfoContext(ctx, "undid an adoption whose request is gone", "volume", v.Name, "pool", v.Spec.Pool, "image", v.Spec.Image)
	}
	return errors.Join(failures...)
}

func final(a *v1alpha1.CacheAdoption) bool {
	return a.Status.Phase != "" && a.Status.Phase != v1alpha1.AdoptionPending
}

func phaseOf(err error, dryRun bool) v1alpha1.AdoptionPhase {
	switch {
	case err == nil && dryRun:
		return v1alpha1.AdoptionChecked
	case err == nil:
		return v1alpha1.AdoptionDone
	}
	for _, refusal := range []error{volumes.ErrRefused, volumes.ErrNotFound, volumes.ErrInvalid, placement.ErrNoFit} {
		if errors.Is(err, refusal) {
			return v1alpha1.AdoptionRefused
		}
	}
	return v1alpha1.AdoptionPending
}

func (r *Reconciler) adopt(ctx context.Context, a *v1alpha1.CacheAdoption) (*v1alpha1.CacheVolume, error) {
	p, err := r.parameters(ctx, a)
	if err != nil {
		return nil, err
	}
	groups, err := r.groups(ctx, a, p)
	if err != nil {
		return nil, err
	}
	request := volumes.Adoption{
		ImageRef: volumes.ImageRef{ClusterID: a.Spec.ClusterID, Pool: a.Spec.Pool, Image: a.Spec.Image},
		Volume:   VolumeID(a), Request: string(a.UID), Groups: groups,
		Engine: p.Engine, Mode: p.Mode, Options: p.Options, Cache: p.Cache.For, FormatIfBlank: a.Spec.FormatIfBlank, DryRun: a.Spec.DryRun,
	}
	if claim := a.Spec.Claim; claim != nil {
		request.Claim = claim.Namespace + "/" + claim.Name
	}
	return r.Volumes.Adopt(ctx, request)
}

// parameters returns those of the StorageClass that count for an image that exists.
func (r *Reconciler) parameters(ctx context.Context, a *v1alpha1.CacheAdoption) (storageclass.Parameters, error) {
	if a.Spec.StorageClass == "" {
		return storageclass.WithDefaults(), nil
	}
	class := &storagev1.StorageClass{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: a.Spec.StorageClass}, class)
	switch {
	case apierrors.IsNotFound(err):
		return storageclass.Parameters{}, fmt.Errorf("there is no StorageClass %s: %w", a.Spec.StorageClass, volumes.ErrRefused)
	case err != nil:
		return storageclass.Parameters{}, err
	case class.Provisioner != v1alpha1.DriverName:
		return storageclass.Parameters{}, fmt.Errorf("StorageClass %s is of driver %s, not of %s: %w",
			class.Name, class.Provisioner, v1alpha1.DriverName, volumes.ErrRefused)
	}
	// The image has its pools already.
	in := maps.Clone(class.Parameters)
	delete(in, "dataPool")
	in["pool"] = a.Spec.Pool
	p, err := storageclass.Parse(in)
	if err != nil {
		return p, fmt.Errorf("StorageClass %s: %w: %w", class.Name, volumes.ErrRefused, err)
	}
	if p.ClusterID != a.Spec.ClusterID {
		return p, fmt.Errorf("StorageClass %s is of Ceph cluster %s, not of %s: %w",
			class.Name, p.ClusterID, a.Spec.ClusterID, volumes.ErrRefused)
	}
	return p, nil
}

// groups returns the allowed groups; nil allows all.
func (r *Reconciler) groups(ctx context.Context, a *v1alpha1.CacheAdoption, p storageclass.Parameters) ([]string, error) {
	if a.Spec.Group == "" {
		return p.NodeGroups, nil
	}
	if len(p.NodeGroups) > 0 && !slices.Contains(p.NodeGroups, a.Spec.Group) {
		return nil, fmt.Errorf("StorageClass %s allows the groups %v, not %s: %w",
			a.Spec.StorageClass, p.NodeGroups, a.Spec.Group, volumes.ErrRefused)
	}
	err := r.Client.Get(ctx, client.ObjectKey{Name: a.Spec.Group}, &v1alpha1.NodeGroup{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no NodeGroup %s: %w", a.Spec.Group, volumes.ErrRefused)
	}
	return []string{a.Spec.Group}, err
}
