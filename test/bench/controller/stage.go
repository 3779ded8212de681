package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/hosttest"
	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/microceph"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

const (
	pool   = "rbd"
	prefix = "escache-"
	groups = 4
)

// stage is what the driver runs in. Hosts are played: creation and deletion of volumes that nobody
// attached ask none.
type stage struct {
	dir    string
	binary string
	ceph   *microceph.Cluster
	kube   *kubernetes.ControlPlane
	fleet  *hosttest.Fleet
	api    client.Client
}

func startStage(ctx context.Context, binary string) (s *stage, err error) {
	dir, err := os.MkdirTemp("", "bench-controller-")
	if err != nil {
		return nil, err
	}
	s = &stage{dir: dir, binary: binary}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	steps := progress.New(os.Stderr)
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"Ceph", func() error { return s.startCeph(ctx) }},
		{"Kubernetes", func() error { return s.startKubernetes(ctx, steps) }},
		{"groups", func() error { return s.startGroups(ctx) }},
	} {
		if err := steps.Do(step.name, step.run); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *stage) stop() {
	ctx := context.Background()
	if s.fleet != nil {
		s.fleet.Stop()
	}
	if s.kube != nil {
		_ = s.kube.Stop(ctx)
	}
	if s.ceph != nil {
		_ = s.ceph.Stop(ctx)
	}
	_ = os.RemoveAll(s.dir)
}

func (s *stage) startCeph(ctx context.Context) (err error) {
	if s.ceph, err = microceph.Start(ctx, microceph.Config{Dir: filepath.Join(s.dir, "ceph"), Address: "127.0.0.1"}); err != nil {
		return err
	}
	config := filepath.Join(s.dir, "clusters", "bench")
	if err := os.MkdirAll(config, 0o700); err != nil {
		return err
	}
	for from, to := range map[string]string{s.ceph.Conf(): "ceph.conf", s.ceph.AdminKeyring(): "keyring"} {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(config, to), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startKubernetes(ctx context.Context, steps *progress.Printer) error {
	cache, err := buildcache.Open("")
	if err != nil {
		return err
	}
	builder, err := toolbuilder.New(".", cache, steps)
	if err != nil {
		return err
	}
	programs, err := builder.Paths(ctx, append(kubernetes.Programs(), "kubectl")...)
	if err != nil {
		return err
	}
	s.kube, err = kubernetes.Start(ctx, kubernetes.Config{
		Dir: filepath.Join(s.dir, "kubernetes"), Address: "127.0.0.1", Programs: programs,
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-f", "charts/escache-csi/crds"},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/cachevolumes.escache.io", "crd/nodegroups.escache.io"},
	} {
		all := append([]string{"--kubeconfig", s.kube.Kubeconfig()}, args...)
		out, err := exec.CommandContext(ctx, programs["kubectl"], all...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
		}
	}
	return s.connect()
}

func (s *stage) connect() error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.kube.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	s.api, err = client.New(config, client.Options{Scheme: scheme})
	return err
}

func (s *stage) startGroups(ctx context.Context) (err error) {
	var names []string
	for i := range 3 * groups {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	if s.fleet, err = hosttest.New(1<<50, names...); err != nil {
		return err
	}
	for i := range groups {
		members := names[3*i : 3*i+3]
		for _, name := range members {
			n := s.fleet.Node(name)
			status := n.Status
			if err := s.api.Create(ctx, n); err != nil {
				return err
			}
			made := n.DeepCopy()
			n.Status = status
			if err := s.api.Status().Patch(ctx, n, client.MergeFrom(made)); err != nil {
				return err
			}
		}
		group := &v1alpha1.NodeGroup{Spec: v1alpha1.NodeGroupSpec{Nodes: members}}
		group.Name = fmt.Sprintf("g%d", i)
		if err := s.api.Create(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// fill writes the records of many volumes, without images: the driver does not look at those.
func (s *stage) fill(ctx context.Context, many int) error {
	end := progress.New(os.Stderr).Step(fmt.Sprintf("records of %d volumes", many))
	_, err := measure(many, 32, func(i int) error {
		g := i % groups
		v := &v1alpha1.CacheVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("pvc-0e2a7f0e-4d3c-4a51-9d5b-%012d", i), Finalizers: []string{v1alpha1.Finalizer},
				Annotations: map[string]string{v1alpha1.AnnotationClaim: fmt.Sprintf("namespace/claim-%d", i)},
			},
			Spec: v1alpha1.CacheVolumeSpec{
				ClusterID: "bench", Pool: pool, Image: fmt.Sprintf("escache-pvc-0e2a7f0e-4d3c-4a51-9d5b-%012d", i),
				SizeBytes: 1 << 30, CacheBytes: 64 << 20, CacheMode: v1alpha1.CacheModeWriteback, Group: fmt.Sprintf("g%d", g),
				Replicas: []string{fmt.Sprintf("n%d", 3*g+i%3), fmt.Sprintf("n%d", 3*g+(i+1)%3)},
				Port:     int32(firstPort + i/groups), Minor: int32(firstMinor + i/groups),
			},
		}
		if err := s.api.Create(ctx, v); err != nil {
			return err
		}
		v.Status = v1alpha1.CacheVolumeStatus{
			Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCeph, ImageID: "10d2ac33a04e", Epoch: 3,
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ImageCreated", Message: "the image is there",
				LastTransitionTime: metav1.NewTime(time.Now()),
			}},
		}
		v.Status.Summary.Size, v.Status.Summary.Cache = "1Gi", "64Mi"
		return s.api.Status().Update(ctx, v)
	})
	end(err)
	return err
}
