// Package rbd is the driver's client for Ceph: pools, images, snapshots, watchers, locks and the
// blocklist. It uses go-ceph.
// It is the only package that needs cgo.
//
// librbd has no contexts: a call can hang for as long as Ceph does. Every call here returns when
// its context ends, with an ErrUnavailable that says what hangs; see gate. A call that was given up
// may still take effect later, so callers repeat it: all calls are idempotent, or report with
// ErrExists or ErrNotFound that the work is done.
package rbd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ceph/go-ceph/rados"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/escache/escache-csi/internal/clientaddress"
)

// Options configures Clusters. Only Dir is required; the zero value of every other field is a good
// default.
type Options struct {
	// Dir has one directory for each cluster ID, with the files ceph.conf and keyring. The
	// keyring's first [client.NAME] is used.
	Dir string
	// Connections is the number of connections to each cluster. 0 means 2.
	Connections int
	// Calls is the number of calls that run on a cluster at once. 0 means 28: with the four that
	// empty the trash these are 32, and more would be slower, not faster.
	Calls int
	// MaxStuck is how many calls may hang before new ones are refused. 0 means 8.
	MaxStuck int
	// CallTimeout limits calls whose context has no earlier deadline. 0 means 30 s.
	CallTimeout time.Duration
	// OpTimeout is the time after which librados itself ends an operation. 0 means 60 s. A shorter
	// time breaks operations that are only slow.
	OpTimeout time.Duration
	// ConnectTimeout limits a connection attempt. 0 means 10 s.
	ConnectTimeout time.Duration
	// Recheck is how often the files in Dir are checked for changes. 0 means 5 s.
	Recheck time.Duration
	// Kubernetes is the identity of the Kubernetes cluster whose images these are. New images are
	// marked with it, and no image of another one is changed: that is ErrForeign. With "" images
	// are neither marked nor refused.
	Kubernetes string
	// OwnsTrash says which images in a pool's trash may be purged, by their names. Images that this process
	// moved there may always be, those of another Kubernetes cluster never, and neither those that somebody
	// else than the driver has moved there. nil means only the first.
	OwnsTrash func(image string) bool
	// MayMark returns an error if an image that is marked as another volume's, and has this note, must not be marked
	// as this one's. A clone has mark and note of its parent until it gets its own. nil allows all.
	MayMark func(image ImageRef, volume, note string) error
	// Admit is called for each new connection before the first call uses it. After an error the
	// connection is not used. nil admits all.
	Admit func(Session) error
	// Observe is called after each call, with its name, "ok" or a word for the error, and how long
	// it took. It may be nil.
	Observe func(op, result string, took time.Duration)
}

func (o Options) withDefaults() Options {
	setInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	setInt(&o.Connections, 2)
	setInt(&o.Calls, 28)
	setInt(&o.MaxStuck, 8)
	set(&o.CallTimeout, 30*time.Second)
	set(&o.OpTimeout, 60*time.Second)
	set(&o.ConnectTimeout, 10*time.Second)
	set(&o.Recheck, 5*time.Second)
	if o.OwnsTrash == nil {
		o.OwnsTrash = func(string) bool { return false }
	}
	if o.Observe == nil {
		o.Observe = func(string, string, time.Duration) {}
	}
	return o
}

// Clusters are the configured Ceph clusters. It is safe for concurrent use.
type Clusters struct {
	options Options

	mu       sync.Mutex
	clusters map[string]*Cluster
	added    chan struct{} // a cluster was added
}

// NewClusters returns the clusters under options.Dir. It reads no file and connects to nothing
// until that is needed.
func NewClusters(options Options) *Clusters {
	return &Clusters{options: options.withDefaults(), clusters: map[string]*Cluster{}, added: make(chan struct{}, 1)}
}

// Get returns a cluster. Errors are ErrClusterNotFound and ErrConfig.
func (cs *Clusters) Get(clusterID string) (*Cluster, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.clusters[clusterID]; c != nil {
		return c, nil
	}
	s, err := readSettings(cs.options.Dir, clusterID)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		id: clusterID, options: cs.options,
		gate:     newGate(clusterID, cs.options.Calls, cs.options.MaxStuck, cs.options.CallTimeout),
		links:    make([]*link, cs.options.Connections),
		trash:    newTrash(clusterID),
		settings: s, checked: time.Now(),
	}
	for i := range c.links {
		c.links[i] = &link{}
	}
	cs.clusters[clusterID] = c
	wake(cs.added)
	return c, nil
}

// IDs returns the configured clusters. In a mounted Secret, Kubernetes' own entries begin with two dots.
func (cs *Clusters) IDs() ([]string, error) {
	entries, err := os.ReadDir(cs.options.Dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(cs.options.Dir, e.Name()))
		if err == nil && info.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Close ends all connections, each when its running calls have ended. It does not wait for that.
func (cs *Clusters) Close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.clusters {
		for _, l := range c.links {
			l.close()
		}
	}
}

// Cluster is one Ceph cluster. It is safe for concurrent use.
type Cluster struct {
	id      string
	options Options
	gate    *gate
	links   []*link
	next    atomic.Uint32
	trash   *trash

	mu       sync.Mutex
	settings settings
	checked  time.Time
	own      []string // the addresses of all connections there were: a closed one may still be on an image
}

// ID returns the cluster ID, which is the name of its directory.
func (c *Cluster) ID() string { return c.id }

// Health describes a cluster by the results of recent calls.
type Health struct {
	Cluster     string
	Connections int // that are up, of those configured
	Running     int // calls now, the stuck ones included
	Stuck       int // calls that nobody waits for any more
	// Oldest names the longest running call; "" if none runs.
	Oldest string
	Since  time.Time
	// Refusing is true while new calls are refused because too many hang.
	Refusing bool
}

// Health never blocks: it uses what is known. Ping asks Ceph.
func (c *Cluster) Health() Health {
	h := Health{Cluster: c.id}
	for _, l := range c.links {
		if l.connected() {
			h.Connections++
		}
	}
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	h.Running, h.Stuck, h.Refusing = len(c.gate.running), c.gate.stuck, c.gate.stuck >= c.gate.maxStuck
	if f := c.gate.oldestFlight(); f != nil {
		h.Oldest, h.Since = f.op, f.since
	}
	return h
}

// Ping returns nil if a monitor answers this user.
func (c *Cluster) Ping(ctx context.Context) error {
	_, err := c.FSID(ctx)
	return err
}

// FSID asks a monitor for the cluster's fsid.
func (c *Cluster) FSID(ctx context.Context) (string, error) {
	type answer struct {
		FSID string `json:"fsid"`
	}
	a, err := monCommand[answer](ctx, c, "fsid", map[string]any{"prefix": "fsid"})
	return a.FSID, err
}

// call runs fn on a connection, bounded and observed. what names the object of the call in errors.
func call[T any](ctx context.Context, c *Cluster, op, what string, fn func(*rados.Conn) (T, error)) (T, error) {
	return callThrough(ctx, c, c.gate, order{op: op, what: what}, fn)
}

// callAlone is call for what makes or removes an image's name, or changes its mark, its snapshots or its size. An earlier
// call that nobody waits for any more may still be about to do so, and the next one waits until that has really ended.
func callAlone[T any](ctx context.Context, c *Cluster, op, what string, ref ImageRef, fn func(*rados.Conn) (T, error)) (T, error) {
	return callThrough(ctx, c, c.gate, order{op: op, what: what, alone: ref.String()}, fn)
}

// callOnEntry is call for what changes a client's entry on the blocklist. An earlier call that nobody waits for any
// more may still be about to remove the entry, so the next one waits until that has really ended.
func callOnEntry(ctx context.Context, c *Cluster, op, address string, fn func(*rados.Conn) error) error {
	_, err := callThrough(ctx, c, c.gate, order{op: op, what: "client " + address, alone: entryOf(address)},
		func(conn *rados.Conn) (struct{}, error) { return struct{}{}, fn(conn) })
	return err
}

type order struct{ op, what, alone string }

func callThrough[T any](ctx context.Context, c *Cluster, g *gate, o order, fn func(*rados.Conn) (T, error)) (T, error) {
	began := time.Now()
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("ceph").Start(ctx, "ceph "+o.op,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("ceph.cluster", c.id), attribute.String("ceph.object", o.what)))
	defer span.End()
	value, err := pass(ctx, g, o.op, o.alone, func() (T, error) { return attempt(c, fn) })
	if errors.Is(err, ErrPermission) && c.reread(0) {
		value, err = pass(ctx, g, o.op, o.alone, func() (T, error) { return attempt(c, fn) })
	}
	if err != nil && o.what != "" {
		err = fmt.Errorf("%s: %w", o.what, err)
	}
	if err != nil {
		span.SetStatus(codes.Error, result(err))
	}
	c.options.Observe(o.op, result(err), time.Since(began))
	return value, err
}

func attempt[T any](c *Cluster, fn func(*rados.Conn) (T, error)) (T, error) {
	var none T
	c.reread(c.options.Recheck)
	c.mu.Lock()
	want := c.settings
	c.mu.Unlock()
	l := c.links[int(c.next.Add(1))%len(c.links)]
	client, err := l.use(want, c.dial)
	if err != nil {
		return none, err
	}
	value, err := fn(client.conn)
	client.done(err)
	return value, translate(err)
}

// dial connects, and returns only connections that were admitted.
func (c *Cluster) dial(s settings) (*rados.Conn, error) {
	conn, err := connect(s, timeouts{connect: c.options.ConnectTimeout, op: c.options.OpTimeout})
	if err != nil {
		return nil, err
	}
	address, err := conn.GetAddrs()
	if err == nil && c.options.Admit != nil {
		err = c.options.Admit(Session{Cluster: c.id, Address: address, conn: conn})
	}
	if err != nil {
		conn.Shutdown()
		return nil, notAdmitted(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = append(c.own, address)
	return conn, nil
}

// isOwn reports whether a client's address is of a connection of this process.
func (c *Cluster) isOwn(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clientaddress.In(c.own, address)
}

// notAdmitted keeps an error from Ceph. Any other error counts as unavailable: a later connection
// may not meet it.
func notAdmitted(err error) error {
	if errno(err) != 0 {
		return fmt.Errorf("new connection: %w", translate(err))
	}
	return fmt.Errorf("%w: new connection: %w", ErrUnavailable, err)
}

// reread looks at the files if that was not done within age, and says whether they changed. Files
// that cannot be read (they are just being replaced, or are gone) leave the settings as they are:
// what works goes on working.
func (c *Cluster) reread(age time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) < age {
		return false
	}
	c.checked = time.Now()
	s, err := readSettings(c.options.Dir, c.id)
	if err != nil || s.sum == c.settings.sum {
		return false
	}
	c.settings = s
	for _, l := range c.links {
		l.forgetFailure()
	}
	return true
}
