package fabric

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hyperledger/fabric-protos-go-apiv2/common"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/rwsetutil"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb/stateleveldb"

	"coppice.dev/adapters/fabric/internal/peer"
	"coppice.dev/sdk/coppicetest"
)

const (
	// benchTransactions is how many transactions a block has. Each reads and writes two keys.
	benchTransactions = 500
	benchKeysOfEach   = 2
	benchValueBytes   = 200
	// keysVariable is the number of keys in the state.
	keysVariable = "COPPICE_BENCH_KEYS"
	benchKeys    = 100_000
	// simulationKeys is the number of keys that simulations may read once.
	simulationKeys = 20_000
)

// roundTrips are the distances of ledgers.
var roundTrips = []time.Duration{0, 500 * time.Microsecond, time.Millisecond}

// wire gives the endpoint of a ledger that seems to be a round trip away.
func wire(b *testing.B, to string, roundTrip time.Duration) string {
	b.Helper()
	if roundTrip == 0 {
		return to
	}
	w := must(coppicetest.NewWire(to, roundTrip))(b)
	b.Cleanup(func() { _ = w.Close() })
	return w.Address
}

// keyOf is spread over the key space.
func keyOf(i int) string {
	return fmt.Sprintf("%016x", uint64(i)*0x9e3779b97f4a7c15)
}

// initial gives the state before the first block.
type initial struct {
	keys []string
	next int
}

func (s *initial) Next() (*statedb.VersionedKV, error) {
	if s.next == len(s.keys) {
		return nil, nil
	}
	s.next++
	value := &statedb.VersionedValue{
		Value:   make([]byte, benchValueBytes),
		Version: heightAt(noHeight, 1, 0),
	}
	return &statedb.VersionedKV{
		CompositeKey:   &statedb.CompositeKey{Namespace: "bank", Key: s.keys[s.next-1]},
		VersionedValue: value,
	}, nil
}

func (s *initial) Close() {}

// bank makes blocks whose transactions read and write different keys.
type bank struct {
	*rand.Rand
	keys   []string
	number uint64
	// changed has the block and the transaction that wrote a key.
	changed map[string][2]uint64
}

func (k *bank) block(b *testing.B, p *peer.Peer) *common.Block {
	b.Helper()
	k.number++
	var results [][]byte
	used := map[string]bool{}
	for tx := range benchTransactions {
		set := rwsetutil.NewRWSetBuilder()
		for range benchKeysOfEach {
			key := k.keys[k.IntN(len(k.keys))]
			for used[key] {
				key = k.keys[k.IntN(len(k.keys))]
			}
			used[key] = true
			at, known := k.changed[key]
			if !known {
				at = [2]uint64{1, 0}
			}
			set.AddToReadSet("bank", key, heightAt(noHeight, at[0], at[1]))
			value := make([]byte, benchValueBytes)
			binary.BigEndian.PutUint64(value, k.Uint64())
			set.AddToWriteSet("bank", key, value)
			k.changed[key] = [2]uint64{k.number, uint64(tx)}
		}
		result := must(set.GetTxSimulationResults())(b)
		results = append(results, must(result.GetPubSimulationBytes())(b))
	}
	return must(p.Block(k.number, results))(b)
}

// runBlocks measures validation and commit of blocks over a state database.
func runBlocks(b *testing.B, states statedb.VersionedDBProvider, keys []string) {
	b.Helper()
	first := heightAt(noHeight, 1, 0)
	if err := states.ImportFromSnapshot("mychannel", first, &initial{keys: keys}); err != nil {
		b.Fatal(err)
	}
	p := must(peer.Open(b.TempDir(), "mychannel", states))(b)
	defer p.Close()
	k := &bank{
		Rand:    rand.New(rand.NewPCG(1, 2)),
		keys:    keys,
		number:  1,
		changed: map[string][2]uint64{},
	}
	var times []time.Duration
	for b.Loop() {
		b.StopTimer()
		block := k.block(b, p)
		b.StartTimer()
		began := time.Now()
		if valid := must(p.CommitBlock(block))(b); valid != benchTransactions {
			b.Fatalf("%d transactions are valid", valid)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms/median")
	b.ReportMetric(float64(times[len(times)*9/10].Microseconds())/1000, "ms/p90")
}

// BenchmarkBlocks validates and commits blocks of 500 transactions, with 1,000 reads and 1,000
// writes of 200 bytes: on goleveldb, and on a ledger that is up to 1 ms away. Both sync each block
// to the same disk.
func BenchmarkBlocks(b *testing.B) {
	count := benchKeys
	if text := os.Getenv(keysVariable); text != "" {
		count = must(strconv.Atoi(text))(b)
	}
	if least := 2 * benchTransactions * benchKeysOfEach; count < least {
		b.Fatalf("%s is below %d", keysVariable, least)
	}
	keys := make([]string, count)
	for i := range keys {
		keys[i] = keyOf(i)
	}
	slices.Sort(keys)
	b.Run("goleveldb", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "state")
		runBlocks(b, must(stateleveldb.NewVersionedDBProvider(path))(b), keys)
	})
	for _, roundTrip := range roundTrips {
		b.Run(fmt.Sprintf("ledger at %v", roundTrip), func(b *testing.B) {
			l := startLedger(b)
			runBlocks(b, open(b, l.connect(b, wire(b, l.endpoint, roundTrip)), Options{}), keys)
		})
	}
}

// runSimulations measures transactions that read keys, each of which is new to the cache if it is
// cold.
func runSimulations(b *testing.B, p *peer.Peer, keys []string, reads int, isWarm bool) {
	b.Helper()
	next := 0
	simulate := func() {
		simulator := must(p.NewTxSimulator(strconv.Itoa(next)))(b)
		defer simulator.Done()
		for range reads {
			if value := must(simulator.GetState("bank", keys[next%len(keys)]))(b); value == nil {
				b.Fatal("a key has no value")
			}
			next++
		}
		if isWarm {
			next -= reads
		} else if next > len(keys) {
			b.Fatalf("more than %d keys are read", len(keys))
		}
	}
	if isWarm {
		simulate()
	}
	for b.Loop() {
		simulate()
	}
}

// BenchmarkSimulations reads by transactions, from goleveldb and from a ledger that is up to 1 ms
// away.
func BenchmarkSimulations(b *testing.B) {
	keys := make([]string, simulationKeys)
	for i := range keys {
		keys[i] = keyOf(i)
	}
	first := heightAt(noHeight, 1, 0)
	simulations := func(b *testing.B, states func() statedb.VersionedDBProvider) {
		p := must(peer.Open(b.TempDir(), "mychannel", states()))(b)
		defer p.Close()
		part := keys
		for _, reads := range []int{1, 10} {
			for _, isWarm := range []bool{false, true} {
				heat := map[bool]string{false: "cold", true: "warm"}[isWarm]
				b.Run(fmt.Sprintf("%d reads, %s", reads, heat), func(b *testing.B) {
					runSimulations(b, p, part, reads, isWarm)
					part = part[min(len(part), (b.N+1)*reads):]
				})
			}
		}
	}
	load := func(b *testing.B, states statedb.VersionedDBProvider) {
		if err := states.ImportFromSnapshot("mychannel", first, &initial{keys: keys}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("goleveldb", func(b *testing.B) {
		simulations(b, func() statedb.VersionedDBProvider {
			states := must(stateleveldb.NewVersionedDBProvider(filepath.Join(b.TempDir(), "state")))(b)
			load(b, states)
			return states
		})
	})
	for _, roundTrip := range roundTrips {
		b.Run(fmt.Sprintf("ledger at %v", roundTrip), func(b *testing.B) {
			l := startLedger(b)
			load(b, open(b, l.connect(b, ""), Options{}))
			simulations(b, func() statedb.VersionedDBProvider {
				return open(b, l.connect(b, wire(b, l.endpoint, roundTrip)), Options{})
			})
		})
	}
}
