package overview

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// mostStreams bounds how many windows get news as they come. Others ask now and then.
const mostStreams = 64

// pace says how often something is done.
type pace struct {
	// tick is the time between two looks for news, beat the longest time without a word.
	tick, beat time.Duration
	// life is after what time a browser has to connect again. That may lead to another replica.
	life time.Duration
	// write limits how long a browser may take to read a piece.
	write time.Duration
}

func defaultPace() pace {
	return pace{tick: fresh, beat: 10 * time.Second, life: 5 * time.Minute, write: 10 * time.Second}
}

// live answers once what is new since the board that the browser names in If-None-Match.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	q, ok := s.asked(w, r)
	if !ok {
		return
	}
	b, _, p, ok := s.now(w, r, q)
	if !ok {
		return
	}
	text, err := json.Marshal(p.since(parts{}))
	if err != nil {
		s.config.Log.ErrorContext(r.Context(), "cannot make news for the web page", "error", err)
		http.Error(w, "the news cannot be made; the log of csi-controller says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("ETag", `"`+b.id+`"`)
	if r.Header.Get("If-None-Match") == `"`+b.id+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// events sends news as they come, as Server-Sent Events (WHATWG HTML, section 9.2): first all that the
// browser does not have, then what changes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	q, ok := s.asked(w, r)
	if !ok {
		return
	}
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "60")
		http.Error(w, "too many windows get news already; this one has to ask for them", http.StatusServiceUnavailable)
		return
	}
	b, _, has, ok := s.now(w, r, q)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // asks proxies not to wait for more
	ctx, cancel := context.WithTimeout(r.Context(), s.pace.life)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	stream := &stream{w: w, control: http.NewResponseController(w), write: s.pace.write}
	defer stream.close()
	if shown := r.Header.Get("Last-Event-ID"); b.id != shown && b.id != r.URL.Query().Get(keyAfter) {
		stream.news(has.since(parts{}))
	}
	stream.beat(b.id, s.config.Now())
	s.follow(ctx, stream, tokenOf(r), q, has)
}

// follow sends news until the context ends, the token does not count any more, or nobody reads.
func (s *Server) follow(ctx context.Context, stream *stream, token string, q query, has parts) {
	tick := time.NewTicker(s.pace.tick)
	defer tick.Stop()
	for stream.err == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if s.access.check(ctx, token) != http.StatusOK {
			return // the browser asks again, and is told why
		}
		b, err := s.boards.latest(ctx)
		if err != nil {
			return
		}
		if b.id != has.ID {
			_, next, err := s.parts(b, q)
			if err != nil {
				return
			}
			if n := next.since(has); !n.empty() {
				stream.news(n)
			}
			has = next
		}
		if now := time.Now(); now.Sub(stream.said) >= s.pace.beat {
			stream.beat(b.id, s.config.Now())
		}
	}
}

// stream writes events. After an error it writes nothing more.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	write   time.Duration
	said    time.Time
	err     error
}

func (s *stream) news(n news) {
	data, err := json.Marshal(n) // in one line
	if err != nil {
		s.err = err
		return
	}
	s.send("news", n.ID, data)
}

// close bounds what the server still writes to end the answer.
func (s *stream) close() { _ = s.control.SetWriteDeadline(time.Now().Add(s.write)) }

// beat says that what is shown is still so.
func (s *stream) beat(id string, now time.Time) { s.send("beat", id, []byte(moment(now))) }

func (s *stream) send(event, id string, data []byte) {
	if s.err != nil {
		return
	}
	s.said = time.Now()
	if s.err = s.control.SetWriteDeadline(s.said.Add(s.write)); s.err != nil {
		return
	}
	if _, s.err = fmt.Fprintf(s.w, "event: %s\nid: %s\ndata: %s\n\n", event, id, data); s.err != nil {
		return
	}
	if s.err = s.control.Flush(); s.err == nil {
		s.err = s.control.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream then, also between two events
	}
}
