package inspection

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// SupportBundle returns the command support-bundle.
func SupportBundle(c *console.Console) *cobra.Command {
	var file, namespace string
	command := &cobra.Command{
		Use:   "support-bundle",
		Short: "Collect the facts for a bug report, without secrets",
		Long: "Collect the facts for a bug report into a .tar.gz: the driver's objects, nodes, volumes, Events and the logs of its\n" +
			"pods. It reads no Secrets and no ConfigMaps, and cuts text that looks like a key. Check the file before you send it.",
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if file == "" {
				file = "escache-" + c.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			return runBundle(command.Context(), c, file, namespace)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "write to this file (default: a name with the current time)")
	command.Flags().StringVar(&namespace, "driver-namespace", "escache-system", "namespace of the driver's pods")
	return command
}

func runBundle(ctx context.Context, c *console.Console, path, namespace string) (err error) {
	api, err := c.Connect()
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	packed := gzip.NewWriter(file)
	b := &bundle{archive: tar.NewWriter(packed), now: c.Now()}
	b.objects(ctx, api, namespace)
	addLogs(ctx, c, b, api, namespace)
	if len(b.gaps) > 0 {
		b.add("gaps.txt", []byte(strings.Join(b.gaps, "\n")+"\n"))
	}
	for _, end := range []io.Closer{b.archive, packed} {
		if closeErr := end.Close(); b.err == nil {
			b.err = closeErr
		}
	}
	if b.err != nil {
		return b.err
	}
	c.Printf("%s: %d files", path, b.files)
	if len(b.gaps) > 0 {
		c.Printf("; %d could not be read, see gaps.txt in it", len(b.gaps))
	}
	c.Printf("\n")
	return nil
}

// bundle writes an archive. If something cannot be read, it notes a gap and goes on.
type bundle struct {
	archive *tar.Writer
	now     time.Time
	files   int
	gaps    []string
	err     error
}

func (b *bundle) add(name string, data []byte) {
	if b.err != nil {
		return
	}
	header := &tar.Header{Name: "escache/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.now}
	if b.err = b.archive.WriteHeader(header); b.err == nil {
		_, b.err = b.archive.Write(data)
	}
	b.files++
}

func (b *bundle) gap(what string, err error) { b.gaps = append(b.gaps, what+": "+failure.Message(err)) }

func (b *bundle) objects(ctx context.Context, api client.Reader, namespace string) {
	here := client.InNamespace(namespace)
	for _, kind := range []struct {
		name string
		list client.ObjectList
		from []client.ListOption
	}{
		{"nodegroups", &v1alpha1.NodeGroupList{}, nil},
		{"cachevolumes", &v1alpha1.CacheVolumeList{}, nil},
		{"readonlyvolumes", &v1alpha1.ReadOnlyVolumeList{}, nil},
		{"cachesnapshots", &v1alpha1.CacheSnapshotList{}, nil},
		{"cacheflushes", &v1alpha1.CacheFlushList{}, nil},
		{"cachediscards", &v1alpha1.CacheDiscardList{}, nil},
		{"cacheadoptions", &v1alpha1.CacheAdoptionList{}, nil},
		{"nodes", &corev1.NodeList{}, nil},
		{"persistentvolumes", &corev1.PersistentVolumeList{}, nil},
		{"storageclasses", &storagev1.StorageClassList{}, nil},
		{"csidrivers", &storagev1.CSIDriverList{}, nil},
		{"csinodes", &storagev1.CSINodeList{}, nil},
		{"volumeattachments", &storagev1.VolumeAttachmentList{}, nil},
		{"events", &eventsv1.EventList{}, nil},
		{"pods", &corev1.PodList{}, []client.ListOption{here}},
	} {
		if err := api.List(ctx, kind.list, kind.from...); err != nil {
			b.gap(kind.name, err)
			continue
		}
		if err := meta.EachListItem(kind.list, strip); err != nil {
			b.gap(kind.name, err)
			continue
		}
		text, err := json.MarshalIndent(kind.list, "", "  ")
		if err != nil {
			b.gap(kind.name, err)
			continue
		}
		b.add(kind.name+".json", redactSecrets(text))
	}
}

// logLines is how many lines are read of each container's log, and of its log before the last
// restart.
const logLines = 2000

func addLogs(ctx context.Context, c *console.Console, b *bundle, api client.Reader, namespace string) {
	pods := &corev1.PodList{}
	kube, err := c.Clientset()
	if err == nil {
		err = api.List(ctx, pods, client.InNamespace(namespace))
	}
	if err != nil {
		b.gap("logs", err)
		return
	}
	if len(pods.Items) == 0 {
		b.gaps = append(b.gaps, fmt.Sprintf("logs: no pods in namespace %s; choose another one with --driver-namespace", namespace))
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Spec.Containers {
			for _, before := range []bool{false, true} {
				name := fmt.Sprintf("logs/%s/%s.log", pod.Name, container.Name)
				if before {
					name = fmt.Sprintf("logs/%s/%s.before.log", pod.Name, container.Name)
				}
				text, err := kube.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
					Container: container.Name, Previous: before, TailLines: new(int64(logLines)),
				}).DoRaw(ctx)
				switch {
				case err == nil:
					b.add(name, redactSecrets(text))
				case !before: // most containers have not been restarted
					b.gap(name, err)
				}
			}
		}
	}
}
