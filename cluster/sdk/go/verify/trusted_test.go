package verify

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
)

// anchoredList is a list of leaves, as their ledger has them.
type anchoredList struct {
	leaves []*Leaf
	hashes []Digest
}

var anchoredLedger = LedgerID{3}

func listOf(size uint64) *anchoredList {
	l := &anchoredList{}
	for jsn := range size {
		leaf := &Leaf{Ledger: anchoredLedger, JSN: jsn, Of: 1, Number: 1, EnvelopeBytes: envelopeBytesMin}
		l.leaves, l.hashes = append(l.leaves, leaf), append(l.hashes, leaf.Hash())
	}
	return l
}

// cut gives the hashes of an anchor of a size: roots of blocks, and what lies behind the last one.
func (l *anchoredList) cut(size uint64) (blocks, rest []Digest) {
	list := l.hashes[:size]
	for ; len(list) >= BlockJournals; list = list[BlockJournals:] {
		blocks = append(blocks, MerkleRoot(list[:BlockJournals]))
	}
	for ; len(list) >= tileHashes; list = list[tileHashes:] {
		rest = append(rest, MerkleRoot(list[:tileHashes]))
	}
	return blocks, append(rest, list...)
}

// path gives the hashes beside a leaf, up to the root of a subtree.
func (l *anchoredList) path(jsn, width uint64) (path []byte) {
	for below := uint64(1); below < width; below *= 2 {
		start := (jsn/below ^ 1) * below
		sibling := MerkleRoot(l.hashes[start : start+below])
		path = append(path, sibling[:]...)
	}
	return path
}

func TestAnAnchorHoldsTheJournalsOfItsListByAtMost8Hashes(t *testing.T) {
	list := listOf(1101)
	anchor := NewTrustedAnchor(ClusterID{1}, anchoredLedger)
	if anchor.Root() != MerkleRoot(nil) || anchor.Holds(list.leaves[0], nil) {
		t.Error("an empty anchor")
	}
	longest := 0
	for _, size := range []uint64{1, 15, 16, 17, 255, 256, 257, 300, 511, 512, 700, 1024, 1100} {
		blocks, rest := list.cut(size)
		grown, err := anchor.Grown(size, blocks[anchor.Blocks():], rest, MerkleRoot(list.hashes[:size]))
		if err != nil {
			t.Fatalf("%d journals: %v", size, err)
		}
		anchor = grown
		for jsn := uint64(0); jsn < size; jsn += 7 {
			_, width := anchor.above(jsn)
			path := list.path(jsn, width)
			longest = max(longest, len(path)/32)
			leaf := list.leaves[jsn]
			if !anchor.Holds(leaf, path) {
				t.Fatalf("journal %d of %d", jsn, size)
			}
			other, elsewhere := *leaf, *leaf
			other.Lane, elsewhere.Ledger = 9, LedgerID{4}
			if anchor.Holds(&other, path) || anchor.Holds(&elsewhere, path) ||
				len(path) > 0 && anchor.Holds(list.leaves[jsn+1], path) ||
				anchor.Holds(leaf, append(bytes.Clone(path), make([]byte, 32)...)) ||
				anchor.Holds(leaf, append(bytes.Clone(path), 0)) ||
				len(path) > 0 && anchor.Holds(leaf, path[32:]) {
				t.Fatalf("another journal or path than that of %d of %d is taken", jsn, size)
			}
			for at := 0; at < len(path); at += 32 {
				path[at] ^= 1
				if anchor.Holds(leaf, path) {
					t.Fatalf("a damaged path of journal %d of %d is taken", jsn, size)
				}
				path[at] ^= 1
			}
		}
		if anchor.Holds(list.leaves[size], list.path(size, 1)) {
			t.Errorf("journal %d lies above the anchor", size)
		}
	}
	if longest != 8 {
		t.Errorf("the longest path has %d hashes", longest)
	}
}

func TestAnAnchorGrowsOnlyToTheRootThatWasProven(t *testing.T) {
	list := listOf(600)
	blocks, rest := list.cut(600)
	root := MerkleRoot(list.hashes)
	empty := NewTrustedAnchor(ClusterID{1}, anchoredLedger)
	anchor, err := empty.Grown(600, blocks, rest, root)
	if err != nil || anchor.Root() != root || anchor.Size() != 600 || anchor.Blocks() != 2 {
		t.Fatalf("%+v, %v", anchor, err)
	}
	for what, c := range map[string]struct {
		size         uint64
		blocks, rest []Digest
		root         Digest
	}{
		"blocks in another order": {600, []Digest{blocks[1], blocks[0]}, rest, root},
		"a block too few":         {600, blocks[1:], rest, root},
		"a block too many":        {600, append(blocks[:2:2], blocks[0]), rest, root},
		"a hash too few":          {600, blocks, rest[1:], root},
		"another size":            {599, blocks, rest, root},
		"a size beyond all":       {math.MaxUint64, blocks, rest, root},
		"another root":            {600, blocks, rest, list.hashes[0]},
	} {
		if grown, err := empty.Grown(c.size, c.blocks, c.rest, c.root); err == nil {
			t.Errorf("%s: %+v", what, grown)
		}
	}
	_, shorter := list.cut(599)
	if _, err := anchor.Grown(599, nil, shorter, MerkleRoot(list.hashes[:599])); err == nil {
		t.Error("an anchor shrinks")
	}
}

func TestAnAnchorIsKeptAsBytesAndAsText(t *testing.T) {
	list := listOf(600)
	for _, size := range []uint64{0, 1, 16, 256, 600} {
		blocks, rest := list.cut(size)
		empty := NewTrustedAnchor(ClusterID{1}, anchoredLedger)
		anchor, err := empty.Grown(size, blocks, rest, MerkleRoot(list.hashes[:size]))
		if err != nil {
			t.Fatal(err)
		}
		encoded := anchor.Encode()
		again, err := DecodeTrustedAnchor(encoded)
		if err != nil || !bytes.Equal(again.Encode(), encoded) || again.Root() != anchor.Root() {
			t.Errorf("%d journals: %+v, %v", size, again, err)
		}
		text, err := json.Marshal(map[string]*TrustedAnchor{"grain": anchor})
		if err != nil {
			t.Fatal(err)
		}
		var read map[string]*TrustedAnchor
		err = json.Unmarshal(text, &read)
		if err != nil || !bytes.Equal(read["grain"].Encode(), encoded) {
			t.Errorf("%d journals: %s, %v", size, text, err)
		}
		for length := range encoded {
			if _, err := DecodeTrustedAnchor(encoded[:length]); err == nil {
				t.Errorf("%d bytes of %d are taken", length, len(encoded))
			}
		}
		if _, err := DecodeTrustedAnchor(append(bytes.Clone(encoded), make([]byte, 32)...)); err == nil {
			t.Error("a hash too many is taken")
		}
		// A size that no memory has room for.
		copy(encoded[40:], bytes.Repeat([]byte{0xff}, 8))
		if _, err := DecodeTrustedAnchor(encoded); err == nil {
			t.Error("a size without its hashes is taken")
		}
	}
	for _, text := range []string{"!", "Y29wdHJhMDE", "Y29wdHJhMDE="} {
		if err := new(TrustedAnchor).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}
