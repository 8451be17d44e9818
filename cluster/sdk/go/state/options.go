package state

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"coppice.dev/sdk/coppice"
)

// Ledger is what the cache needs of a client: *coppice.Client has it.
type Ledger interface {
	Head(ctx context.Context) (*coppice.Head, error)
	Grown(ctx context.Context) (*coppice.Grown, error)
	BatchGet(ctx context.Context, keys [][]byte, read *coppice.Read) (*coppice.BatchGot, error)
	WatchHeads(ctx context.Context, watch coppice.Watch) iter.Seq2[coppice.Headed, error]
}

var _ Ledger = (*coppice.Client)(nil)

// Level says how much of what the ledger says is checked.
type Level int

const (
	// Proofs demands a proof for each read, and the whole journal for each version on the stream.
	Proofs Level = iota
	// Sample takes the ledger's word for reads and changes, and demands proofs of some of both.
	// Headers are under signed checkpoints all the same.
	Sample
	// Trusted takes the ledger's word for reads and changes. Headers are under signed checkpoints.
	Trusted
)

// Options are the settings of a cache. The zero value of each has a default.
type Options struct {
	Level Level
	// SampleReads is the part of the reads that are repeated with a proof, at the level Sample: 0.05
	// by default.
	SampleReads float64
	// Samples is how many cached keys are proven at head for each version: 2 by default at the level
	// Sample, and none at others.
	Samples int
	// KeysOnly makes the stream bring the keys of changes, without their values. What other programs
	// write is then dropped instead of kept, and is read again when it is needed.
	KeysOnly bool
	// Bytes bounds the memory for values, keys and their administration: 256 MiB by default.
	Bytes int
	// Wait is how long a read above the frontier waits for the stream: 5 ms by default.
	Wait time.Duration
	// Timeout bounds each read of the ledger, and the wait for the first header: 30 s by default.
	Timeout time.Duration
	// StaleMax is how long Head trusts the frontier while the stream is broken: 5 s by default. After
	// that, it asks the ledger for its head.
	StaleMax time.Duration
	// Parallel is how many reads of the ledger are under way at one time: 8 by default.
	Parallel int
}

const (
	defaultSampleReads = 0.05
	defaultSamples     = 2
	defaultBytes       = 256 << 20
	defaultWait        = 5 * time.Millisecond
	defaultTimeout     = 30 * time.Second
	defaultStale       = 5 * time.Second
	defaultParallel    = 8
)

func (o *Options) fill() error {
	if o.Level < Proofs || o.Level > Trusted {
		return errors.New("state: a level that does not exist")
	}
	if o.Bytes < 0 || o.Samples < 0 || o.Wait < 0 || o.Timeout < 0 || o.StaleMax < 0 ||
		o.Parallel < 0 {
		return errors.New("state: a limit is negative")
	}
	if !(o.SampleReads >= 0 && o.SampleReads <= 1) {
		return errors.New("state: the sampled part of the reads is between 0 and 1")
	}
	if o.Samples == 0 && o.Level == Sample {
		o.Samples = defaultSamples
	}
	if o.Samples > partKeys {
		return errors.New("state: more samples for each version than one read proves")
	}
	setDefault(&o.SampleReads, defaultSampleReads)
	setDefault(&o.Bytes, defaultBytes)
	setDefault(&o.Wait, defaultWait)
	setDefault(&o.Timeout, defaultTimeout)
	setDefault(&o.StaleMax, defaultStale)
	setDefault(&o.Parallel, defaultParallel)
	return nil
}

func setDefault[T comparable](option *T, value T) {
	var zero T
	if *option == zero {
		*option = value
	}
}

// proven tells whether reads carry a proof from the first.
func (o *Options) proven() bool { return o.Level == Proofs }

// picks tells whether a read that was taken on trust is repeated with a proof.
func (o *Options) picks() bool { return o.Level == Sample && rand.Float64() < o.SampleReads }
