// Package renewal renews the certificates that Helm has made: that of csi-controller, that of all hosts if they share
// one, and those of the two authorities. It writes them into the Secrets that pods mount.
//
// An authority keeps its name and key when it is renewed. So it does not matter who gets which certificate first, nor
// where a renewal stops: everybody believes the same others as before, and nobody else.
package renewal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/issuer"
	"github.com/escache/escache-csi/internal/pause"
)

// Config holds what a Renewal needs.
type Config struct {
	// Reader reads from the API server itself: a cache would want to list Secrets.
	Reader client.Reader
	// Writer writes only while this process leads.
	Writer client.Writer
	// Namespace has the objects, Prefix begins their names.
	Namespace, Prefix string
	// ClientName is the name in csi-controller's certificate.
	ClientName string
	// SharedName is the name in the certificate that serves all hosts; empty: each host has one of its own.
	SharedName string
	// Life and AuthorityLife are how long renewed certificates last.
	Life, AuthorityLife time.Duration
	Events              events.EventRecorder
	Log                 *slog.Logger
	Now                 func() time.Time
	// Again is the time between two looks, Longest bounds one.
	Again, Longest time.Duration
}

// Renewal renews. Add it to controller-runtime's manager.
type Renewal struct {
	Config

	// told is the last trouble in the log, so that a lasting one is logged once.
	told string
}

var (
	// errChanged ends a look because somebody else has changed an object since it was read.
	errChanged = errors.New("changed meanwhile")
	// errRenewed is why a copy is written.
	errRenewed = errors.New("the authority was renewed")
)

// New returns a Renewal.
func New(config Config) *Renewal { return &Renewal{Config: config} }

// NeedLeaderElection returns true: only the leader writes.
func (*Renewal) NeedLeaderElection() bool { return true }

// Start looks again and again until the context ends.
func (r *Renewal) Start(ctx context.Context) error {
	for {
		r.tell(ctx, r.Look(ctx))
		if err := pause.For(ctx, r.Again); err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

func (r *Renewal) tell(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.told && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "certificates are not renewed; trying again", "error", err)
	}
	r.told = text
}

// Look renews what is due. Nothing is written unless all objects are of the same two authorities: while somebody
// replaces an authority, a renewal could mix it with the next one.
func (r *Renewal) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	kept := r.secret(bothAuthorities)
	if err := kept.read(ctx, r.Reader); err != nil {
		return err
	}
	known, err := readAuthorities(kept)
	if err != nil {
		return err
	}
	mounted := r.mounted()
	for _, m := range mounted {
		if err := m.read(ctx, r.Reader); err != nil {
			return err
		}
		if err := m.compare(kept, known); err != nil {
			return err
		}
	}
	err = r.renewAuthorities(ctx, kept, known)
	for _, m := range mounted {
		if err == nil {
			err = r.renew(ctx, m, known)
		}
	}
	if errors.Is(err, errChanged) {
		return nil // the next look sees what is there now
	}
	return err
}

// renewAuthorities puts renewed authorities into known once they are stored.
func (r *Renewal) renewAuthorities(ctx context.Context, kept *document, known authorities) error {
	next, now := maps.Clone(known), r.Now()
	var changes []change
	for _, who := range []role{hosts, clients} {
		was := known[who].Certificate()
		if now.Before(issuer.RenewAt(was)) {
			continue
		}
		renewed, err := known[who].Renew(now, r.AuthorityLife)
		if err != nil {
			return err
		}
		next[who] = renewed
		kept.set(who.certificateKey(), renewed.PEM())
		changes = append(changes, change{"authority of the " + string(who), renewed.Certificate().NotAfter, ends(was)})
	}
	if err := r.write(ctx, kept, changes); err != nil {
		return err
	}
	maps.Copy(known, next)
	return nil
}

// renew brings an object up to date.
func (r *Renewal) renew(ctx context.Context, m mounted, known authorities) error {
	var changes []change
	for _, key := range m.keys() {
		who := m.copies[key]
		is := known[who].Certificate()
		if was, err := parse(m.get(key)); err == nil && was.Equal(is) {
			continue
		}
		m.set(key, known[who].PEM())
		changes = append(changes, change{"copy of the authority of the " + string(who), is.NotAfter, errRenewed})
	}
	if m.leaf != nil {
		if why := m.leaf.wrong(m.document, known, r.Now()); why != nil {
			end, err := m.leaf.issue(m.document, known, r.Now(), r.Life)
			if err != nil {
				return err
			}
			changes = append(changes, change{"certificate of " + m.leaf.of.CommonName, end, why})
		}
	}
	return r.write(ctx, m.document, changes)
}

// change is what is written into an object, with its new end, and why.
type change struct {
	what string
	end  time.Time
	why  error
}

// write stores a document with changes, unless somebody else has changed it since it was read.
func (r *Renewal) write(ctx context.Context, d *document, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	if err := d.write(ctx, r.Writer); err != nil {
		return err
	}
	var all []string
	for _, c := range changes {
		end := c.end.UTC().Format(time.RFC3339)
		r.Log.InfoContext(ctx, "certificate renewed", "object", d.String(), "certificate", c.what, "end", end, "why", c.why)
		all = append(all, fmt.Sprintf("%s, ends %s: %v", c.what, end, c.why))
	}
	// One Event for all: of two with the same reason only the first one's note is kept.
	r.Events.Eventf(d.object, nil, corev1.EventTypeNormal, "CertificateRenewed", "Renew", "%s", strings.Join(all, "; "))
	return nil
}
