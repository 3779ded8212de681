package volumes

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// NoteVersion is the version of the form of a Note. It rises when a field changes its meaning or
// goes; a new field does not change it.
const NoteVersion = 1

// Note is what an image's metadata says of its volume: what people need to find the volume again, and
// to make its record again. It is as of the last attachment, or of the creation. It never decides who
// may write, with one exception: if it is newer than the record, the record was set back, and the volume is
// stopped. So an attachment is noted before its host connects the volume.
type Note struct {
	Version int    `json:"version"`
	Volume  string `json:"volume"`
	// Claim is NAMESPACE/NAME. PersistentVolume, StorageClass and Use are known from the first
	// attachment on.
	Claim            string `json:"claim,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	StorageClass     string `json:"storageClass,omitempty"`
	Use              *Use   `json:"use,omitempty"`

	Epoch int64 `json:"epoch"`
	// Seen is set by a rebuild of the record: the newest attachment that image and hosts knew then. Epoch
	// is above it, and no host has seen that one.
	Seen         *int64             `json:"seen,omitempty"`
	Authority    v1alpha1.Authority `json:"authority,omitempty"`
	AttachedNode string             `json:"attachedNode,omitempty"`
	Outdated     []string           `json:"outdated,omitempty"`
	// Uncached means that this attachment has no cache: what all replicas hold is older.
	Uncached bool `json:"uncached,omitempty"`
	// ReadOnly: it is the image that one node has of a read-only volume. All that counts of it is in the
	// snapshot. The note has no Spec then.
	ReadOnly bool        `json:"readOnly,omitempty"`
	Written  metav1.Time `json:"written"`
	// Complete means that the image has all that it was made with. A copy of a snapshot or of another volume
	// that was interrupted does not say so. Images that an older version has made do not say so before they are
	// attached.
	Complete bool `json:"complete,omitempty"`
	// Later means that a later version of the driver has written the note. Nothing else is known of it then.
	Later bool `json:"-"`
	// Spec has the place of the image and of the replicas, and all else that a record needs.
	Spec v1alpha1.CacheVolumeSpec `json:"spec"`
}

// Use is how the PersistentVolume lets pods use the volume.
type Use struct {
	FSType       string                            `json:"fsType,omitempty"`
	VolumeMode   corev1.PersistentVolumeMode       `json:"volumeMode"`
	AccessMode   corev1.PersistentVolumeAccessMode `json:"accessMode"`
	MountOptions []string                          `json:"mountOptions,omitempty"`
}

func useOf(pv *corev1.PersistentVolume) *Use {
	u := &Use{FSType: pv.Spec.CSI.FSType, VolumeMode: corev1.PersistentVolumeFilesystem, MountOptions: pv.Spec.MountOptions}
	if mode := pv.Spec.VolumeMode; mode != nil {
		u.VolumeMode = *mode
	}
	if len(pv.Spec.AccessModes) > 0 {
		u.AccessMode = pv.Spec.AccessModes[0]
	}
	return u
}

// LastAttachment is the newest attachment that a host may have seen, as far as the note knows.
func (n Note) LastAttachment() int64 {
	if n.Seen != nil {
		return *n.Seen
	}
	return n.Epoch
}

// InCeph reports whether the truth was in Ceph when the note was written, and no cache has had newer data
// since. A volume that was attached then may have left write-through, unless it was attached without a
// cache.
func (n Note) InCeph() bool {
	return n.Authority != v1alpha1.AuthorityCache && (n.AttachedNode == "" || n.Uncached)
}

// NewNote returns the note about a volume as its record is now.
func (s *Steps) NewNote(v *v1alpha1.CacheVolume) Note {
	return Note{
		Version: NoteVersion, Volume: v.Name, Claim: v.Annotations[v1alpha1.AnnotationClaim],
		Epoch: v.Status.Epoch, Authority: v.Status.Authority, AttachedNode: v.Status.AttachedNode, Outdated: v.Status.Outdated,
		Uncached: v.Status.UncachedAttached(), Complete: true, Written: s.now(), Spec: v.Spec,
	}
}

// Text returns the form of the note in the image's metadata.
func (n Note) Text() (string, error) {
	text, err := json.Marshal(n)
	return string(text), err
}

// ParseNote reads a note. A text that is empty is the zero Note, and one of a later version has only Later.
func ParseNote(text string) (Note, error) {
	if text == "" {
		return Note{}, nil
	}
	var n Note
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return Note{}, fmt.Errorf("the note in its metadata cannot be read (%w); remove the key escache.io/record with "+
			"`rbd image-meta remove`: %w",
			err, ErrRefused)
	}
	if n.Version > NoteVersion {
		return Note{Later: true}, nil
	}
	return n, nil
}

// WriteNote notes the volume's record in its image, where no host is about to connect by it. A failure is
// logged and stops nothing.
func (s *Steps) WriteNote(ctx context.Context, v *v1alpha1.CacheVolume) {
	if err := s.MustNote(ctx, v); err != nil {
		s.Log.WarnContext(ctx, "the image's metadata does not say in which state its volume is", "volume", v.Name, "error", err)
	}
}

// MustNote is WriteNote for an attachment. If the record is set back or lost later, the note may be all that
// tells of it: the hosts that have seen it may be down, and no host's disk knows of an attachment without a
// cache. It is written after the record, so it is never above it.
func (s *Steps) MustNote(ctx context.Context, v *v1alpha1.CacheVolume) error {
	note := s.NewNote(v)
	if pv := s.persistentVolume(ctx, v); pv != nil {
		note.PersistentVolume, note.StorageClass, note.Use = pv.Name, pv.Spec.StorageClassName, useOf(pv)
		if claim := pv.Spec.ClaimRef; claim != nil {
			note.Claim = claim.Namespace + "/" + claim.Name
		}
	}
	if err := s.Images.Note(ctx, ImageOf(v), note); err != nil {
		return fmt.Errorf("note the attachment of volume %s in the metadata of image %s: %w", v.Name, ImageOf(v), err)
	}
	return nil
}

// persistentVolume returns the PersistentVolume that stands for the volume; nil if it is not known. The one that
// external-provisioner or kubectl escache makes has the volume's id as its name.
func (s *Steps) persistentVolume(ctx context.Context, v *v1alpha1.CacheVolume) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{}
	err := s.Cached.Get(ctx, client.ObjectKey{Name: v.Name}, pv)
	if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName || pv.Spec.CSI.VolumeHandle != v.Name {
		return nil
	}
	return pv
}

// NameClaim puts the claim that has the volume now on record. With the reclaim policy Retain, that need not be
// the one that it was created for. The record is read by people only, so a failure is logged and stops nothing.
func (s *Steps) NameClaim(ctx context.Context, v *v1alpha1.CacheVolume) {
	pv := s.persistentVolume(ctx, v)
	if pv == nil || pv.Spec.ClaimRef == nil {
		return
	}
	claim := pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name
	if v.Annotations[v1alpha1.AnnotationClaim] == claim {
		return
	}
	named := v.DeepCopy()
	metav1.SetMetaDataAnnotation(&named.ObjectMeta, v1alpha1.AnnotationClaim, claim)
	// The lock keeps what is decided next on the state that was read.
	if err := s.Cached.Patch(ctx, named, client.MergeFromWithOptions(v, client.MergeFromWithOptimisticLock{})); err != nil {
		s.Log.WarnContext(ctx, "the record does not name the claim of today", "volume", v.Name, "claim", claim, "error", err)
		return
	}
	*v = *named
}

// NotBehind returns an error if the image was attached later than the record speaks of: the record
// was set back, for example by restoring an old etcd.
func (s *Steps) NotBehind(ctx context.Context, v *v1alpha1.CacheVolume) error {
	_, err := s.compare(ctx, v)
	return err
}

// Connectable returns an error unless a host may connect the volume by this record. The image must tell of
// no later attachment. Before the host connects, the image tells of this one.
func (s *Steps) Connectable(ctx context.Context, v *v1alpha1.CacheVolume) error {
	noted, err := s.compare(ctx, v)
	if err != nil || noted.Tells(v) {
		return err
	}
	return s.MustNote(ctx, v)
}

func (s *Steps) compare(ctx context.Context, v *v1alpha1.CacheVolume) (authority.Noted, error) {
	note, err := s.Images.Noted(ctx, ImageOf(v))
	if err != nil {
		return authority.Noted{}, fmt.Errorf("read the metadata of image %s: %w", ImageOf(v), err)
	}
	return note.noted(), note.NotAhead(v)
}

// NotAhead returns an error if this note, of the volume's image, tells of a later attachment, or of later replicas, than
// the record, or may do so. See authority.NotBehind.
func (n Note) NotAhead(v *v1alpha1.CacheVolume) error {
	if n.Later {
		return laterNote(ImageOf(v))
	}
	return authority.NotBehind(v, n.noted())
}

// laterNote refuses an image by whose note the record may be behind: this version cannot read it.
func laterNote(image ImageRef) error {
	return fmt.Errorf("the metadata of image %s/%s are of a later version of the driver, so they may tell of a later attachment: "+
		"upgrade csi-controller: %w", image.Pool, image.Image, ErrRefused)
}

func (n Note) noted() authority.Noted {
	return authority.Noted{
		Volume: n.Volume, Epoch: n.Epoch, LinkGeneration: n.Spec.LinkGeneration, Node: n.AttachedNode,
		Pool: n.Spec.Pool, Image: n.Spec.Image,
	}
}

// OfAnother reports whether the note says that the image is another volume's than this one: see authority.Noted.
func (n Note) OfAnother(image ImageRef, volume string) bool {
	return n.noted().OfAnother(image.Pool, image.Image, volume)
}

// MayMark returns nil if an image that has another volume's mark, and this note, may be marked as the volume's. The
// error wraps ErrRefused.
func MayMark(image ImageRef, volume, text string) error {
	note, err := ParseNote(text)
	switch {
	case err != nil:
		return err
	case note.Later:
		return laterNote(image)
	case note.OfAnother(image, volume):
		return fmt.Errorf("its metadata says so, and that it is not volume %s's; see docs/restore-etcd.md: %w", volume, ErrRefused)
	}
	return nil
}
