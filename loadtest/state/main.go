// Command state measures blocks of go-ethereum's EVM on a ledger, beside blocks on the tries of
// go-ethereum in Pebble. It prints an object of JSON a line; loadtest/bench_state.py judges them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"coppice.dev/sdk/verify"
)

// settings of a run.
type settings struct {
	endpoint, key, directory string
	world                    world
	transactions             int
	// blocks of each kind are measured, and uncached ones of those without a cache.
	blocks, uncached int
	delays           string
	warm, cutFor     time.Duration
	back, reads      int
}

func parse() (s settings) {
	flag.StringVar(&s.endpoint, "endpoint", "", "`host:port` of the ledger's coordinator")
	flag.StringVar(&s.key, "key", "", "the ledger's public `key`")
	flag.StringVar(&s.directory, "directory", "", "an empty `directory` for Pebble")
	flag.IntVar(&s.world.accounts, "accounts", 1_000_000, "accounts in the state")
	flag.IntVar(&s.world.slots, "slots", 4_000_000, "slots in the state")
	flag.IntVar(&s.world.contracts, "contracts", 1000, "contracts that share the slots")
	flag.IntVar(&s.transactions, "transactions", 200, "transactions of a block")
	flag.IntVar(&s.blocks, "blocks", 60, "blocks that are measured of each kind")
	flag.IntVar(&s.uncached, "uncached", 6, "blocks that are measured without a cache")
	flag.StringVar(&s.delays, "delays", "0,0.5,1", "round trips to the ledger in `ms`")
	flag.DurationVar(&s.warm, "warm", time.Minute, "how long blocks run before they are measured")
	flag.DurationVar(&s.cutFor, "cut", 5*time.Second, "how long the connection of a follower is cut")
	flag.IntVar(&s.back, "back", 10_000, "blocks between an old state and head")
	flag.IntVar(&s.reads, "reads", 300, "reads with proofs of both")
	flag.Parse()
	return s
}

// line is a line of the output. Times are in ms.
type line struct {
	Workload string    `json:"workload"`
	Side     string    `json:"side"`
	Mode     string    `json:"mode,omitempty"`
	DelayMs  float64   `json:"delay_ms"`
	BlockMs  []float64 `json:"block_ms,omitempty"`
	ReadMs   []float64 `json:"read_ms,omitempty"`
	Reads    float64   `json:"reads,omitempty"`
	Writes   float64   `json:"writes,omitempty"`
	// HitRatio is the part of a block's reads that the ledger was not asked for, and KnownRatio the
	// part that an earlier block has read as well. ServedRatio is the part of the EVM's reads that the
	// cache answered, some of them by what was read ahead.
	HitRatio    float64 `json:"hit_ratio,omitempty"`
	KnownRatio  float64 `json:"known_ratio,omitempty"`
	ServedRatio float64 `json:"served_ratio,omitempty"`
	Seconds     float64 `json:"seconds,omitempty"`
	BackMs      float64 `json:"back_ms,omitempty"`
	Versions    uint64  `json:"versions,omitempty"`
	Drops       *uint64 `json:"drops,omitempty"`
}

func (l *line) print() error { return json.NewEncoder(os.Stdout).Encode(l) }

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// add counts a block that was measured.
func (l *line) add(b *block, took time.Duration) {
	n := float64(len(l.BlockMs))
	mean := func(before float64, value float64) float64 { return (before*n + value) / (n + 1) }
	l.Reads, l.Writes = mean(l.Reads, float64(b.reads)), mean(l.Writes, float64(b.writes))
	l.KnownRatio = mean(l.KnownRatio, float64(b.known)/float64(b.reads))
	l.BlockMs = append(l.BlockMs, ms(took))
}

// bench has the two chains.
type bench struct {
	settings
	trust    verify.VKey
	here     *local
	mine     *blocks
	theirs   *blocks
	loadedAt time.Time
}

func (b *bench) say(format string, values ...any) {
	log.Printf("[%6.1f] %s", time.Since(b.loadedAt).Seconds(), fmt.Sprintf(format, values...))
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.here, err = openLocal(b.directory); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.here.close()) }()
	b.say("%d accounts and %d slots are loaded", b.world.accounts, b.world.slots)
	if err := b.here.load(&b.world); err != nil {
		return err
	}
	b.say("go-ethereum has them")
	near, err := dial(b.endpoint, b.trust, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, near.close()) }()
	if err := near.load(ctx, &b.world); err != nil {
		return err
	}
	b.say("the ledger has them")
	b.mine, b.theirs = newBlocks(&b.world, b.transactions), newBlocks(&b.world, b.transactions)
	for _, text := range strings.FieldsFunc(b.delays, func(r rune) bool { return r == ',' }) {
		delay, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		if err := b.measure(ctx, delay); err != nil {
			return err
		}
	}
	if err := b.follow(ctx, near); err != nil {
		return err
	}
	return b.lookBack(ctx, near)
}

func main() {
	log.SetFlags(0)
	s := parse()
	trust, err := verify.ParseVKey(strings.TrimSpace(s.key))
	if err != nil {
		log.Fatal(err)
	}
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt)
	defer end()
	b := &bench{settings: s, trust: trust, loadedAt: time.Now()}
	if err := b.run(ctx); err != nil {
		log.Fatal(err)
	}
}
