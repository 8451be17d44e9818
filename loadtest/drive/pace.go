package drive

import (
	"runtime"
	"syscall"
	"time"
)

// sleepMax is the longest time between looks at the clock.
const sleepMax = 100 * time.Millisecond

// dueAt is the time from the start at which a number is due.
func dueAt(number uint64, rate float64) time.Duration {
	return seconds(float64(number) / rate)
}

// pace says in run.due whenever a batch of an open loop is due, and closes it at the end. Timers of
// Go wake on whole milliseconds while nothing else goes on, and an open loop counts latency from
// the time at which a batch was due. So a thread sleeps by itself, on the kernel's fine timers;
// loadtest/bench/src/pace.rs does the same in Rust.
func (run *run) pace(start time.Time) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sleep := func(wanted time.Duration) {
		spec := syscall.NsecToTimespec(wanted.Nanoseconds())
		// A sleep that a signal ends is begun again by the loop.
		_ = syscall.Nanosleep(&spec, nil)
	}
	now := func() time.Duration { return time.Since(start) }
	handOut(run.end.Sub(start), run.options.Rate, now, sleep, func() bool {
		select {
		case run.due <- struct{}{}:
			return true
		case <-time.After(time.Until(run.end)):
			return false
		}
	})
	close(run.due)
}

// handOut gives each number that is due before length, none before its time. now is the time since
// the start; sleep may return early; give returns false to end.
func handOut(length time.Duration, rate float64, now func() time.Duration, sleep func(time.Duration), give func() bool) {
	for number := uint64(0); ; number++ {
		due := dueAt(number, rate)
		if due >= length {
			return
		}
		for left := due - now(); left > 0; left = due - now() {
			sleep(min(left, sleepMax))
		}
		if !give() {
			return
		}
	}
}
