// Package overview is a read-only web page about groups, hosts and volumes. It shows what is on
// record, what is wrong and what to do about it, to clients that Kubernetes allows to list
// CacheVolumes. It changes nothing, and has no means to.
package overview

import (
	"bytes"
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options say how the page is served.
type Options struct {
	// Address is IP:PORT. Without TLS files it must be a loopback address, for kubectl
	// port-forward, so that tokens never travel in the clear.
	Address string
	// Cert and Key are PEM files. They are read again for each connection.
	Cert, Key string
	// Grafana is the address of the chart's dashboard, for links; empty: no links.
	Grafana string
	// Docs is the address below which the pages of docs/ are, for links in remedies; empty: no links.
	Docs string
}

// Validate returns what is wrong with the options. With an empty address there is no page.
func (o *Options) Validate() error {
	if o.Address == "" {
		return nil
	}
	for what, address := range map[string]string{"dashboard": o.Grafana, "documentation": o.Docs} {
		if u, err := url.Parse(address); address != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
			return fmt.Errorf("the address of the %s, %q, does not begin with https:// or http://", what, address)
		}
	}
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return fmt.Errorf("%q is not IP:PORT: %w", o.Address, err)
	}
	if (o.Cert == "") != (o.Key == "") {
		return errors.New("give a certificate and its key, or neither")
	}
	if ip := net.ParseIP(host); o.Cert == "" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q would send tokens in the clear: give a certificate and its key, or a loopback address, "+
			"which kubectl port-forward reaches", o.Address)
	}
	return nil
}

// Config is what the page needs.
type Config struct {
	Options

	// Records is a cache of what is on record.
	Records client.Reader
	// API is asked about tokens.
	API client.Client
	// Leader returns the identity of the replica that leads; "" if none does.
	Leader func(context.Context) (string, error)
	// Identity and Version are those of this replica. Namespace has the pods of the driver.
	Identity, Version, Namespace string
	Log                          *slog.Logger
	Now                          func() time.Time
}

// Server serves the page, on every replica of the controller.
type Server struct {
	config  Config
	boards  *boards
	access  *access
	pages   *template.Template
	pace    pace
	streams chan struct{} // has one element for each that is open
	ending  context.Context
	end     context.CancelFunc
}

//go:embed page.html page.css page.js
var files embed.FS

// New returns a server.
func New(c Config) *Server {
	ending, end := context.WithCancel(context.Background())
	return &Server{
		config: c, boards: newBoards(c),
		access: &access{api: c.API, now: c.Now, known: map[[32]byte]verdict{}},
		pages: template.Must(template.New("page.html").Funcs(template.FuncMap{
			"count": count, "join": joined, "add": func(a, b int) int { return a + b },
			"linked": func(text string) []piece { return linked(c.Docs, text) },
		}).ParseFS(files, "page.html")),
		pace: defaultPace(), streams: make(chan struct{}, mostStreams), ending: ending, end: end,
	}
}

// NeedLeaderElection returns false: the page changes nothing.
func (s *Server) NeedLeaderElection() bool { return false }

const shutdownTime = 2 * time.Second

// Start serves until the context ends. Nothing of it runs on afterwards.
func (s *Server) Start(ctx context.Context) error {
	defer s.end()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.config.Address)
	if err != nil {
		return fmt.Errorf("serve the web page: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10,
	}
	server.RegisterOnShutdown(s.end)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}()
	if s.config.Cert != "" {
		server.TLSConfig = &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(s.config.Cert, s.config.Key)
				return &pair, err
			},
		}
		// With HTTP/2 a browser may have the page in more than six windows.
		err = server.ServeTLS(listener, "", "")
	} else {
		err = server.Serve(listener)
	}
	cancel()
	<-ended
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler serves the page, its news, and the form for a token. All addresses in it are relative, so
// that a proxy can serve it below a path.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.show)
	mux.HandleFunc("GET /live", s.live)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("POST /login", s.login)
	mux.Handle("GET /page.css", http.FileServerFS(files))
	mux.Handle("GET /page.js", http.FileServerFS(files))
	return headers(http.NewCrossOriginProtection().Handler(mux))
}

func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "+
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// asked checks a request. If it may not see anything, or asks for nothing that there is, it has been
// answered and ok is false.
func (s *Server) asked(w http.ResponseWriter, r *http.Request) (q query, ok bool) {
	if code := s.access.check(r.Context(), tokenOf(r)); code != http.StatusOK {
		s.ask(w, code)
		return query{}, false
	}
	q, err := parse(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error()+"; the form on the page makes addresses that are right", http.StatusBadRequest)
		return query{}, false
	}
	return q, true
}

// now returns what an address shows now. If that is not known, the request has been answered.
func (s *Server) now(w http.ResponseWriter, r *http.Request, q query) (*board, view, parts, bool) {
	b, err := s.boards.latest(r.Context())
	if err != nil {
		s.config.Log.WarnContext(r.Context(), "cannot read what the web page shows", "error", err)
		http.Error(w, "the records cannot be read now; the log of csi-controller says why", http.StatusServiceUnavailable)
		return nil, view{}, parts{}, false
	}
	v, p, err := s.parts(b, q)
	if err != nil {
		s.config.Log.ErrorContext(r.Context(), "cannot make the web page", "error", err)
		http.Error(w, "the page cannot be made; the log of csi-controller says why", http.StatusInternalServerError)
		return nil, view{}, parts{}, false
	}
	return b, v, p, true
}

func (s *Server) show(w http.ResponseWriter, r *http.Request) {
	q, ok := s.asked(w, r)
	if !ok {
		return
	}
	if b, v, p, ok := s.now(w, r, q); ok {
		s.render(w, http.StatusOK, "page", map[string]any{"V": v, "P": p, "Time": moment(b.made)})
	}
}

// ask shows the form for a token, and why the token in the request was not accepted.
func (s *Server) ask(w http.ResponseWriter, code int) {
	why := map[int]string{
		http.StatusForbidden:  "This account may not list cachevolumes.escache.io.",
		http.StatusBadGateway: "The Kubernetes API server does not say whose token this is. Try again.",
	}
	s.render(w, code, "login", map[string]string{"Why": why[code]})
}

func (s *Server) render(w http.ResponseWriter, code int, part string, data any) {
	var text bytes.Buffer
	if err := s.pages.ExecuteTemplate(&text, part, data); err != nil {
		s.config.Log.Error("cannot make the web page", "error", err)
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(text.Bytes())
}

// tokenLimit, in bytes, is more than any token needs.
const tokenLimit = 16 << 10

func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, tokenLimit)
	token := r.PostFormValue("token")
	if code := s.access.check(r.Context(), token); code != http.StatusOK {
		s.ask(w, code)
		return
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // without a certificate of its own the page is behind a proxy or on loopback
		Name: cookieName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.config.Cert != "",
	})
	w.Header().Set("Location", "./") // http.Redirect would lead out of the path of a proxy
	w.WriteHeader(http.StatusSeeOther)
}
