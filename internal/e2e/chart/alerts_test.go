//go:build e2e

package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// raises waits until the chart's alerts that would be raised, if what the driver exports now stayed as it is, are those that are wanted.
func (w *world) raises(t *testing.T, wanted ...string) {
	t.Helper()
	slices.Sort(wanted)
	labtest.WaitForCommand(t, fmt.Sprintf("the alerts %q are raised", wanted), podTime, func(ctx context.Context) error {
		got, err := w.alerts(ctx, t.TempDir())
		if err == nil && !slices.Equal(got, wanted) {
			err = fmt.Errorf("%q are", got)
		}
		return err
	})
}

// alerts has Prometheus' own code judge the rules: every sample stands for an hour of the same.
func (w *world) alerts(ctx context.Context, dir string) ([]string, error) {
	series, err := w.scrape(ctx)
	if err != nil {
		return nil, err
	}
	rules, err := filepath.Abs("charts/escache-csi/files/alerts.yaml")
	if err != nil {
		return nil, err
	}
	const question = `count by (alertname) (ALERTS{alertstate="firing"})`
	type object = map[string]any
	data, err := json.Marshal(object{ // which is YAML too
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []object{{
			"interval": "1m", "input_series": series,
			// The answer is in what promtool says about a wrong guess.
			"promql_expr_test": []object{{"expr": question, "eval_time": "1h", "exp_samples": []object{{"labels": "{}", "value": 0}}}},
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

type sample struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// scrape asks every pod of the driver that has power for what the chart's monitors ask for, and adds the labels that these add.
func (w *world) scrape(ctx context.Context) ([]sample, error) {
	out, err := w.try(ctx, "", "kubectl", "-n", namespace, "get", "pods", "-o", "json")
	if err != nil {
		return nil, err
	}
	var pods struct {
		Items []struct {
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
			Spec struct {
				NodeName string `json:"nodeName"`
			} `json:"spec"`
			Status struct {
				PodIP string `json:"podIP"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(out), &pods); err != nil {
		return nil, err
	}
	off, err := w.off(ctx)
	if err != nil {
		return nil, err
	}
	var all []sample
	for _, pod := range pods.Items {
		if slices.Contains(off, pod.Spec.NodeName) {
			continue
		}
		var urls []string
		label := fmt.Sprintf("node=%q", pod.Spec.NodeName)
		switch pod.Metadata.Labels["app.kubernetes.io/component"] {
		case "node":
			urls = []string{":9810/metrics", ":9810/metrics/escached"}
		case "controller":
			urls, label = []string{":9808/metrics"}, fmt.Sprintf("pod=%q", pod.Metadata.Name)
		}
		for _, url := range urls {
			text, err := w.try(ctx, "", "curl", "-sSf", "--max-time", "20", "http://"+pod.Status.PodIP+url)
			if err != nil {
				return nil, err
			}
			all = append(all, samples(text, label)...)
		}
	}
	return all, nil
}

// samples are those that alerts can ask for.
func samples(text, label string) []sample {
	var all []sample
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
		all = append(all, sample{series + "{" + inner + "}", strconv.FormatFloat(number, 'f', -1, 64) + "x70"})
	}
	return all
}

func cutLast(s, separator string) (before, after string, found bool) {
	at := strings.LastIndex(s, separator)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(separator):], true
}

// off are the hosts without power.
func (w *world) off(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	status, err := w.lab.Status(ctx)
	var names []string
	for _, n := range status.Nodes {
		if n.State == "off" {
			names = append(names, n.Name)
		}
	}
	return names, err
}
