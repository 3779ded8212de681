//go:build e2e

package chart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// figures are what the driver exports at one moment, by series.
type figures map[string]float64

// raises waits until these alerts of the chart would be raised, if all went on as since the earlier figures.
func (w *world) raises(t *testing.T, since figures, alerts ...string) {
	t.Helper()
	w.raisesWithin(t, 2*time.Hour, since, alerts...)
}

func (w *world) raisesWithin(t *testing.T, span time.Duration, since figures, alerts ...string) {
	t.Helper()
	labtest.WaitForCommand(t, fmt.Sprintf("the alerts %q are raised", alerts), podTime, func(ctx context.Context) error {
		now, _ := w.scrape(ctx) // what does not answer is what some alerts are for
		got, err := w.alerts(ctx, t.TempDir(), span, since, now)
		for _, alert := range alerts {
			if err == nil && !slices.Contains(got, alert) {
				err = fmt.Errorf("%q are", got)
			}
		}
		if err == nil {
			t.Logf("raised are %q", got)
		}
		return err
	})
}

// quiet waits until every part answers and no alert would be raised, and returns the figures of that moment.
func (w *world) quiet(t *testing.T) figures {
	t.Helper()
	var now figures
	labtest.WaitForCommand(t, "no alert is raised", podTime, func(ctx context.Context) error {
		err := w.findTargets(ctx)
		if err != nil {
			return err
		}
		if now, err = w.scrape(ctx); err != nil {
			return err
		}
		got, err := w.alerts(ctx, t.TempDir(), 2*time.Hour, now, now)
		if err == nil && len(got) > 0 {
			err = fmt.Errorf("%q are", got)
		}
		return err
	})
	return now
}

// alerts has Prometheus' own code judge the rules after a span in which gauges stay as they are now, and counters go on growing every minute
// by what they have grown by since the earlier figures.
func (w *world) alerts(ctx context.Context, dir string, span time.Duration, since, now figures) ([]string, error) {
	rules, err := filepath.Abs("charts/escache-csi/files/alerts.yaml")
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	minutes := int(span.Minutes())
	var series []object
	for name, value := range now {
		first, growth := value, 0.0
		metric, _, _ := strings.Cut(name, "{")
		before, known := since[name]
		if known && before < value && (strings.HasSuffix(metric, "_total") || strings.HasSuffix(metric, "_count")) {
			first, growth = before, value-before
		}
		series = append(series, object{"series": name, "values": fmt.Sprintf("%.0f+%.0fx%d", first, growth, minutes)})
	}
	const question = `count by (alertname) (ALERTS{alertstate="firing"})`
	data, err := json.Marshal(object{ // which is YAML too
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []object{{
			"interval": "1m", "input_series": series,
			// The answer is in what promtool says about a wrong guess.
			"promql_expr_test": []object{{
				"expr": question, "eval_time": fmt.Sprintf("%dm", minutes), "exp_samples": []object{{"labels": "{}", "value": 0}},
			}},
		}},
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "test.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return nil, err
	}
	_, err = w.try(ctx, "", os.Getenv("PROMTOOL"), "test", "rules", file)
	_, answer, found := strings.Cut(fmt.Sprint(err), "got:")
	if !found {
		return nil, fmt.Errorf("promtool does not answer: %w", err)
	}
	var names []string
	for _, part := range strings.Split(answer, `alertname="`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// target is what one of the chart's monitors asks, and the label it adds.
type target struct{ url, label string }

// findTargets asks Kubernetes what the monitors ask.
func (w *world) findTargets(ctx context.Context) error {
	out, err := w.try(ctx, "", "kubectl", "-n", namespace, "get", "pods", "-o", "json")
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := json.Unmarshal([]byte(out), &pods); err != nil {
		return err
	}
	w.targets = nil
	for _, pod := range pods.Items {
		address := "http://" + pod.Status.PodIP
		switch pod.Labels["app.kubernetes.io/component"] {
		case "node":
			label := fmt.Sprintf("node=%q", pod.Spec.NodeName)
			w.targets = append(w.targets, target{address + ":9810/metrics", label}, target{address + ":9810/metrics/escached", label})
		case "controller":
			w.targets = append(w.targets, target{address + ":9808/metrics", fmt.Sprintf("pod=%q", pod.Name)})
		}
	}
	if len(w.targets) == 0 {
		return errors.New("the driver has no pods")
	}
	return nil
}

// scrape asks every target. What does not answer is in the error, and the others' figures are there.
func (w *world) scrape(ctx context.Context) (figures, error) {
	all := figures{}
	var failures []error
	for _, t := range w.targets {
		text, err := get(ctx, t.url)
		if err != nil {
			failures = append(failures, err)
		}
		all.add(text, t.label)
	}
	return all, errors.Join(failures...)
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}

// add adds those that alerts can ask for.
func (f figures) add(text, label string) {
	for line := range strings.Lines(text) {
		series, value, found := cutLast(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		if !found || err != nil || !strings.HasPrefix(series, "escache") && !strings.HasPrefix(series, "leader_") || strings.Contains(series, "_bucket{") {
			continue
		}
		inner := ""
		if name, labels, found := strings.Cut(series, "{"); found {
			series, inner = name, strings.TrimSuffix(labels, "}")
		}
		if name, _, _ := strings.Cut(label, "="); !strings.Contains(","+inner, ","+name+"=") {
			inner = strings.TrimPrefix(inner+","+label, ",")
		}
		f[series+"{"+inner+"}"] = number
	}
}

func cutLast(s, separator string) (before, after string, found bool) {
	at := strings.LastIndex(s, separator)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(separator):], true
}
