// Package overview is a read-only web page about groups, hosts and volumes. It shows what is on
// record to clients that Kubernetes allows to list CacheVolumes. It changes nothing, and has no
// means to.
package overview

import (
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
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
}

// Validate returns what is wrong with the options. With an empty address there is no page.
func (o *Options) Validate() error {
	if o.Address == "" {
		return nil
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

// Server serves the page, on every replica of the controller.
type Server struct {
	options Options
	records client.Reader
	access  *access
	log     *slog.Logger
	now     func() time.Time
	pages   *template.Template
}

//go:embed page.html
var page string

// New returns a server that reads records from a cache and asks api about tokens.
func New(options Options, records client.Reader, api client.Client, log *slog.Logger, now func() time.Time) *Server {
	return &Server{
		options: options, records: records, log: log, now: now,
		pages:  template.Must(template.New("page").Funcs(template.FuncMap{"count": count}).Parse(page)),
		access: &access{api: api, now: now, known: map[[32]byte]verdict{}},
	}
}

// NeedLeaderElection returns false: the page changes nothing.
func (s *Server) NeedLeaderElection() bool { return false }

const shutdownTime = 2 * time.Second

// Start serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("serve the web page: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10,
	}
	if s.options.Cert != "" {
		listener = tls.NewListener(listener, &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair, err := tls.LoadX509KeyPair(s.options.Cert, s.options.Key)
				return &pair, err
			},
		})
	}
	go func() {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		_ = server.Shutdown(ending)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler serves the page, its live part, and the form for a token.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { s.show(w, r, "page") })
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, r *http.Request) { s.show(w, r, "live") })
	mux.HandleFunc("POST /login", s.login)
	return headers(http.NewCrossOriginProtection().Handler(mux))
}

func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"+scriptHash()+
			"'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, part string) {
	code := s.access.check(r.Context(), tokenOf(r))
	if code != http.StatusOK {
		s.ask(w, code)
		return
	}
	v, err := s.view(r.Context())
	if err != nil {
		s.log.WarnContext(r.Context(), "cannot read what the web page shows", "error", err)
		http.Error(w, "the records cannot be read now; the log of csi-controller says why", http.StatusServiceUnavailable)
		return
	}
	s.render(w, http.StatusOK, part, v)
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
		s.log.Error("cannot make the web page", "error", err)
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
		Name: cookieName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.options.Cert != "",
	})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}
