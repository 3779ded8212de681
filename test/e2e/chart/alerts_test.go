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

	"github.com/escache/escache-csi/test/labtest"
)

// figures are what the driver exports at one moment, by series.
type figures map[string]float64

// usual is after how long the rules are judged: longer than any but EscacheDirtyTooOld waits.
const usual = 2 * time.Hour

// raises waits until the chart's alerts that would be raised, if all went on as since the earlier
// figures, are those that are wanted. Every part answers on whose host there is power.
func (w *world) raises(t *testing.T, since figures, wanted ...string) {
	t.Helper()
	slices.Sort(wanted)
	w.judge(t, fmt.Sprintf("the alerts %q are raised", wanted), usual, func(ctx context.Context) (before, now figures, err error) {
		err = w.findTargets(ctx)
		if err == nil {
			now, err = w.scrape(ctx)
		}
		return since, now, err
	}, func(got []string) bool { return slices.Equal(got, wanted) })
}

// raisesAmong waits until these are among those that would be raised after a span. What does not
// answer is what some alerts are for.
func (w *world) raisesAmong(t *testing.T, since figures, span time.Duration, alerts ...string) {
	t.Helper()
	w.judge(t, fmt.Sprintf("the alerts %q are raised", alerts), span, func(ctx context.Context) (before, now figures, err error) {
		now, _ = w.scrape(ctx)
		return since, now, nil
	}, func(got []string) bool {
		return !slices.ContainsFunc(alerts, func(alert string) bool { return !slices.Contains(got, alert) })
	})
}

// quiet waits until every part answers and no alert would be raised, and returns the figures of
// that moment.
func (w *world) quiet(t *testing.T) (last figures) {
	t.Helper()
	w.judge(t, "no alert is raised", usual, func(ctx context.Context) (before, now figures, err error) {
		err = w.findTargets(ctx)
		if err == nil {
			last, err = w.scrape(ctx)
		}
		return last, last, err
	}, func(got []string) bool { return len(got) == 0 })
	return last
}

// judge looks again and again until the alerts are right.
func (w *world) judge(
	t *testing.T, what string, span time.Duration, look func(context.Context) (before, now figures, err error), right func([]string) bool,
) {
	t.Helper()
	labtest.WaitForCommand(t, what, podTime, func(ctx context.Context) error {
		before, now, err := look(ctx)
		if err != nil {
			return err
		}
		got, err := w.alerts(ctx, t.TempDir(), span, before, now)
		if err == nil && !right(got) {
			err = fmt.Errorf("%q are", got)
		}
		return err
	})
}

// alerts has Prometheus' own code judge the rules after a span in which gauges stay as they are
// now, and counters go on growing every minute by what they have grown by since the earlier
// figures. Ages grow with the time.
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
		switch {
		case known && before < value && (strings.HasSuffix(metric, "_total") || strings.HasSuffix(metric, "_count")):
			first, growth = before, value-before
		case strings.HasSuffix(metric, "_oldest_seconds") && value > 0:
			growth = time.Minute.Seconds()
		case strings.HasSuffix(metric, "_end_seconds") && value > 0: // promtool's clock begins at 0
			first = time.Until(time.Unix(int64(value), 0)).Seconds()
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

// target is what one of the chart's monitors asks, on which host, and the label it adds.
type target struct{ host, url, label string }

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
		host, address := pod.Spec.NodeName, "http://"+pod.Status.PodIP
		switch pod.Labels["app.kubernetes.io/component"] {
		case "node":
			label := fmt.Sprintf("node=%q", host)
			w.targets = append(w.targets, target{host, address + ":9810/metrics", label}, target{host, address + ":9810/metrics/escached", label})
		case "controller":
			w.targets = append(w.targets, target{host, address + ":9808/metrics", fmt.Sprintf("pod=%q", pod.Name)})
		}
	}
	if len(w.targets) == 0 {
		return errors.New("the driver has no pods")
	}
	return nil
}

// scrape asks every target on whose host there is power. What does not answer is in the error, and
// the others' figures are there.
func (w *world) scrape(ctx context.Context) (figures, error) {
	all := figures{}
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	off, err := labtest.HostsOff(bounded, w.lab)
	failures := []error{err}
	for _, t := range w.targets {
		if slices.Contains(off, t.host) {
			continue
		}
		text, err := get(ctx, t.url)
		failures = append(failures, err)
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
