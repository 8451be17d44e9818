package drive

import (
	"slices"
	"testing"
	"time"
)

// given runs the loop on a clock that only sleeps move; slept says how long a sleep takes. It
// returns the times at which something was given.
func given(length time.Duration, rate float64, slept func(time.Duration) time.Duration) []time.Duration {
	var clock time.Duration
	var times []time.Duration
	sleep := func(wanted time.Duration) { clock += slept(wanted) }
	handOut(length, rate, func() time.Duration { return clock }, sleep, func() bool {
		times = append(times, clock)
		return true
	})
	return times
}

func TestEachNumberIsGivenAtItsTimeAndNotAtWholeMilliseconds(t *testing.T) {
	times := given(time.Millisecond, 4000, func(wanted time.Duration) time.Duration { return wanted })
	if want := []time.Duration{0, 250_000, 500_000, 750_000}; !slices.Equal(times, want) {
		t.Error(times)
	}
}

func TestASleepThatEndsEarlyGivesNothingEarly(t *testing.T) {
	times := given(time.Second, 2, func(wanted time.Duration) time.Duration { return min(wanted, 7*time.Millisecond) })
	if want := []time.Duration{0, 500 * time.Millisecond}; !slices.Equal(times, want) {
		t.Error(times)
	}
}

func TestWhatWasMissedDuringALateSleepIsGivenAtOnce(t *testing.T) {
	times := given(4*time.Millisecond, 1000, func(time.Duration) time.Duration { return 10 * time.Millisecond })
	late := 10 * time.Millisecond
	if want := []time.Duration{0, late, late, late}; !slices.Equal(times, want) {
		t.Error(times)
	}
}

func TestATakerThatEndsStopsTheLoop(t *testing.T) {
	count := 0
	handOut(time.Hour, 1000, func() time.Duration { return time.Hour }, nil, func() bool {
		count++
		return count < 3
	})
	if count != 3 {
		t.Error(count)
	}
}

func TestReadsOfSeveralKeysAreOfDifferentKeysThatWereWritten(t *testing.T) {
	run := &run{options: Options{Batch: 10, Keys: 12}}
	written := map[string]bool{}
	for number := range uint64(12) {
		written[string(Key(number))] = true
	}
	for ticket := range uint64(50) {
		seen := map[string]bool{}
		for _, key := range run.someKeys(ticket) {
			if !written[string(key)] || seen[string(key)] {
				t.Fatal(string(key))
			}
			seen[string(key)] = true
		}
	}
}
