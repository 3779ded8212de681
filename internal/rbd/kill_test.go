package rbd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// Environment of the process that TestAKilledProcessLeavesNothingThatTheNextCannotFinish starts and
// kills.
const (
	victimDir  = "RBD_TEST_VICTIM_DIR"
	victimPool = "RBD_TEST_VICTIM_POOL"
	victimSeed = "RBD_TEST_VICTIM_SEED"
)

// victimAddress is what the victim prints before the address of each connection that it makes.
const victimAddress = "victim is client"

const victimNames = 25

// TestVictim is no test: it makes and deletes images until it is killed.
func TestVictim(t *testing.T) {
	dir, pool := os.Getenv(victimDir), os.Getenv(victimPool)
	if dir == "" {
		t.Skip("it runs only as the child of another test")
	}
	seed, err := strconv.ParseUint(os.Getenv(victimSeed), 10, 64)
	must(t, err)
	clusters := NewClusters(Options{Dir: dir, OwnsTrash: func(string) bool { return true }, Admit: func(s Session) error {
		_, err := fmt.Println(victimAddress, s.Address)
		return err
	}})
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
// images, at any moment. The next one fences it, as a new leader does, and repeats the calls, as a CSI
// retry does. Then nothing must be left.
func TestAKilledProcessLeavesNothingThatTheNextCannotFinish(t *testing.T) {
	victims := 3
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
	dead := killVictim(t, pool, dir, seed)
	clusters := NewClusters(Options{
		Dir: dir, OwnsTrash: func(string) bool { return true },
		Admit: func(s Session) error { return s.Fence(time.Hour, dead...) },
	})
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
		if err := c.DeleteImage(t.Context(), s.ImageRef); err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("delete %d: %v", i, err)
		}
	}
	if err := second(c.EmptyTrash(t.Context(), pool)); err != nil {
		t.Log(err)
		forgetDeadWatches(t, c, pool)
	}
	eventually(t, 60*time.Second, func() error { return second(c.EmptyTrash(t.Context(), pool)) })
	names, err := c.ListImages(t.Context(), pool)
	if err != nil || len(names) > 0 {
		t.Errorf("images %v, %v", names, err)
	}
	waitForEmptyPool(t, c, pool)
}

// killVictim lets a victim work for a second or two, kills it, and returns the addresses of its clients.
func killVictim(t *testing.T, pool, dir string, seed uint64) (addresses []string) {
	t.Helper()
	victim := exec.CommandContext(within(t, 2*time.Minute), os.Args[0], "-test.run=^TestVictim$")
	victim.Env = append(os.Environ(), victimDir+"="+dir, victimPool+"="+pool, fmt.Sprintf("%s=%d", victimSeed, seed))
	out, err := victim.StdoutPipe()
	must(t, err)
	must(t, victim.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); {
		address, found := strings.CutPrefix(lines.Text(), victimAddress+" ")
		if !found {
			t.Log(lines.Text())
			continue
		}
		if len(addresses) == 0 { // it begins its work
			r := rand.New(rand.NewPCG(seed, 0))
			time.Sleep(time.Second + time.Duration(r.Int64N(int64(time.Second))))
			must(t, victim.Process.Kill())
		}
		addresses = append(addresses, address)
	}
	_ = victim.Wait()
	if len(addresses) == 0 {
		t.Fatal("the victim has ended without a connection")
	}
	return addresses
}

// forgetDeadWatches has the OSD drop what it remembers of the pool's images: of each placement group it remembers 64 objects. Ceph
// before 17.2.7 keeps a watch as long as that if its client dies while the OSD adds it (tracker.ceph.com/issues/58120), and purges no
// image that has one.
func forgetDeadWatches(t *testing.T, c *Cluster, pool string) {
	t.Helper()
	inPool(t, c, pool, func(io *rados.IOContext) error {
		return errors.Join(inParallel(1000, func(i int) error {
			name := fmt.Sprint("other", i)
			return errors.Join(io.WriteFull(name, []byte(name)), io.Delete(name))
		})...)
	})
}
