package verify

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Kind is the kind of a header.
type Kind uint8

// The kinds with a body of their own (section 9). Others are read as far as the common part.
const (
	KindGenesis  Kind = 0
	KindCommit   Kind = 1
	KindRollback Kind = 2
	KindPrune    Kind = 3
	KindKey      Kind = 6
	KindAnchor   Kind = 7
)

func (k Kind) String() string {
	switch k {
	case KindGenesis:
		return "genesis"
	case KindCommit:
		return "commit"
	case KindRollback:
		return "rollback"
	case KindPrune:
		return "prune"
	case KindKey:
		return "key"
	case KindAnchor:
		return "anchor"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

const (
	nameBytesMax   = 256
	reasonBytesMax = 4096
	keyChangesMax  = 256
)

// Header is one entry of the root log.
type Header struct {
	Format        uint8
	Kind          Kind
	Cluster       ClusterID
	Sequence      uint64
	Epoch         uint64
	Version       uint64
	TimestampMS   uint64
	StateRoot     Digest
	StateLeaves   uint32
	ShardMap      Digest
	JournalRoot   Digest
	JournalLeaves uint32
	EpochsRoot    Digest
	EpochPairs    uint32
	AdminSequence uint64
	// KeyChanges counts the key changes so far, in headers of format 2.
	KeyChanges uint32
	Previous   Digest
	// Genesis, Rollback, Prune, KeyChange and Anchor are the bodies of headers of these kinds, and nil
	// else.
	Genesis   *Genesis
	Rollback  *Rollback
	Prune     *Prune
	KeyChange *KeyChange
	Anchor    *Anchor
	// Body has the bytes of the body.
	Body []byte
}

// Genesis is the body of the first header.
type Genesis struct {
	Prefix string
	Key    PublicKey
	Params Params
	Shards []Shard
}

// Rollback is the body of a rollback.
type Rollback struct {
	Target     Stamp
	HeadBefore Stamp
	Principal  string
	Reason     string
}

// Prune is the body of a prune. Boundary is the oldest version that is kept.
type Prune struct {
	Boundary  uint64
	Principal string
	Reason    string
}

// KeyChange is the body of a key change, with the sequence of its header.
type KeyChange struct {
	Sequence  uint64
	Number    uint32
	Old       PublicKey
	New       PublicKey
	Principal string
	Reason    string
}

// same compares the fields that tie a change to a log, without principal and reason.
func (k *KeyChange) same(other *KeyChange) bool {
	return k.Sequence == other.Sequence && k.Number == other.Number && k.Old == other.Old && k.New == other.New
}

// Stamp is the version that the header names.
func (h *Header) Stamp() Stamp { return Stamp{Epoch: h.Epoch, Version: h.Version} }

// EntryHash is the hash of a header's bytes as an entry of the root log.
func EntryHash(header []byte) Digest { return logEntryHash(header) }

// DecodeHeader reads a header, and refuses one that breaks a rule of section 9 that concerns it
// alone.
func DecodeHeader(encoded []byte) (*Header, error) {
	if len(encoded) > headerBytesMax {
		return nil, errors.New("a header is above 65,534 bytes")
	}
	r := reader{rest: encoded}
	h := &Header{
		Format: r.u8(), Kind: Kind(r.u8()), Cluster: r.id(), Sequence: r.u64(), Epoch: r.u64(), Version: r.u64(),
		TimestampMS: r.u64(), StateRoot: r.digest(), StateLeaves: r.u32(), ShardMap: r.digest(),
		JournalRoot: r.digest(), JournalLeaves: r.u32(), EpochsRoot: r.digest(), EpochPairs: r.u32(),
		AdminSequence: r.u64(),
	}
	if h.Format == format2 {
		h.KeyChanges = r.u32()
	}
	h.Previous = r.digest()
	h.Body = r.str16(0, headerBytesMax, "a body")
	if err := r.end(); err != nil {
		return nil, err
	}
	if err := h.checkCommon(); err != nil {
		return nil, err
	}
	if err := h.decodeBody(); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Header) checkCommon() error {
	switch {
	case h.Format != format1 && h.Format != format2:
		return errors.New("a header of another format")
	case h.StateLeaves == 0 || h.EpochPairs == 0:
		return errors.New("a header without state leaves or epoch pairs")
	case h.Kind != KindCommit && (h.JournalLeaves != 0 || h.JournalRoot != emptyRoot):
		return errors.New("a header that is no commit has a journal")
	case h.KeyChanges > keyChangesMax:
		return errors.New("a header counts more than 256 key changes")
	case (h.Kind == KindGenesis) != (h.Sequence == 0):
		return errors.New("genesis alone is the first header")
	}
	return nil
}

func (h *Header) decodeBody() error {
	r := reader{rest: h.Body}
	switch h.Kind {
	case KindGenesis:
		return h.decodeGenesis(&r)
	case KindCommit:
		if len(h.Body) > 0 || h.Version == 0 {
			return errors.New("a commit has a body, or version 0")
		}
	case KindRollback:
		return h.decodeRollback(&r)
	case KindPrune:
		h.Prune = &Prune{Boundary: r.u64(), Principal: text(&r, nameBytesMax), Reason: text(&r, reasonBytesMax)}
		if err := r.end(); err != nil {
			return err
		}
		if h.Prune.Boundary > h.Version || h.AdminSequence == 0 {
			return errors.New("a prune goes above the head, or is not counted")
		}
	case KindKey:
		return h.decodeKeyChange(&r)
	case KindAnchor:
		return h.decodeAnchor(&r)
	}
	return nil
}

// text reads a name or a reason.
func text(r *reader, most uint64) string {
	b := r.str16(0, most, "a text")
	if !utf8.Valid(b) {
		r.fail("a text is no UTF-8")
	}
	return string(b)
}

func (h *Header) decodeGenesis(r *reader) error {
	genesis := &Genesis{Prefix: text(r, nameBytesMax)}
	key := r.str16(32, 32, "a key")
	genesis.Params = decodeParams(r)
	encoded := r.str16(0, headerBytesMax, "a shard map")
	if err := r.end(); err != nil {
		return err
	}
	var err error
	if genesis.Key, err = publicKey(key); err != nil {
		return err
	}
	if genesis.Shards, err = decodeShardMap(encoded); err != nil {
		return err
	}
	version3 := genesis.Params.ProtocolVersion == protocol3
	pairs := []Digest{epochLeafHash(Pair{})}
	switch {
	case version3 != (h.Format == format2):
		return errors.New("the format of genesis is not that of its parameters")
	case h.Epoch != 0 || h.Version != 0 || h.AdminSequence != 0 || h.KeyChanges != 0 || h.Previous != Digest{}:
		return errors.New("genesis is not the beginning")
	case hashOf(tagShardMap, encoded) != h.ShardMap || uint64(h.StateLeaves) != uint64(len(genesis.Shards)):
		return errors.New("the shard map of genesis is not that of its header")
	case h.StateRoot != emptyState(genesis.Shards):
		return errors.New("the state of genesis is not that of empty shards")
	case h.EpochPairs != 1 || h.EpochsRoot != MerkleRoot(pairs):
		return errors.New("the epochs of genesis are not the pair (0, 0)")
	}
	if version3 {
		for _, shard := range genesis.Shards {
			if shard.High != nil && shard.High[0] == 0 && len(shard.High) > 2 {
				return errors.New("a bound among the reserved keys has more than 2 bytes")
			}
		}
	}
	h.Genesis = genesis
	return nil
}

func (h *Header) decodeRollback(r *reader) error {
	body := &Rollback{
		Target: r.stamp(), HeadBefore: r.stamp(), Principal: text(r, nameBytesMax), Reason: text(r, reasonBytesMax),
	}
	if err := r.end(); err != nil {
		return err
	}
	switch {
	case h.AdminSequence == 0:
		return errors.New("a rollback is not counted")
	case h.Epoch == 0 || h.Epoch-1 != body.HeadBefore.Epoch:
		return errors.New("a rollback begins another epoch than the next one")
	case h.Version != body.Target.Version:
		return errors.New("a rollback is to another version than its target")
	case body.Target.Epoch > body.HeadBefore.Epoch || body.Target.Version > body.HeadBefore.Version:
		return errors.New("the target of a rollback is above the head before")
	}
	h.Rollback = body
	return nil
}

func (h *Header) decodeKeyChange(r *reader) error {
	signed := readKeyChange(r)
	signed.Sequence = h.Sequence
	if err := r.end(); err != nil {
		return err
	}
	if signed.Number > keyChangesMax {
		return errors.New("a key change has a number from 1 to 256")
	}
	if h.Format == format2 && h.KeyChanges != signed.Number {
		return errors.New("a key change does not count itself")
	}
	if err := signed.check(h.Cluster); err != nil {
		return err
	}
	h.KeyChange = &signed.KeyChange
	return nil
}

// signedChange is the body of a key change with its two signatures.
type signedChange struct {
	KeyChange
	byOld, byNew []byte
}

// readKeyChange decodes a body. The caller checks the reader, and then the change.
func readKeyChange(r *reader) (change signedChange) {
	change.Number, change.Old, change.New = r.u32(), PublicKey(r.digest()), PublicKey(r.digest())
	change.byOld, change.byNew = r.take(64), r.take(64)
	change.Principal, change.Reason = text(r, nameBytesMax), text(r, reasonBytesMax)
	return change
}

// check applies the rules of section 9 that concern a key change alone.
func (c *signedChange) check(cluster ClusterID) error {
	if c.Number == 0 || c.Old == c.New {
		return errors.New("a key change of number 0, or to the same key")
	}
	message := writer{}
	message.u8(tagKeyChange)
	message.bytes([]byte("coppice-key-change"))
	message.bytes(cluster[:])
	message.u32(c.Number)
	message.bytes(c.Old[:])
	message.bytes(c.New[:])
	if !verifySignature(c.Old, message, c.byOld) || !verifySignature(c.New, message, c.byNew) {
		return errors.New("a key change is not signed by both keys")
	}
	return nil
}

// Follows checks the rules that tie a header to the one before, whose bytes have this hash.
func (h *Header) Follows(before *Header, beforeHash Digest) error {
	return h.checkAfter(before, beforeHash)
}

// checkAfter checks the rules that tie a header to the one before (audit rule 2).
func (h *Header) checkAfter(before *Header, beforeHash Digest) error {
	counted := h.Kind == KindRollback || h.Kind == KindPrune
	admin := before.AdminSequence
	if counted {
		admin++
	}
	changes := before.KeyChanges
	if h.Kind == KindKey && h.Format == format2 {
		changes++
	}
	switch {
	case h.Format != before.Format || h.Cluster != before.Cluster:
		return errors.New("the format or the cluster changes")
	case h.Sequence != before.Sequence+1 || h.Previous != beforeHash:
		return errors.New("the header does not follow the one before")
	case h.TimestampMS < before.TimestampMS:
		return errors.New("the time is before that of the entry before")
	case h.AdminSequence != admin || h.KeyChanges != changes:
		return errors.New("rollbacks, prunes or key changes are miscounted")
	case h.ShardMap != before.ShardMap || h.StateLeaves != before.StateLeaves:
		return errors.New("the shard map changes")
	}
	sameEpochs := h.EpochsRoot == before.EpochsRoot && h.EpochPairs == before.EpochPairs
	switch h.Kind {
	case KindCommit:
		if h.Epoch != before.Epoch || h.Version != before.Version+1 {
			return errors.New("a commit is not the next version")
		}
	case KindRollback:
		if h.Epoch != before.Epoch+1 || h.Rollback.HeadBefore != before.Stamp() {
			return errors.New("a rollback does not begin at the head")
		}
	default:
		if h.Stamp() != before.Stamp() || h.StateRoot != before.StateRoot || !sameEpochs {
			return errors.New("a header that is neither commit nor rollback moves the head")
		}
	}
	return nil
}

// origin is the name of the log that a genesis header begins.
func (h *Header) origin() string { return h.Genesis.Prefix + "/" + h.Cluster.String() }

// checkFirst compares a genesis header with what a verifier knows of the ledger.
func (h *Header) checkFirst(first PublicKey, origin string) error {
	if h.Genesis.Key != first {
		return errors.New("genesis names another first key")
	}
	if h.origin() != origin {
		return errors.New("genesis names another origin")
	}
	return nil
}

// equalBytes compares optional bounds. Nil is an absent bound.
func equalBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
