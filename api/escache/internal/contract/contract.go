// Package contract reads openapi.yaml and checks requests and answers against it.
package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/escache/escache-csi/api/escache"
)

// Contract is openapi.yaml, ready to validate requests and answers.
type Contract struct {
	router  routers.Router
	problem *openapi3.Schema
}

// Load reads the contract that is embedded in package escache.
func Load(ctx context.Context) (*Contract, error) {
	loader := openapi3.NewLoader()
	loader.ReadFromURIFunc = func(_ *openapi3.Loader, u *url.URL) ([]byte, error) {
		return escache.Documents.ReadFile(path.Base(u.Path))
	}
	doc, err := loader.LoadFromURI(&url.URL{Path: escache.OpenAPIFile})
	if err != nil {
		return nil, fmt.Errorf("read the contract: %w", err)
	}
	if err := doc.Validate(ctx); err != nil {
		return nil, fmt.Errorf("the contract: %w", err)
	}
	doc.Servers = nil // paths decide, whatever host is called
	router, err := legacy.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("the contract: %w", err)
	}
	return &Contract{router: router, problem: doc.Components.Schemas["Problem"].Value}, nil
}

// CheckRequest returns how a request breaks the contract, and nil if it does not. The request's
// body can be read again.
func (c *Contract) CheckRequest(r *http.Request) error {
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateRequest(r.Context(), requestInput(r, route, params))
}

func requestInput(r *http.Request, route *routers.Route, params map[string]string) *openapi3filter.RequestValidationInput {
	return &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, SkipSettingDefaults: true,
		},
	}
}

// CheckAnswer returns how an answer breaks the contract, and nil if it does not. Calls that the
// contract does not have must be answered with a problem, too.
func (c *Contract) CheckAnswer(r *http.Request, status int, header http.Header, body []byte) error {
	if status >= http.StatusBadRequest {
		if err := c.checkProblem(status, header, body); err != nil {
			return err
		}
	} else if status == http.StatusNoContent && len(body) > 0 {
		return fmt.Errorf("204 with %d bytes", len(body))
	}
	route, params, err := c.router.FindRoute(r)
	if err != nil || route.Path != r.URL.Path { // the router forgives a slash at the end
		if status < http.StatusBadRequest {
			return fmt.Errorf("%d for what is no call of the API", status)
		}
		return nil
	}
	input := requestInput(r, route, params)
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Options: input.Options, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
	})
}

// checkProblem checks what the schema cannot: that status, code and body say the same.
func (c *Contract) checkProblem(status int, header http.Header, body []byte) error {
	problem, err := ProblemOf(header, body)
	if err != nil {
		return fmt.Errorf("%d: %w", status, err)
	}
	if problem.Status != status || escache.StatusOf(problem.Code) != status {
		return fmt.Errorf("%d with status %d in the body, and the code %s, which has status %d",
			status, problem.Status, problem.Code, escache.StatusOf(problem.Code))
	}
	var value any
	if err := DecodeStrictly(body, &value); err != nil {
		return err
	}
	return c.problem.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

// ProblemOf reads the problem in the body of an error.
func ProblemOf(header http.Header, body []byte) (*escache.Problem, error) {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != escache.ProblemContentType {
		return nil, fmt.Errorf("an error with content type %q, not %s: %.200q",
			header.Get("Content-Type"), escache.ProblemContentType, body)
	}
	var problem escache.Problem
	if err := json.Unmarshal(body, &problem); err != nil {
		return nil, fmt.Errorf("an error that is no problem+json: %w", err)
	}
	return &problem, nil
}

// DecodeStrictly decodes one JSON value. It refuses fields that the Go type lacks, and anything
// behind the value.
func DecodeStrictly(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more behind the JSON value")
	}
	return nil
}
