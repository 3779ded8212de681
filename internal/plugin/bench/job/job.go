// Package job has the Job that kubectl escache bench measures by: its object, why it waits, and the
// table of what it measured. It is pure.
package job

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/internal/benchmark"
)

const (
	// Label names the Job on everything that belongs to it: the Job, its pod and its claims.
	Label = "escache.io/bench"
	// Container is the pod's only one.
	Container = "bench"

	// user is that of csi-controller's image, too. It owns nothing on any host.
	user = 65532
	// keep is how long Kubernetes keeps a Job that has ended, if nobody removes it before.
	keep = 10 * time.Minute
)

// Options say what is measured, and where.
type Options struct {
	Name, Namespace string
	Image           string
	PullSecret      string // may be empty
	Node            string // empty: where the scheduler wants
	Classes         []string
	Plan            benchmark.Plan
	// Start bounds how long the pod may take to start.
	Start time.Duration
}

// Time bounds the life of the Job.
func (o Options) Time() time.Duration { return o.Start + o.Plan.MostTime(len(o.Classes)) + time.Minute }

// Names are what the volumes are called, one for each class.
func (o Options) Names() []string {
	var names []string
	for i, class := range o.Classes {
		if i > 0 && class == o.Classes[0] {
			class += "-again"
		}
		names = append(names, class)
	}
	return names
}

// Job is all that is made. The claims belong to its pod as generic ephemeral volumes, so that Kubernetes
// removes them with it. It removes the Job itself, too, when it has ended and nobody is there to do that.
func (o Options) Job() *batchv1.Job {
	labels := map[string]string{"app.kubernetes.io/managed-by": "kubectl-escache", Label: o.Name}
	container := corev1.Container{
		Name: Container, Image: o.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{
			"bench", fmt.Sprintf("--size=%d", o.Plan.Bytes), fmt.Sprintf("--rounds=%d", o.Plan.Rounds), "--turn=" + o.Plan.Turn.String(),
		},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	var volumes []corev1.Volume
	for i, name := range o.Names() {
		volume, dir := fmt.Sprintf("volume-%d", i), fmt.Sprintf("/volumes/%d", i)
		container.Args = append(container.Args, name+"="+dir)
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: dir})
		volumes = append(volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: o.claim(o.Classes[i], labels)},
		}})
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Affinity: o.affinity(), Containers: []corev1.Container{container}, Volumes: volumes,
	}
	if o.PullSecret != "" {
		spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: o.PullSecret}}
	}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(o.Time().Seconds())),
			TTLSecondsAfterFinished: new(int32(keep.Seconds())),
			Template:                corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

func (o Options) claim(class string, labels map[string]string) *corev1.PersistentVolumeClaimTemplate {
	return &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			VolumeMode: new(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(o.Plan.Bytes, resource.BinarySI),
			}},
		},
	}
}

// affinity is by the node's name: its label kubernetes.io/hostname can differ from it.
func (o Options) affinity() *corev1.Affinity {
	if o.Node == "" {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{o.Node}},
			},
		}}},
	}}
}
