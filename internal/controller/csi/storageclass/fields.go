package storageclass

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func boolean(out *bool, v string) (err error) {
	if *out, err = strconv.ParseBool(v); err != nil {
		return errors.New("is neither true nor false")
	}
	return nil
}

func engine(out *v1alpha1.CacheEngine, v string) error {
	*out = v1alpha1.CacheEngine(v)
	if *out != v1alpha1.CacheEngineWritecache && *out != v1alpha1.CacheEngineLog {
		return fmt.Errorf("is neither %s nor %s", v1alpha1.CacheEngineWritecache, v1alpha1.CacheEngineLog)
	}
	return nil
}

func mode(out *v1alpha1.CacheMode, v string) error {
	*out = v1alpha1.CacheMode(v)
	if *out != v1alpha1.CacheModeWriteback && *out != v1alpha1.CacheModeWritethrough {
		return fmt.Errorf("is neither %s nor %s", v1alpha1.CacheModeWriteback, v1alpha1.CacheModeWritethrough)
	}
	return nil
}

// order puts nothing on record for the default, so that hosts and CRDs that know no order go on with it.
func order(out *v1alpha1.WriteBackOrder, v string) error {
	switch escache.WriteBackOrder(v) {
	case escache.OrderMerged:
		*out = ""
	case escache.OrderStrict:
		*out = v1alpha1.WriteBackOrderStrict
	default:
		return fmt.Errorf("is neither %s nor %s", escache.OrderMerged, escache.OrderStrict)
	}
	return nil
}

func number(out *int64, v string, low, high int64) error {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < low || n > high {
		return fmt.Errorf("is not a number from %d to %d", low, high)
	}
	*out = n
	return nil
}

// standard is the value that brings an option of the cache back to the driver's default.
const standard = "default"

func percent(out *int32, v string) error {
	if v == standard {
		*out = 0
		return nil
	}
	var n int64
	if err := number(&n, strings.TrimSuffix(v, "%"), 1, 99); err != nil {
		return fmt.Errorf("is neither a percentage from 1 to 99 nor %q", standard)
	}
	*out = int32(n)
	return nil
}

func seconds(out *int32, v string) error {
	if v == standard {
		*out = 0
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Second || d > escache.MaxDirtyAgeSeconds*time.Second || d%time.Second != 0 {
		return fmt.Errorf("is neither a duration of whole seconds from 1s to 24h, such as 30s, 5m or 1h, nor %q", standard)
	}
	*out = int32(d / time.Second)
	return nil
}

func bytes(out *int64, v string) error {
	q, err := resource.ParseQuantity(v)
	if err != nil || q.Sign() <= 0 || q.Value() > MaxVolumeBytes {
		return errors.New("is not a size such as 4194304, 64Ki or 4Mi")
	}
	*out = q.Value()
	return nil
}

const defaultObjectSize = 4 << 20

func objectSize(out *int64, v string) error {
	if err := bytes(out, v); err != nil {
		return err
	}
	if n := *out; n < 4<<10 || n > 32<<20 || n&(n-1) != 0 {
		return errors.New("is not a power of two from 4Ki to 32Mi")
	}
	return nil
}

func features(out *[]string, v string) error {
	if err := list(out, v); err != nil {
		return err
	}
	for _, f := range *out {
		if _, known := needs[f]; !known {
			return fmt.Errorf("has %s; the nodes' kernels can map %s", f, strings.Join(slices.Sorted(maps.Keys(needs)), ", "))
		}
	}
	return nil
}

// list parses names that are separated by commas or blanks. It sorts them: the order means nothing.
func list(out *[]string, v string) error {
	names := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		return errors.New("is empty; leave the key out instead")
	}
	for i := range names {
		if err := name(&names[i], names[i]); err != nil {
			return err
		}
	}
	slices.Sort(names)
	*out = slices.Compact(names)
	return nil
}

// name accepts names of pools, clusters and groups that are safe everywhere: in a path, in a URL
// and on a command line.
func name(out *string, v string) error {
	const most = 63
	for i, r := range v {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("-_.", r)) {
			return errors.New("is not a name of letters, digits, '-', '_' and '.' that begins with a letter or digit")
		}
	}
	if v == "" || len(v) > most {
		return fmt.Errorf("is empty or longer than %d characters", most)
	}
	*out = v
	return nil
}

func options(out *string, v string) error {
	for _, r := range v {
		if r < ' ' || r > '~' {
			return errors.New("has characters that are not printable ASCII")
		}
	}
	if len(v) > 256 {
		return errors.New("is longer than 256 characters")
	}
	*out = v
	return nil
}
