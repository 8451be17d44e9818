package verify

import (
	"bytes"
	"encoding/base64"
	"errors"
	"slices"
)

const (
	// BlockJournals is the number of journals below a root of a trusted anchor.
	BlockJournals = 256
	// trustedMagic begins the bytes of a trusted anchor.
	trustedMagic = "coptra01"
)

// TrustedAnchor has the hashes of a ledger's list, as their holder has verified them (section 18,
// Trusted anchors). A journal below it is proven by at most 8 hashes, without a checkpoint. Encode
// and DecodeTrustedAnchor keep it, and it is text for JSON.
type TrustedAnchor struct {
	Cluster ClusterID
	Ledger  LedgerID
	// The size settles how many blocks there are, and how many hashes behind them.
	size uint64
	// blocks are roots of 256 journals each.
	blocks []Digest
	// rest are roots of 16 journals each, then hashes of leaves.
	rest []Digest
}

var errTrusted = errors.New("the hashes of a trusted anchor are not those of its list")

// NewTrustedAnchor is an anchor in the empty list.
func NewTrustedAnchor(cluster ClusterID, ledger LedgerID) *TrustedAnchor {
	return &TrustedAnchor{Cluster: cluster, Ledger: ledger}
}

// Size is the number of journals below the anchor.
func (a *TrustedAnchor) Size() uint64 { return a.size }

// Blocks is the number of full blocks of 256 journals.
func (a *TrustedAnchor) Blocks() uint64 { return uint64(len(a.blocks)) }

// restOf is the number of hashes behind the last full block of a list.
func restOf(size uint64) uint64 {
	behind := size % BlockJournals
	return behind/tileHashes + behind%tileHashes
}

// Root is the root of the list.
func (a *TrustedAnchor) Root() Digest {
	tiles := a.size % BlockJournals / tileHashes
	edge := ledgerHead{edge: [][]Digest{a.rest[tiles:], a.rest[:tiles], a.blocks}}
	return edge.root()
}

// Grown is the anchor at a larger size: with these blocks behind its own, and these hashes behind
// the last block. The caller has verified that the list of that size has the root, and continues
// the list of the anchor. It fails if the hashes do not give the root.
func (a *TrustedAnchor) Grown(
	size uint64, blocks, rest []Digest, root Digest) (*TrustedAnchor, error,
) {
	grown := &TrustedAnchor{
		Cluster: a.Cluster, Ledger: a.Ledger, size: size,
		blocks: slices.Concat(a.blocks, blocks), rest: slices.Clone(rest),
	}
	if size < a.size || grown.Blocks() != size/BlockJournals || uint64(len(rest)) != restOf(size) ||
		grown.Root() != root {
		return nil, errTrusted
	}
	return grown, nil
}

// Holds tells whether the list has a leaf, by the path to the anchor's hash above it: up to 8
// hashes, side by side.
func (a *TrustedAnchor) Holds(leaf *Leaf, path []byte) bool {
	if leaf.Ledger != a.Ledger || leaf.JSN >= a.size {
		return false
	}
	above, width := a.above(leaf.JSN)
	return len(path)%len(Digest{}) == 0 &&
		checkInclusion(leaf.Hash(), leaf.JSN%width, width, hashList(path), above) == nil
}

// above is the hash of the anchor to which a journal's path leads, and the number of journals below
// that hash. The journal lies below the anchor.
func (a *TrustedAnchor) above(jsn uint64) (hash Digest, width uint64) {
	if block := jsn / BlockJournals; block < a.Blocks() {
		return a.blocks[block], BlockJournals
	}
	behind, tiles := jsn%BlockJournals, a.size%BlockJournals/tileHashes
	if tile := behind / tileHashes; tile < tiles {
		return a.rest[tile], tileHashes
	}
	return a.rest[tiles+behind%tileHashes], 1
}

// Encode gives the bytes of the anchor, as `coppice ledger anchor` keeps them.
func (a *TrustedAnchor) Encode() []byte {
	w := writer{}
	w.bytes([]byte(trustedMagic))
	w.bytes(a.Cluster[:])
	w.bytes(a.Ledger[:])
	w.u64(a.size)
	for _, hash := range slices.Concat(a.blocks, a.rest) {
		w.digest(hash)
	}
	return w
}

// DecodeTrustedAnchor reads the bytes of an anchor. They are their holder's own: nothing proves
// them again.
func DecodeTrustedAnchor(encoded []byte) (*TrustedAnchor, error) {
	r := &reader{rest: encoded}
	if !bytes.Equal(r.take(uint64(len(trustedMagic))), []byte(trustedMagic)) {
		r.fail("a trusted anchor of another format")
	}
	a := &TrustedAnchor{Cluster: ClusterID(r.id()), Ledger: LedgerID(r.id()), size: r.u64()}
	hashes := uint64(len(r.rest) / len(Digest{}))
	blocks := a.size / BlockJournals
	// The bytes settle how much room is taken.
	if r.err == nil && (hashes < blocks || hashes-blocks != restOf(a.size)) {
		r.fail("a trusted anchor with another number of hashes than its size has")
		hashes = 0
	}
	all := make([]Digest, 0, hashes)
	for r.err == nil && uint64(len(all)) < hashes {
		all = append(all, r.digest())
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	a.blocks, a.rest = all[:blocks:blocks], all[blocks:]
	return a, nil
}

// MarshalText gives the bytes of the anchor in base64.
func (a *TrustedAnchor) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, a.Encode()), nil
}

// UnmarshalText reads what MarshalText gave.
func (a *TrustedAnchor) UnmarshalText(text []byte) error {
	encoded, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return err
	}
	read, err := DecodeTrustedAnchor(encoded)
	if err == nil {
		*a = *read
	}
	return err
}
