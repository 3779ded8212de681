package signer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/pause"
)

// published is the key in the ConfigMap.
const published = "hosts.crt"

// PublisherConfig holds what a Publisher needs.
type PublisherConfig struct {
	// Reader reads from the API server itself: a cache would want to list ConfigMaps.
	Reader client.Reader
	// Writer writes only while this process leads.
	Writer client.Writer
	// ConfigMap is where the certificate is written. It must exist, and is for nothing else.
	ConfigMap client.ObjectKey
	// Cert and Key are PEM files with the authority. They are read at each look.
	Cert, Key string
	Log       *slog.Logger
	// Again is the time between two looks, Longest bounds one.
	Again, Longest time.Duration
}

// Publisher writes the certificate of the authority into a ConfigMap, whenever it is another one. csi-node's pods mount
// that: the Secret with the authority has its key too, which no host may read. A host's certificate of another
// authority is then replaced. Add it to controller-runtime's manager.
type Publisher struct {
	PublisherConfig

	// told is the last trouble in the log, so that a lasting one is logged once.
	told string
}

// NewPublisher returns a Publisher.
func NewPublisher(config PublisherConfig) *Publisher { return &Publisher{PublisherConfig: config} }

// NeedLeaderElection returns true: what the leader signs with is published.
func (*Publisher) NeedLeaderElection() bool { return true }

// Start looks again and again until the context ends.
func (p *Publisher) Start(ctx context.Context) error {
	for {
		text := ""
		if err := p.Look(ctx); err != nil {
			text = err.Error()
		}
		if text != "" && text != p.told && ctx.Err() == nil {
			p.Log.WarnContext(ctx, "hosts do not learn which authority signs their certificates; trying again", "error", text)
		}
		p.told = text
		if err := pause.For(ctx, p.Again); err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// Look writes the certificate if another one is in the ConfigMap.
func (p *Publisher) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.Longest)
	defer cancel()
	authority, err := readAuthority(p.Cert, p.Key)
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{}
	if err := p.Reader.Get(ctx, p.ConfigMap, m); err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", p.ConfigMap, err)
	}
	certificate := string(authority.PEM())
	if m.Data[published] == certificate {
		return nil
	}
	m.Data = map[string]string{published: certificate}
	if err := p.Writer.Update(ctx, m); err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", p.ConfigMap, err)
	}
	p.Log.InfoContext(ctx, "hosts learn of the authority that signs their certificates", "configmap", p.ConfigMap.String(),
		"end", authority.Certificate().NotAfter.UTC().Format(time.RFC3339))
	return nil
}
