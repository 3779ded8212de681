package rbd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// Environment of the process that TestAKilledProcessLeavesNothingThatTheNextCannotFinish starts and
// kills.
const (
	victimDir  = "RBD_TEST_VICTIM_DIR"
	victimPool = "RBD_TEST_VICTIM_POOL"
	victimSeed = "RBD_TEST_VICTIM_SEED"
)

const victimNames = 25

// TestVictim is no test: it makes and deletes images until it is killed.
func TestVictim(t *testing.T) {
	dir, pool := os.Getenv(victimDir), os.Getenv(victimPool)
	if dir == "" {
		t.Skip("it runs only as the child of another test")
	}
	seed, err := strconv.ParseUint(os.Getenv(victimSeed), 10, 64)
	must(t, err)
	clusters := NewClusters(Options{Dir: dir, OwnsTrash: func(string) bool { return true }})
	c, err := clusters.Get(testCluster)
	must(t, err)
	go func() {
		for {
			_, _ = c.EmptyTrash(context.Background(), pool)
		}
	}()
	inParallel(victimNames, func(i int) error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for {
			s := spec(pool, fmt.Sprint("v", i))
			if r.IntN(2) == 0 {
				_ = c.CreateImage(context.Background(), s)
			} else {
				_ = c.DeleteImage(context.Background(), s.ImageRef)
			}
		}
	})
}

// TestAKilledProcessLeavesNothingThatTheNextCannotFinish kills a process that makes and deletes
// images, at any moment. The next one repeats the calls, as a CSI retry does, and then nothing must
// be left.
func TestAKilledProcessLeavesNothingThatTheNextCannotFinish(t *testing.T) {
	victims := 3 // at once: most of the time they wait for dead watches to end
	if testing.Short() {
		victims = 1
	}
	for range victims {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			killOnce(t, seed)
		})
	}
}

func killOnce(t *testing.T, seed uint64) {
	pool, dir := newPool(t), configDir(t, ceph.Conf(), ceph.AdminKeyring())
	victim := exec.Command(os.Args[0], "-test.run=^TestVictim$")
	victim.Env = append(os.Environ(), victimDir+"="+dir, victimPool+"="+pool, fmt.Sprintf("%s=%d", victimSeed, seed))
	must(t, victim.Start())
	r := rand.New(rand.NewPCG(seed, 0))
	time.Sleep(3*time.Second + time.Duration(r.Int64N(int64(time.Second)))) // its connection takes a second or two
	must(t, victim.Process.Kill())
	_ = victim.Wait()

	clusters := NewClusters(Options{Dir: dir, OwnsTrash: func(string) bool { return true }})
	t.Cleanup(clusters.Close)
	c, err := clusters.Get(testCluster)
	must(t, err)
	for i := range victimNames {
		s := spec(pool, fmt.Sprint("v", i))
		if i%2 == 0 {
			if err := c.CreateImage(t.Context(), s); err != nil && !errors.Is(err, ErrExists) {
				t.Errorf("create %d: %v", i, err)
			}
			if _, err := c.ImageInfo(t.Context(), s.ImageRef); err != nil {
				t.Errorf("look at %d: %v", i, err)
			}
		}
		// A dead process's watch takes up to 30 s to end.
		eventually(t, 60*time.Second, func() error {
			err := c.DeleteImage(t.Context(), s.ImageRef)
			switch {
			case errors.Is(err, ErrNotFound):
				return nil
			case errors.Is(err, ErrBusy):
				return fmt.Errorf("%w; the clients of this process are %v", err, ownAddresses(t, c))
			}
			return err
		})
	}
	eventually(t, 60*time.Second, func() error { return second(c.EmptyTrash(t.Context(), pool)) })
	names, err := c.ListImages(t.Context(), pool)
	if err != nil || len(names) > 0 {
		t.Errorf("images %v, %v", names, err)
	}
	waitForEmptyPool(t, c, pool)
}

// ownAddresses are those of the process's clients, so that a failure tells a dead client's watch from one of its own.
func ownAddresses(t *testing.T, c *Cluster) []string {
	t.Helper()
	var addresses []string
	for _, l := range c.links {
		if !l.connected() {
			continue
		}
		address, err := l.conn.conn.GetAddrs()
		must(t, err)
		addresses = append(addresses, address)
	}
	return addresses
}
