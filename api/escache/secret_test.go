package escache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const planted = "uZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"

func TestASecretIsPrintedNowhere(t *testing.T) {
	request := ReplicaRequest{VolumeRef: VolumeRef{Pool: "rbd", Image: "v1"}, Secret: planted}
	var log bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewJSONHandler(&log, nil), slog.NewTextHandler(&log, nil)} {
		slog.New(handler).Info("told", "secret", request.Secret, "request", request)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&log, format+format+format+"\n", request.Secret, request, &request)
	}
	if strings.Contains(log.String(), planted) || !strings.Contains(log.String(), "v1") {
		t.Errorf("it shows\n%s", &log)
	}
}

func TestASecretGoesOverTheWire(t *testing.T) {
	data, err := json.Marshal(ReplicaRequest{Secret: planted})
	var got ReplicaRequest
	if err = errors.Join(err, json.Unmarshal(data, &got)); err != nil || got.Secret != planted {
		t.Errorf("%s: %v", data, err)
	}
}

func TestSecretsHaveOneForm(t *testing.T) {
	for text, valid := range map[string]bool{
		planted: true, "": false, planted[1:]: false, planted + "x": false, strings.Repeat("\"", 43): false, planted[1:] + "\n": false,
	} {
		if Secret(text).Valid() != valid {
			t.Errorf("%q: valid must be %v", text, valid)
		}
	}
}
