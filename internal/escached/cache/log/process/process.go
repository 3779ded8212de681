package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
	"github.com/escache/escache-csi/internal/unixsocket"
)

const (
	// stopTimeout bounds what a signal asks for, and how long the log is waited for when the device is gone.
	stopTimeout = 30 * time.Second
	// answerTimeout is how long the process waits for its last answers to be read.
	answerTimeout = 5 * time.Second
)

// Process serves one volume.
type Process struct {
	config  Config
	driver  Driver
	log     *slog.Logger
	parts   *parts
	volume  *volume
	links   *links
	back    *writeBack
	flushes shared // of WriteBack

	stop     context.CancelFunc // of write-back
	stopped  chan struct{}      // write-back has stopped
	done     chan error         // how the process ends
	changing sync.Mutex         // held by whoever ends the process, or changes options or the size

	mu       sync.Mutex // for what follows
	stopping bool
	handed   *time.Timer        // ends the process after HandOver
	holding  context.CancelFunc // of a Hold that is under way
	held     chan struct{}      // closed when that is done
	// holdFailed is set after a Hold in which the image has refused a write: Resume clears that.
	holdFailed bool
}

// Run serves a volume until it is told to stop, or to hand over to a successor. Then it returns nil. If it returns an error, the kernel
// keeps the device: users wait until Run is called again, in this process or another one. Asked is for signals: Run stops at each if nobody
// has the device open, and goes on otherwise. ctx is for the start only.
func Run(ctx context.Context, c Config, d Driver, asked <-chan os.Signal, log *slog.Logger) error {
	if err := c.Check(); err != nil {
		return err
	}
	log = log.With("volume", c.Name)
	p, err := start(ctx, c, d, log)
	if err != nil {
		return err
	}
	listener, err := unixsocket.Listen(c.Socket, unixsocket.Modes{Directory: 0o700, Socket: 0o600})
	if err != nil {
		return errors.Join(err, p.abandon())
	}
	server := &http.Server{
		Handler: control.Handler(p), ReadHeaderTimeout: answerTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() { _ = server.Serve(listener) }()
	options, _ := p.back.get()
	log.Info("serving", "device", p.device(), "bytes", p.volume.Bytes(), "version", c.Version, "recovery", p.parts.recovery,
		"losses", p.parts.losses, "options", options)
	err = p.wait(ctx, asked)
	p.links.close() // a successor has its own descriptors of them
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	if stop := server.Shutdown(last); stop != nil && !errors.Is(stop, context.DeadlineExceeded) {
		err = errors.Join(err, stop)
	}
	return err
}

// start opens everything and connects the device.
func start(ctx context.Context, c Config, d Driver, log *slog.Logger) (*Process, error) {
	taken := takeOver(ctx, c, log)
	parts, err := openParts(ctx, c)
	if err != nil {
		closeLinks(taken)
		return nil, err
	}
	crashpoint.Reach("cache/recovered")
	p := &Process{config: c, driver: d, log: log, parts: parts, done: make(chan error, 1), stopped: make(chan struct{})}
	p.volume = newVolume(parts.device, log)
	p.volume.bytes.Store(wholeBlocks(c.Bytes))
	resident.Limit(inBytes(parts.device.State().Log.Ring))
	if err := p.begin(ctx, taken); err != nil {
		closeLinks(taken)
		return nil, errors.Join(err, parts.close())
	}
	return p, nil
}

func (p *Process) begin(ctx context.Context, taken []*link) error {
	size, err := p.parts.image.Bytes()
	if err != nil {
		return err
	}
	if size < p.volume.Bytes() {
		return fmt.Errorf("the image has %d bytes, not %d", size, p.config.Bytes)
	}
	_, goesOn, err := p.driver.Find(Backend(p.config.Name))
	if err != nil {
		return err
	}
	options := p.config.Options
	if goesOn {
		options, err = p.loadOptions()
		if err != nil {
			return err
		}
	}
	if err := p.apply(options); err != nil {
		return err
	}
	if p.links, err = connect(ctx, p.driver, p.config, p.volume, taken, p.log); err != nil {
		return err
	}
	crashpoint.Reach("cache/connected")
	background, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.back.run(background); close(p.stopped) }()
	return nil
}

// wait returns when the process has ended.
func (p *Process) wait(ctx context.Context, asked <-chan os.Signal) error {
	for {
		select {
		case err := <-p.done:
			return err
		case err := <-p.links.gone:
			return p.disconnected(err)
		case signal := <-asked:
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			if err := p.Stop(ctx); err != nil {
				p.log.Warn("it does not end at a signal: users of the device would get errors", "signal", signal, "error", err)
			}
			cancel()
		}
	}
}

// disconnected ends a process whose device the kernel has dropped.
func (p *Process) disconnected(why error) error {
	p.mu.Lock()
	stopping := p.stopping
	p.stopping = true
	p.mu.Unlock()
	if stopping { // by Stop, which says how it ends
		return <-p.done
	}
	p.log.Warn("somebody has disconnected the device; what was written stays in the log", "error", why)
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_, err := p.volume.Mark(ctx)
	if err != nil {
		err = fmt.Errorf("the log does not take what is in memory; the next process on this host has it: %w", err)
	}
	return errors.Join(err, p.abandon())
}

// abandon closes everything, and leaves the device to a successor.
func (p *Process) abandon() error {
	p.links.close()
	return p.closeLog()
}

// closeLog keeps the connections, which nobody serves.
func (p *Process) closeLog() error {
	p.stop()
	p.volume.Close()
	<-p.stopped
	return p.parts.close()
}

func (p *Process) device() string { return fmt.Sprintf("/dev/nbd%d", p.links.index) }
