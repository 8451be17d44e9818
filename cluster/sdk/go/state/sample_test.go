package state

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"coppice.dev/sdk/coppice"
)

// Of n cached keys, k are proven for each version. If one of them is a lie, a version misses it
// with the probability 1-k/n, so m versions do with (1-k/n)^m, and it takes n/k versions on
// average.
const (
	sampledKeys = 20
	samples     = 4
	// missMax bounds the versions of one trial: 0.8^100 is below 10^-9.
	missMax = 100
	trials  = 300
)

// lieOnStream counts the versions until a wrong value on the stream is found.
func lieOnStream(t *testing.T) int {
	t.Helper()
	w := newWorld(t, Options{Level: Sample, Samples: samples})
	w.onHeads = func(h *coppice.Headed) {
		for i := range h.Changes {
			if string(h.Changes[i].Key) == "k0" {
				h.Changes[i].Value = []byte("a lie")
			}
		}
	}
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	all := map[string]*string{}
	for i := range sampledKeys {
		all[fmt.Sprintf("k%d", i)] = text("true")
	}
	w.write(all)
	for versions := 1; versions <= missMax; versions++ {
		if err := w.let(); err != nil {
			if !errors.Is(err, coppice.ErrUntrusted) {
				t.Fatal(err)
			}
			return versions
		}
		// The versions behind it write keys that are cached already, so that their number stays.
		w.write(map[string]*string{"k1": text(fmt.Sprint(versions))})
	}
	t.Fatalf("%d versions do not find it", missMax)
	return 0
}

func TestSamplesFindALieOnTheStreamInTime(t *testing.T) {
	sum := 0
	for range trials {
		sum += lieOnStream(t)
	}
	mean := float64(sum) / trials
	// The deviation of one trial is below n/k = 5, so that of the mean of 300 is below 0.3. This bound
	// is five times as far.
	if expected := float64(sampledKeys) / samples; mean > expected+1.5 || mean < expected-1.5 {
		t.Errorf("%.2f versions on average, and not %.2f", mean, expected)
	} else {
		t.Logf("%.2f versions on average, of %.2f expected", mean, expected)
	}
}

// A part p of the reads is repeated with a proof, so m lies are missed with (1-p)^m.
func TestSampledReadsFindLies(t *testing.T) {
	const reads = 200
	w := newWorld(t, Options{Level: Sample, SampleReads: 0.1})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.write(map[string]*string{"a": text("1")})
	if err := w.let(); err != nil {
		t.Fatal(err)
	}
	w.lie = func(got *coppice.BatchGot) {
		got.Records[0] = &coppice.Record{Value: []byte("a lie"), LastChanged: stamp(0, 1)}
	}
	view, err := w.cache.Head(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range reads {
		_, err := view.Get(context.Background(), fmt.Append(nil, "other ", i))
		if errors.Is(err, coppice.ErrUntrusted) {
			t.Logf("found by read %d", i+1)
			if err := w.cache.Err(); !errors.Is(err, coppice.ErrUntrusted) {
				t.Errorf("later reads: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// 0.9^200 is below 10^-9.
	t.Errorf("%d reads do not find it", reads)
}

// At the level of proofs, samples find a ledger whose state does not follow from its journals.
func TestSamplesFindAStateThatDoesNotFollow(t *testing.T) {
	w := newWorld(t, Options{Samples: 1})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.commit(map[string]*string{"a": text("in the journal")})
	w.head().values["a"] = "in the state"
	err := w.let()
	var evidence *Evidence
	if !errors.As(err, &evidence) || len(evidence.Known) == 0 {
		t.Errorf("%v", err)
	}
}

// A ledger that never proves what is cached loses the cache.
func TestALedgerThatRefusesSamplesIsNotBelieved(t *testing.T) {
	w := newWorld(t, Options{Level: Sample, Samples: 1})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.write(map[string]*string{"a": text("1")})
	w.refuseProofs = true
	drops := w.cache.Metrics().Drops
	for range sampleFailuresMax {
		w.write(map[string]*string{"b": text("1")})
		if err := w.let(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return w.cache.Metrics().Drops > drops })
	if failures := w.cache.Metrics().SampleFailures; failures != sampleFailuresMax {
		t.Errorf("%d samples failed", failures)
	}
}

// What waits for a checkpoint is bounded: the writes of later versions are given up.
func TestTheQueueIsBounded(t *testing.T) {
	w := newWorld(t, Options{Bytes: 4 * queueBytesMax})
	if err := w.follow(); err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := w.cutStream(true); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", queueBytesMax/4)
	for i := range 6 {
		w.write(map[string]*string{fmt.Sprint(i): &large})
	}
	w.model.mutex.Lock()
	w.show()
	w.model.mutex.Unlock()
	if err := w.cutStream(false); err != nil {
		t.Fatal(err)
	}
	if m := w.cache.Metrics(); m.Versions != 6 || m.Unknown != 3 || m.Keys != 3 {
		t.Errorf("%+v", m)
	}
}
