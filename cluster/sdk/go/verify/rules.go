package verify

import (
	"bytes"
	"math/bits"
)

// Numbers of section 4.
const (
	recordWeight = 72
	entryWeight  = 64
	filterBlock  = 512
	filterProbes = 7
)

// weightMin is the weight that each entry has at least: a node has at most fanout entries.
func (p *Params) weightMin() uint64 {
	return (uint64(p.NodeBytes) + uint64(p.Fanout) - 1) / uint64(p.Fanout)
}

func (p *Params) recordWeight(key int, put bool, length uint32) uint64 {
	weight := recordWeight + uint64(key)
	if put && length <= p.InlineBytes {
		weight += uint64(length)
	}
	return max(weight, p.weightMin())
}

func (p *Params) entryWeight(separator int) uint64 {
	return max(entryWeight+uint64(separator), p.weightMin())
}

// split cuts a list of weights into nodes, and gives the end of each.
func (p *Params) split(weights []uint64) (ends []int) {
	var whole uint64
	for _, weight := range weights {
		whole += weight
	}
	if whole <= uint64(p.NodeBytes) {
		return []int{len(weights)}
	}
	n := (whole + uint64(p.NodeBytes) - 1) / uint64(p.NodeBytes)
	var before, piece uint64
	for i, weight := range weights {
		high, low := bits.Mul64(before, n)
		at, _ := bits.Div64(high, low, whole)
		if at != piece && i > 0 {
			ends = append(ends, i)
		}
		piece = at
		before += weight
	}
	return append(ends, len(weights))
}

// pack fills one node after the other, and gives the end of each.
func (p *Params) pack(weights []uint64) (ends []int) {
	var filled uint64
	for i, weight := range weights {
		if i > 0 && filled+weight > uint64(p.NodeBytes) && filled > 0 {
			ends, filled = append(ends, i), 0
		}
		filled += weight
	}
	return append(ends, len(weights))
}

// separator is the shortest prefix of a key that is above the key before it.
func separator(left, right []byte) []byte {
	for n := 1; n < len(right); n++ {
		if bytes.Compare(right[:n], left) > 0 {
			return right[:n]
		}
	}
	return right
}

// filter is the Bloom filter of a frozen tree (section 5).
type filter struct {
	blocks uint64
	words  []uint64
}

func (p *Params) filterBlocks(entries uint64) uint64 {
	return max(1, (entries*uint64(p.FilterBits)+filterBlock-1)/filterBlock)
}

// filterPlace gives the block of a key, and its bits in the block.
func filterPlace(key []byte, blocks uint64) (block uint64, places [filterProbes]uint16) {
	a, x := filterHash(key)
	block, _ = bits.Mul64(a, blocks)
	for i := range places {
		places[i] = uint16(x >> (9 * i) % filterBlock)
	}
	return block, places
}

func newFilter(p *Params, keys [][]byte) *filter {
	f := &filter{blocks: p.filterBlocks(uint64(len(keys)))}
	f.words = make([]uint64, f.blocks*filterBlock/64)
	for _, key := range keys {
		block, places := filterPlace(key, f.blocks)
		for _, place := range places {
			f.words[block*8+uint64(place/64)] |= 1 << (place % 64)
		}
	}
	return f
}

// admits tells whether the tree may hold a record of a key.
func (f *filter) admits(key []byte) bool {
	block, places := filterPlace(key, f.blocks)
	for _, place := range places {
		if f.words[block*8+uint64(place/64)]>>(place%64)&1 == 0 {
			return false
		}
	}
	return true
}

// tiers gives how many of the youngest frozen trees a leader merges next, or 0 (section 6). An
// audit does not need it: merges are recorded, and the choice is the leader's.
func (p *Params) tiers(entries []uint64) int {
	m := len(entries)
	if m < 2 {
		return 0
	}
	ratio := max(4, 1+squareRoot(entries[m-1]/(2*uint64(p.Capacity))))
	ratio = min(ratio, uint64(p.TierRatio))
	if m < int(p.TreeLimit)-1 && entries[0]*ratio < entries[1] {
		return 0
	}
	sum := entries[0]
	for j := 2; j < m; j++ {
		sum += entries[j-1]
		if sum*ratio < entries[j] {
			return j
		}
	}
	return m
}

func squareRoot(n uint64) (root uint64) {
	for bit := uint64(1) << 31; bit > 0; bit >>= 1 {
		if next := root | bit; next*next <= n {
			root = next
		}
	}
	return root
}
