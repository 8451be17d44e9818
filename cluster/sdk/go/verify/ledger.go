package verify

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
)

// LedgerID names a ledger of members (section 18).
type LedgerID [16]byte

func (l LedgerID) String() string { return hex.EncodeToString(l[:]) }

// MemberID names a member, or an agent of one.
type MemberID [16]byte

func (m MemberID) String() string { return hex.EncodeToString(m[:]) }

// Kinds of journals of a ledger.
const (
	JournalData     = 0
	JournalFounding = 1
	JournalMembers  = 2
	JournalOrder    = 3
)

// Limits of section 18.
const (
	cluesMax         = 16
	clueBytesMax     = 256
	itemsMax         = 1024
	conditionsMax    = 64
	lanesEnd         = 16
	envelopeBytesMin = 129
	nameLettersMax   = 64
	grantsMax        = 256
	authoritiesMax   = 8
	certificateMax   = 8192
	memberKeysMax    = 64
)

// Roles are what a member may do, as bits.
type Roles uint8

// The roles of a member.
const (
	RoleOwner     Roles = 1
	RoleRegulator Roles = 2
	RoleWriter    Roles = 4
	RoleReader    Roles = 8
	RoleVerifier  Roles = 16

	rolesAll = RoleOwner | RoleRegulator | RoleWriter | RoleReader | RoleVerifier
)

// FoundedID names the ledger that a request founds, by the bytes that its founder signed.
func FoundedID(cluster ClusterID, signed []byte, spread bool) (id LedgerID) {
	request := sha(signed)
	d := hashOf(tagLedger, append(cluster[:], request[:]...))
	copy(id[:], d[:])
	id[15] &^= 1
	if spread {
		id[15] |= 1
	}
	return id
}

// MemberIDOf gives the id of the member or agent with a name.
func MemberIDOf(name string) (id MemberID) {
	w := writer{}
	w.str16([]byte(name))
	d := hashOf(tagMember, w)
	copy(id[:], d[:])
	return id
}

// ClueHash names a clue of a ledger.
func ClueHash(ledger LedgerID, clue []byte) Digest {
	w := writer(ledger[:])
	w.str16(clue)
	return hashOf(tagClue, w)
}

func validLedgerName(name string) bool {
	if len(name) == 0 || len(name) > nameLettersMax {
		return false
	}
	for _, b := range []byte(name) {
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.') {
			return false
		}
	}
	return true
}

// key makes a reserved key: `00 s L` and what follows, placed by a unit if the ledger is spread.
func (l LedgerID) key(unit []byte, parts ...[]byte) []byte {
	if l[15]&1 == 0 {
		unit = nil
	}
	place := hashOf(tagPlace, append(slices.Clone(l[:]), unit...))
	r := reader{rest: place[:8]}
	key := append([]byte{0, byte(1 + r.u64()%255)}, l[:]...)
	for _, part := range parts {
		key = append(key, part...)
	}
	return key
}

// LedgerNameKey is the key of the record that names a ledger by its id.
func LedgerNameKey(name string) []byte { return append([]byte{0, 0}, name...) }

// HeadKey is the key of the record of a ledger's size and edge.
func (l LedgerID) HeadKey() []byte { return l.key(nil, []byte{0}) }

// FoundingKey is the key of the record with the payload of journal 0.
func (l LedgerID) FoundingKey() []byte { return l.key(nil, []byte{8}) }

// LeafKey is the reserved key of the leaf of a journal.
func (l LedgerID) LeafKey(jsn uint64) []byte {
	return l.key(be64(jsn / 256)[:], []byte{1}, be64(jsn))
}

func (l LedgerID) envelopeKey(jsn uint64) []byte { return l.key(be64(jsn/256), []byte{2}, be64(jsn)) }

func (l LedgerID) tileKey(level uint8, index, firstJSN uint64) []byte {
	return l.key(be64(firstJSN/256), []byte{4, level}, be64(index))
}

func (l LedgerID) clueKey(clue Digest) []byte { return l.key(clue[:], []byte{5}, clue[:]) }

func (l LedgerID) cellKey(clue Digest, ordinal uint64) []byte {
	return l.key(clue[:], []byte{5}, clue[:], be64(^ordinal))
}

// MemberKey is the key of the record of a member or an agent.
func (l LedgerID) MemberKey(member MemberID) []byte { return l.key(nil, []byte{6}, member[:]) }

func (l LedgerID) publicKeyKey(key PublicKey) []byte { return l.key(nil, []byte{9}, key[:]) }

// Envelope is what a journal says, with the nonce that hides it.
type Envelope struct {
	Nonce   [32]byte
	Clues   [][]byte
	Payload []byte
}

// DecodeEnvelope reads an envelope.
func DecodeEnvelope(encoded []byte) (*Envelope, error) {
	r := &reader{rest: encoded}
	e := &Envelope{Nonce: r.digest()}
	clues := r.count16(3)
	if clues > cluesMax {
		r.fail("an envelope has more than 16 clues")
		clues = 0
	}
	for range clues {
		clue := r.str16(1, clueBytesMax, "a clue")
		for _, other := range e.Clues {
			if bytes.Equal(other, clue) {
				r.fail("an envelope has a clue twice")
			}
		}
		e.Clues = append(e.Clues, clue)
	}
	e.Payload = r.str32(fileBytesMax, "a payload")
	if r.err != nil {
		return nil, r.err
	}
	if fill := r.rest; len(encoded) < envelopeBytesMin || len(fill) > 0 && len(encoded) != envelopeBytesMin ||
		len(bytes.Trim(fill, "\x00")) > 0 {
		return nil, errors.New("an envelope is filled up with zeros to 129 bytes, and no further")
	}
	return e, nil
}

// Encode gives the canonical bytes. It refuses clues that no journal has.
func (e *Envelope) Encode() ([]byte, error) {
	if len(e.Clues) > cluesMax || len(e.Payload) > fileBytesMax {
		return nil, errors.New("an envelope has more than 16 clues, or more than 64 MiB")
	}
	w := make(writer, 0, max(envelopeBytesMin, len(e.Payload)+cluesMax))
	w.bytes(e.Nonce[:])
	w.u16(uint16(len(e.Clues)))
	for _, clue := range e.Clues {
		if len(clue) > clueBytesMax {
			return nil, errors.New("a clue has more than 256 bytes")
		}
		w.str16(clue)
	}
	w.str32(e.Payload)
	if fill := envelopeBytesMin - len(w); fill > 0 {
		w.bytes(make([]byte, fill))
	}
	// The decoder has the other rules.
	_, err := DecodeEnvelope(w)
	return w, err
}

// LeafClue is a clue of a journal, with the journal's number among those with the clue.
type LeafClue struct {
	Clue    Digest
	Ordinal uint64
}

// Leaf is the record of one journal of a ledger.
type Leaf struct {
	Kind          uint8
	Ledger        LedgerID
	JSN           uint64
	Stamp         Stamp
	Member        MemberID
	Agent         *MemberID
	Key           PublicKey
	Lane          uint8
	Number        uint64
	Index         uint32
	Of            uint32
	Request       Digest
	Signature     [64]byte
	Commitment    Digest
	EnvelopeBytes uint32
	Clues         []LeafClue
}

// LeafHash is the hash of a journal in the list of its ledger, by the bytes of its leaf.
func LeafHash(encoded []byte) Digest { return hashOf(tagLeaf, encoded) }

// DecodeLeaf reads a leaf, and refuses one that no request makes.
func DecodeLeaf(encoded []byte) (*Leaf, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a leaf of another format")
	}
	l := &Leaf{Kind: r.u8(), Ledger: LedgerID(r.id()), JSN: r.u64(), Stamp: r.stamp(), Member: MemberID(r.id())}
	l.Agent = optMember(r)
	l.Key, l.Lane, l.Number, l.Index, l.Of = PublicKey(r.digest()), r.u8(), r.u64(), r.u32(), r.u32()
	l.Request = r.digest()
	copy(l.Signature[:], r.take(64))
	l.Commitment, l.EnvelopeBytes = r.digest(), r.u32()
	l.Clues = make([]LeafClue, r.count16(40))
	for i := range l.Clues {
		l.Clues[i] = LeafClue{Clue: r.digest(), Ordinal: r.u64()}
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return l, l.check()
}

func optMember(r *reader) *MemberID {
	if !r.flag() {
		return nil
	}
	id := MemberID(r.id())
	return &id
}

func (l *Leaf) check() error {
	founding := l.Kind == JournalFounding
	switch {
	case l.Lane >= lanesEnd || l.Number == 0 || l.Of == 0 || l.Of > itemsMax || l.Index >= l.Of:
		return errors.New("a leaf has a lane, a number or an index that no request has")
	case l.Kind > JournalOrder || l.EnvelopeBytes < envelopeBytesMin || len(l.Clues) > cluesMax:
		return errors.New("a leaf has a kind, an envelope or clues that no journal has")
	case founding != (l.JSN == 0) || founding && len(l.Clues) > 0:
		return errors.New("the founding alone is journal 0, and has no clues")
	case l.Kind != JournalData && (l.Of != 1 || l.Agent != nil):
		return errors.New("a journal that is not data stands alone, and is no agent's")
	}
	for i, clue := range l.Clues {
		if clue.Ordinal == 0 {
			return errors.New("ordinals begin with 1")
		}
		for _, other := range l.Clues[:i] {
			if other.Clue == clue.Clue {
				return errors.New("a leaf has a clue twice")
			}
		}
	}
	return nil
}

func (l *Leaf) encode() []byte {
	w := writer{}
	w.u8(1)
	w.u8(l.Kind)
	w.bytes(l.Ledger[:])
	w.u64(l.JSN)
	w.stamp(l.Stamp)
	w.bytes(l.Member[:])
	w.optMember(l.Agent)
	w.bytes(l.Key[:])
	w.u8(l.Lane)
	w.u64(l.Number)
	w.u32(l.Index)
	w.u32(l.Of)
	w.digest(l.Request)
	w.bytes(l.Signature[:])
	w.digest(l.Commitment)
	w.u32(l.EnvelopeBytes)
	w.u16(uint16(len(l.Clues)))
	for _, clue := range l.Clues {
		w.digest(clue.Clue)
		w.u64(clue.Ordinal)
	}
	return w
}

func (w *writer) optMember(id *MemberID) {
	w.flag(id != nil)
	if id != nil {
		w.bytes(id[:])
	}
}

// itemHash is the hash of an item of a request.
func itemHash(kind uint8, commitment Digest, envelopeBytes uint32, clues []Digest) Digest {
	w := writer{}
	w.u8(kind)
	w.digest(commitment)
	w.u32(envelopeBytes)
	w.u16(uint16(len(clues)))
	for _, clue := range clues {
		w.digest(clue)
	}
	return hashOf(tagItem, w)
}

func (l *Leaf) clueHashes() []Digest {
	hashes := make([]Digest, len(l.Clues))
	for i, clue := range l.Clues {
		hashes[i] = clue.Clue
	}
	return hashes
}

// Condition is what a request demands of a ledger: its size, or the count of a clue.
type Condition struct {
	OfClue bool
	Clue   Digest
	Number uint64
}

// SignedRequest is what a member signs.
type SignedRequest struct {
	Cluster ClusterID
	// Ledger is zero in a request that founds one.
	Ledger LedgerID
	Member MemberID
	// Agent is the signer, if that is not the member.
	Agent  *MemberID
	Lane   uint8
	Number uint64
	Epoch  uint64
	// SeenSize and SeenRoot are of a root log that the author has seen.
	SeenSize   uint64
	SeenRoot   Digest
	Conditions []Condition
	Items      uint32
	ItemsRoot  Digest
}

var signedMagic = []byte("\x02coppice-journal")

// DecodeSigned reads the bytes that a member signed.
func DecodeSigned(encoded []byte) (*SignedRequest, error) {
	r := &reader{rest: encoded}
	if !bytes.Equal(r.take(uint64(len(signedMagic))), signedMagic) {
		r.fail("not a request of a member")
	}
	s := &SignedRequest{Cluster: r.id(), Ledger: LedgerID(r.id()), Member: MemberID(r.id()), Agent: optMember(r)}
	s.Lane, s.Number, s.Epoch, s.SeenSize, s.SeenRoot = r.u8(), r.u64(), r.u64(), r.u64(), r.digest()
	conditions := r.count16(9)
	if conditions > conditionsMax {
		r.fail("a request has more than 64 conditions")
		conditions = 0
	}
	for range conditions {
		c := Condition{OfClue: r.flag()}
		if c.OfClue {
			c.Clue = r.digest()
		}
		c.Number = r.u64()
		s.Conditions = append(s.Conditions, c)
	}
	s.Items, s.ItemsRoot = r.u32(), r.digest()
	if err := r.end(); err != nil {
		return nil, err
	}
	if s.Lane >= lanesEnd || s.Number == 0 || s.SeenSize == 0 || s.Items == 0 || s.Items > itemsMax {
		return nil, errors.New("a lane, a number, a seen size or a number of items that no request has")
	}
	return s, nil
}

// Over gives the bytes to sign for a request of these items. It sets Items and ItemsRoot, and
// refuses what no request may have.
func (s *SignedRequest) Over(items []Item) ([]byte, error) {
	if len(items) == 0 || len(items) > itemsMax || len(s.Conditions) > conditionsMax {
		return nil, errors.New("a request has 1 to 1,024 items, and at most 64 conditions")
	}
	hashes := make([]Digest, len(items))
	for i, item := range items {
		envelope, err := DecodeEnvelope(item.Envelope)
		if err != nil {
			return nil, err
		}
		clues := make([]Digest, len(envelope.Clues))
		for at, clue := range envelope.Clues {
			clues[at] = ClueHash(s.Ledger, clue)
		}
		hashes[i] = itemHash(item.Kind, sha(item.Envelope), uint32(len(item.Envelope)), clues)
	}
	s.Items, s.ItemsRoot = uint32(len(items)), MerkleRoot(hashes)
	encoded := s.encode()
	_, err := DecodeSigned(encoded)
	return encoded, err
}

func (s *SignedRequest) encode() []byte {
	w := writer{}
	w.bytes(signedMagic)
	w.bytes(s.Cluster[:])
	w.bytes(s.Ledger[:])
	w.bytes(s.Member[:])
	w.optMember(s.Agent)
	w.u8(s.Lane)
	w.u64(s.Number)
	w.u64(s.Epoch)
	w.u64(s.SeenSize)
	w.digest(s.SeenRoot)
	w.u16(uint16(len(s.Conditions)))
	for _, c := range s.Conditions {
		w.flag(c.OfClue)
		if c.OfClue {
			w.digest(c.Clue)
		}
		w.u64(c.Number)
	}
	w.u32(s.Items)
	w.digest(s.ItemsRoot)
	return w
}
