package verify

import "slices"

// ledgerHead has the size of a ledger and the edge of its list: by levels, the hashes in no full
// tile.
type ledgerHead struct {
	closed  bool
	purged  uint64
	authors uint64
	size    uint64
	edge    [][]Digest
}

const tileHashes = 16

// LedgerState is what the head of a ledger says of its list.
type LedgerState struct {
	// Size is the number of journals, and Root that of the list of their leaf hashes.
	Size uint64
	Root Digest
	// Purged is the number below which journals may have been swept by a purge.
	Purged uint64
	// Closed tells whether a purge has closed the ledger: it takes orders, and nothing else.
	Closed bool
}

// DecodeLedgerState reads the record of a ledger's head.
func DecodeLedgerState(encoded []byte) (LedgerState, error) {
	state, _, err := DecodeLedgerHead(encoded)
	return state, err
}

// DecodeLedgerHead is DecodeLedgerState with the number of members that have journals.
func DecodeLedgerHead(encoded []byte) (state LedgerState, authors uint64, err error) {
	head, err := decodeHead(encoded)
	if err != nil {
		return LedgerState{}, 0, err
	}
	state = LedgerState{Size: head.size, Root: head.root(), Purged: head.purged, Closed: head.closed}
	return state, head.authors, nil
}

func decodeHead(encoded []byte) (*ledgerHead, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a head of another format")
	}
	h := &ledgerHead{closed: r.flag(), purged: r.u64(), authors: r.u64(), size: r.u64()}
	for left := h.size; left > 0 && r.err == nil; left /= tileHashes {
		level := make([]Digest, left%tileHashes)
		for i := range level {
			level[i] = r.digest()
		}
		h.edge = append(h.edge, level)
	}
	return h, r.end()
}

func (h *ledgerHead) encode() []byte {
	w := writer{}
	w.u8(1)
	w.flag(h.closed)
	w.u64(h.purged)
	w.u64(h.authors)
	w.u64(h.size)
	for _, level := range h.edge {
		for _, hash := range level {
			w.digest(hash)
		}
	}
	return w
}

// push appends a leaf hash, and gives the tiles that became full.
func (h *ledgerHead) push(ledger LedgerID, hash Digest) (full []PutRecord) {
	for level := 0; ; level++ {
		if level == len(h.edge) {
			h.edge = append(h.edge, nil)
		}
		h.edge[level] = append(h.edge[level], hash)
		if len(h.edge[level]) < tileHashes {
			break
		}
		tile := writer{}
		for _, hash := range h.edge[level] {
			tile.digest(hash)
		}
		index := h.size >> (4 * (level + 1))
		first := index << (4 * (level + 1))
		full = append(full, PutRecord{Key: ledger.tileKey(uint8(level), index, first), Value: tile})
		hash = MerkleRoot(h.edge[level])
		h.edge[level] = nil
	}
	h.size++
	return full
}

func (h *ledgerHead) root() Digest {
	var right *Digest
	for _, level := range h.edge {
		if len(level) == 0 {
			continue
		}
		hashes := slices.Clone(level)
		if right != nil {
			hashes = append(hashes, *right)
		}
		root := MerkleRoot(hashes)
		right = &root
	}
	if right == nil {
		return emptyRoot
	}
	return *right
}

// before gives the head's list as it was with fewer journals. The function gives full tiles. It is
// nil if a tile is missing.
func (h *ledgerHead) before(size uint64, tile func(level uint8, index uint64) []byte) *ledgerHead {
	past := &ledgerHead{size: size}
	for level := 0; size>>(4*level) > 0; level++ {
		index, count := size>>(4*(level+1)), size>>(4*level)%tileHashes
		var hashes []Digest
		if h.size>>(4*(level+1)) == index {
			hashes = h.edge[level]
		} else {
			full := tile(uint8(level), index)
			for ; len(full) >= len(Digest{}); full = full[len(Digest{}):] {
				hashes = append(hashes, Digest(full))
			}
		}
		if uint64(len(hashes)) < count {
			return nil
		}
		past.edge = append(past.edge, hashes[:count])
	}
	return past
}
