// Package drive puts the same load on every system that is compared, and prints the same figures;
// loadtest/bench/src/drive.rs does in Rust what this package does in Go.
//
// A closed loop has a number of clients, each of which sends its next batch when the last one is
// answered. An open loop sends batches at fixed times, without waiting for answers, and counts
// latency from the time at which a batch was due. Reads are closed loops over keys that were
// written before. Every client has a connection of its own, unless -connections says how many they
// share.
package drive

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a run, from the command line.
type Options struct {
	Endpoints []string
	Mode      string
	Clients   int
	// Connections is the number of connections, which the clients share.
	Connections int
	Batch       int
	ValueBytes  int
	Seconds     float64
	Warmup      float64
	Rate        float64
	First       uint64
	Keys        uint64
}

// A Client is one connection to the system. Several goroutines use it if clients share connections.
type Client interface {
	// Write makes the pairs durable, in one transaction.
	Write(ctx context.Context, keys, values [][]byte) error
	// Read reads existing keys, with verification if the system can prove its answers.
	Read(ctx context.Context, keys [][]byte) error
}

// attemptTimeout bounds one call.
const attemptTimeout = 20 * time.Second

// pause keeps clients of a dead system from spinning.
const pause = 20 * time.Millisecond

func parse() Options {
	var options Options
	endpoints := flag.String("endpoints", "", "where the system listens, with commas between")
	flag.StringVar(&options.Mode, "mode", "closed", "closed, open or read")
	flag.IntVar(&options.Clients, "clients", 1, "clients, each with a connection of its own")
	flag.IntVar(&options.Connections, "connections", 0, "connections, if several clients share one")
	flag.IntVar(&options.Batch, "batch", 1, "records of a batch, or keys of a read")
	flag.IntVar(&options.ValueBytes, "value-bytes", 1024, "bytes of a value")
	flag.Float64Var(&options.Seconds, "seconds", 5, "seconds that are measured")
	flag.Float64Var(&options.Warmup, "warmup", 1, "seconds before")
	flag.Float64Var(&options.Rate, "rate", 0, "batches a second of an open loop")
	flag.Uint64Var(&options.First, "first", 0, "number of the first key that is written")
	flag.Uint64Var(&options.Keys, "keys", 0, "how many keys there are to read")
	flag.Parse()
	options.Endpoints = strings.Split(*endpoints, ",")
	if options.Connections == 0 {
		options.Connections = options.Clients
	}
	return options
}

// mix spreads the bits of a number (the finaliser of splitmix64).
func mix(number uint64) uint64 {
	number += 0x9e3779b97f4a7c15
	number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9
	number = (number ^ (number >> 27)) * 0x94d049bb133111eb
	return number ^ (number >> 31)
}

// Key is the key of a number: 32 evenly distributed bytes.
func Key(number uint64) []byte {
	return fmt.Appendf(nil, "%016x%016x", mix(number), mix(^number))
}

// Value is the value of a number: bytes that don't compress.
func Value(number uint64, length int) []byte {
	value := make([]byte, 0, length+8)
	for word := mix(number); len(value) < length; word = mix(word) {
		for shift := 0; shift < 64; shift += 8 {
			value = append(value, byte(word>>shift))
		}
	}
	return value[:length]
}

type sample struct {
	at      time.Time
	latency time.Duration
}

type run struct {
	options Options
	tickets atomic.Int64
	errors  atomic.Int64
	first   atomic.Value
	// due has a message for each batch of an open loop that is due; it is closed at the end.
	due   chan struct{}
	begin time.Time
	end   time.Time
}

// Main runs a driver.
func Main(system string, connect func(ctx context.Context, options Options, client int) (Client, error)) {
	options := parse()
	ctx := context.Background()
	connections := make([]Client, options.Connections)
	for index := range connections {
		client, err := connect(ctx, options, index)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", system, err)
			os.Exit(1)
		}
		connections[index] = client
	}
	now := time.Now()
	run := &run{options: options, begin: now.Add(seconds(options.Warmup))}
	run.end = run.begin.Add(seconds(options.Seconds))
	if options.Mode == "open" {
		run.due = make(chan struct{}, options.Clients)
		go run.pace(now)
	}
	samples := make([][]sample, options.Clients)
	var done sync.WaitGroup
	for index := range samples {
		client := connections[index%len(connections)]
		done.Go(func() { samples[index] = run.client(ctx, now, client) })
	}
	time.Sleep(time.Until(run.begin))
	fmt.Println(`{"event":"begin"}`)
	time.Sleep(time.Until(run.end))
	fmt.Println(`{"event":"end"}`)
	done.Wait()
	run.print(system, slices.Concat(samples...))
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}

func (run *run) client(ctx context.Context, start time.Time, client Client) []sample {
	var samples []sample
	for time.Now().Before(run.end) {
		if run.due != nil {
			if _, open := <-run.due; !open {
				break
			}
		}
		ticket := uint64(run.tickets.Add(1) - 1)
		due := time.Now()
		if run.due != nil {
			due = start.Add(dueAt(ticket, run.options.Rate))
		}
		err := run.call(ctx, client, ticket)
		now := time.Now()
		if err != nil {
			run.errors.Add(1)
			run.first.CompareAndSwap(nil, err.Error())
			time.Sleep(pause)
		} else if now.After(run.begin) && now.Before(run.end) {
			samples = append(samples, sample{now, now.Sub(due)})
		}
	}
	return samples
}

func (run *run) call(ctx context.Context, client Client, ticket uint64) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if run.options.Mode == "read" {
		return client.Read(ctx, run.someKeys(ticket))
	}
	keys, values := make([][]byte, run.options.Batch), make([][]byte, run.options.Batch)
	for index := range keys {
		number := run.options.First + ticket*uint64(run.options.Batch) + uint64(index)
		keys[index], values[index] = Key(number), Value(number, run.options.ValueBytes)
	}
	return client.Write(ctx, keys, values)
}

// someKeys are different keys that were written before. Neighbouring numbers have keys that lie far
// apart.
func (run *run) someKeys(ticket uint64) [][]byte {
	keys, count := make([][]byte, run.options.Batch), run.options.Keys
	for index := range keys {
		keys[index] = Key((mix(ticket)%count + uint64(index)) % count)
	}
	return keys
}

func (run *run) print(system string, samples []sample) {
	options := run.options
	latencies := make([]time.Duration, len(samples))
	for index, sample := range samples {
		latencies[index] = sample.latency
	}
	slices.Sort(latencies)
	quantile := func(part float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return float64(latencies[min(int(part*float64(len(latencies))), len(latencies)-1)].Microseconds())
	}
	slices.SortFunc(samples, func(left, right sample) int { return left.at.Compare(right.at) })
	gap, before := time.Duration(0), run.begin
	for _, sample := range samples {
		gap, before = max(gap, sample.at.Sub(before)), sample.at
	}
	gap = max(gap, run.end.Sub(before))
	records := len(samples) * options.Batch
	text, _ := json.Marshal(map[string]any{
		"system": system, "mode": options.Mode, "batch": options.Batch, "value_bytes": options.ValueBytes,
		"clients": options.Clients, "connections": options.Connections, "seconds": options.Seconds, "rate": options.Rate, "errors": run.errors.Load(),
		"first_error": run.first.Load(), "calls": len(samples), "records": records,
		"records_per_second": float64(records) / options.Seconds,
		"next_key":           options.First + uint64(run.tickets.Load())*uint64(options.Batch),
		"latency_us": map[string]float64{
			"p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "p999": quantile(0.999), "max": quantile(1),
		},
		"gap_ms": float64(gap.Microseconds()) / 1000,
	})
	fmt.Println(string(text))
}
