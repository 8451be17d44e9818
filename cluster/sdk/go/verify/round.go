package verify

import (
	"bytes"
	"errors"
	"maps"
	"slices"
)

// Item is one journal that a request appends.
type Item struct {
	Kind     uint8
	Envelope []byte
}

// Request is what a member sends to append journals to a ledger.
type Request struct {
	Signed    []byte
	Signature [64]byte
	Items     []Item
}

// Refusal is the word of a rule of section 18 that a request breaks.
type Refusal string

func (r Refusal) Error() string { return "verify: the request is refused: " + string(r) }

// The words of refusals.
const (
	RefusedForm      Refusal = "form"
	RefusedEpoch     Refusal = "epoch"
	RefusedLedger    Refusal = "ledger"
	RefusedName      Refusal = "name"
	RefusedMember    Refusal = "member"
	RefusedSignature Refusal = "signature"
	RefusedRole      Refusal = "role"
	RefusedLane      Refusal = "lane"
	RefusedSize      Refusal = "size"
	RefusedCount     Refusal = "count"
	RefusedChange    Refusal = "change"
)

// Record of a ledger, as an append or a head puts it.
type PutRecord struct {
	Key   []byte
	Value []byte
}

// Appended is what follows from an applied request.
type Appended struct {
	Ledger     LedgerID
	FirstJSN   uint64
	LeavesRoot Digest
	Records    []PutRecord
}

// ClosedHead is what follows for a ledger from all applied requests of a version.
type ClosedHead struct {
	Ledger     LedgerID
	SizeBefore uint64
	Size       uint64
	Root       Digest
	Records    []PutRecord
}

// Round judges the requests of one version in turn, and applies those that keep the rules.
type Round struct {
	cluster ClusterID
	stamp   Stamp
	// ground gives the records of the version before, or nil.
	ground func(key []byte) []byte
	// seen tells whether the root log had a root at a size. Nil believes each one.
	seen    func(size uint64, root Digest) bool
	puts    map[string][]byte
	ledgers map[LedgerID]*roundLedger
}

// NewRound begins a version. The functions give the records of the version before (nil for none),
// and whether the root log had a root at a size; without the latter, that is not checked.
func NewRound(cluster ClusterID, stamp Stamp, ground func(key []byte) []byte, seen func(uint64, Digest) bool) *Round {
	return &Round{
		cluster: cluster, stamp: stamp, ground: ground, seen: seen,
		puts: make(map[string][]byte), ledgers: make(map[LedgerID]*roundLedger),
	}
}

// roundLedger is a ledger within a round.
type roundLedger struct {
	head    *ledgerHead
	before  uint64
	touched bool
	tiles   []PutRecord
	members map[MemberID]*memberRecord
	changed map[MemberID]bool
}

// ledgerHead has the size of a ledger and the edge of its list: by levels, the hashes in no full tile.
type ledgerHead struct {
	purged uint64
	size   uint64
	edge   [][]Digest
}

const tileHashes = 16

func decodeHead(encoded []byte) (*ledgerHead, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a head of another format")
	}
	h := &ledgerHead{purged: r.u64(), size: r.u64()}
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
	w.u64(h.purged)
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

func (r *Round) get(key []byte) []byte {
	if value, put := r.puts[string(key)]; put {
		return value
	}
	return r.ground(key)
}

// ledger gives the state of a ledger, or nil if there is none.
func (r *Round) ledger(id LedgerID) (*roundLedger, error) {
	if ledger := r.ledgers[id]; ledger != nil {
		return ledger, nil
	}
	encoded := r.get(id.headKey())
	if encoded == nil {
		return nil, nil
	}
	head, err := decodeHead(encoded)
	if err != nil {
		return nil, err
	}
	r.ledgers[id] = newRoundLedger(head)
	return r.ledgers[id], nil
}

func newRoundLedger(head *ledgerHead) *roundLedger {
	return &roundLedger{
		head: head, before: head.size,
		members: make(map[MemberID]*memberRecord), changed: make(map[MemberID]bool),
	}
}

// member gives the record of a member or an agent, or nil.
func (r *Round) member(id LedgerID, ledger *roundLedger, member MemberID) (*memberRecord, error) {
	if known := ledger.members[member]; known != nil {
		return known, nil
	}
	encoded := r.get(id.memberKey(member))
	if encoded == nil {
		return nil, nil
	}
	record, err := decodeMember(encoded)
	if err == nil {
		ledger.members[member] = record
	}
	return record, err
}

// parsedRequest is a request whose form is right.
type parsedRequest struct {
	*signedRequest
	bytes     []byte
	hash      Digest
	signature [64]byte
	id        LedgerID
	items     []parsedItem
	founding  *founding
	changes   []memberChange
}

type parsedItem struct {
	kind       uint8
	encoded    []byte
	envelope   *Envelope
	commitment Digest
	clues      []Digest
}

var errForm = errors.New("the form of the request")

func (r *Round) parse(request Request) (*parsedRequest, error) {
	signed, err := decodeSigned(request.Signed)
	if err != nil {
		return nil, err
	}
	if signed.cluster != r.cluster || uint64(signed.items) != uint64(len(request.Items)) {
		return nil, errForm
	}
	p := &parsedRequest{
		signedRequest: signed, bytes: request.Signed, hash: sha(request.Signed), signature: request.Signature,
		id: signed.ledger,
	}
	kind := request.Items[0].Kind
	if kind > JournalMembers || kind != JournalData && (len(request.Items) > 1 || signed.agent != nil) ||
		(kind == JournalFounding) != (signed.ledger == LedgerID{}) {
		return nil, errForm
	}
	envelopes := make([]*Envelope, len(request.Items))
	for i, item := range request.Items {
		if item.Kind != kind {
			return nil, errForm
		}
		if envelopes[i], err = DecodeEnvelope(item.Envelope); err != nil {
			return nil, err
		}
	}
	switch kind {
	case JournalFounding:
		if p.founding, err = decodeFounding(envelopes[0].Payload); err == nil && len(envelopes[0].Clues) > 0 {
			err = errForm
		}
		if err == nil {
			p.id = ledgerID(r.cluster, request.Signed, p.founding.spread)
		}
	case JournalMembers:
		p.changes, err = decodeChangesOfMembers(envelopes[0].Payload)
	}
	if err != nil {
		return nil, err
	}
	return p, p.checkItems(request.Items, envelopes)
}

// checkItems compares the items with what was signed. Clues are those of the request's own ledger; a
// founding has none.
func (p *parsedRequest) checkItems(items []Item, envelopes []*Envelope) error {
	hashes := make([]Digest, len(items))
	for i, item := range items {
		parsed := parsedItem{
			kind: item.Kind, encoded: item.Envelope, envelope: envelopes[i], commitment: sha(item.Envelope),
		}
		for _, clue := range envelopes[i].Clues {
			parsed.clues = append(parsed.clues, ClueHash(p.id, clue))
		}
		p.items = append(p.items, parsed)
		hashes[i] = itemHash(item.Kind, parsed.commitment, uint32(len(item.Envelope)), parsed.clues)
	}
	if MerkleRoot(hashes) != p.itemsRoot {
		return errForm
	}
	return nil
}

// Append judges a request, and applies it if it keeps the rules. An error that is no Refusal means
// that a record of the version before does not decode.
func (r *Round) Append(request Request) (*Appended, error) {
	p, err := r.parse(request)
	if err != nil {
		return nil, RefusedForm
	}
	if p.epoch != r.stamp.Epoch || r.seen != nil && !r.seen(p.seenSize, p.seenRoot) {
		return nil, RefusedEpoch
	}
	if p.founding != nil {
		return r.found(p)
	}
	ledger, err := r.ledger(p.id)
	if err != nil {
		return nil, err
	}
	if ledger == nil {
		return nil, RefusedLedger
	}
	key, err := r.judge(p, ledger)
	if err != nil {
		return nil, err
	}
	next := ledger.head.size + uint64(len(p.items))
	changed, newKeys, err := r.change(p, ledger, next)
	if err != nil {
		return nil, err
	}
	for id, member := range changed {
		ledger.members[id], ledger.changed[id] = member, true
	}
	return r.applied(p, ledger, key, newKeys)
}

// judge takes the rules 2 to 6 of section 18, and gives the key that signed.
func (r *Round) judge(p *parsedRequest, ledger *roundLedger) (PublicKey, error) {
	author, err := r.member(p.id, ledger, p.member)
	if err != nil {
		return PublicKey{}, err
	}
	if author == nil || author.agent != nil {
		return PublicKey{}, RefusedMember
	}
	signer := author
	size := ledger.head.size
	if p.agent != nil {
		if signer, err = r.member(p.id, ledger, *p.agent); err != nil {
			return PublicKey{}, err
		}
		if signer == nil || signer.agent == nil || signer.agent.principal != p.member {
			return PublicKey{}, RefusedMember
		}
		if err := p.checkAgent(signer.agent, size); err != nil {
			return PublicKey{}, err
		}
	}
	key, has := signer.keyAt(size)
	if !has || !verifySignature(key, p.bytes, p.signature[:]) {
		return PublicKey{}, RefusedSignature
	}
	if err := r.checkRoles(p, ledger, author); err != nil {
		return PublicKey{}, err
	}
	if newest := signer.newest(p.lane); p.number != newest+1 {
		return PublicKey{}, RefusedLane
	}
	return key, r.checkConditions(p, size)
}

func (p *parsedRequest) checkAgent(agent *agentPart, size uint64) error {
	last := size + uint64(len(p.items)) - 1
	if agent.until != nil && *agent.until <= last {
		return RefusedRole
	}
	if len(agent.prefix) == 0 {
		return nil
	}
	for _, item := range p.items {
		if !item.envelope.begins(agent.prefix) {
			return RefusedRole
		}
	}
	return nil
}

// checkRoles takes rule 4, by the state before the request.
func (r *Round) checkRoles(p *parsedRequest, ledger *roundLedger, author *memberRecord) error {
	if p.changes == nil {
		if author.roles&RoleWriter == 0 {
			return RefusedRole
		}
		return nil
	}
	for _, c := range p.changes {
		allowed := false
		switch c.kind {
		case changeAgent:
			allowed = author.roles&RoleWriter != 0
		case changeJoin, changeRoles:
			allowed = author.roles&RoleOwner != 0
		default:
			target, err := r.member(p.id, ledger, c.member)
			if err != nil {
				return err
			}
			ofAuthor := target != nil && target.agent != nil && target.agent.principal == p.member
			allowed = author.roles&RoleOwner != 0 || c.member == p.member || ofAuthor
		}
		if !allowed {
			return RefusedRole
		}
	}
	return nil
}

func (r *Round) checkConditions(p *parsedRequest, size uint64) error {
	for _, c := range p.conditions {
		if !c.ofClue {
			if c.number != size {
				return RefusedSize
			}
			continue
		}
		clue, err := r.clue(p.id, c.clue)
		if err != nil {
			return err
		}
		if clue.count != c.number {
			return RefusedCount
		}
	}
	return nil
}

func (r *Round) clue(ledger LedgerID, clue Digest) (clueRecord, error) {
	encoded := r.get(ledger.clueKey(clue))
	if encoded == nil {
		return clueRecord{}, nil
	}
	return decodeClue(encoded)
}

// newKey is a key that a request brings into a ledger.
type newKey struct {
	key    PublicKey
	member MemberID
}

// change takes rule 7, and gives the changed members and the new keys. Nothing is changed yet.
func (r *Round) change(p *parsedRequest, ledger *roundLedger, next uint64) (map[MemberID]*memberRecord, []newKey, error) {
	c := &changer{round: r, request: p, ledger: ledger, next: next, changed: make(map[MemberID]*memberRecord)}
	for i := range p.changes {
		if err := c.take(&p.changes[i]); err != nil {
			return nil, nil, err
		}
	}
	return c.changed, c.keys, nil
}

type changer struct {
	round   *Round
	request *parsedRequest
	ledger  *roundLedger
	next    uint64
	changed map[MemberID]*memberRecord
	keys    []newKey
}

// known gives a copy of a member's record that may be changed, or nil.
func (c *changer) known(id MemberID) (*memberRecord, error) {
	if member := c.changed[id]; member != nil {
		return member, nil
	}
	member, err := c.round.member(c.request.id, c.ledger, id)
	if member == nil || err != nil {
		return nil, err
	}
	return member.clone(), nil
}

func (m *memberRecord) clone() *memberRecord {
	clone := *m
	clone.keys, clone.lanes = slices.Clone(m.keys), slices.Clone(m.lanes)
	if m.journals != nil {
		journals := *m.journals
		clone.journals = &journals
	}
	return &clone
}

// fresh refuses a key that was anybody's in the ledger before.
func (c *changer) fresh(key PublicKey, member MemberID) error {
	used := slices.ContainsFunc(c.keys, func(k newKey) bool { return k.key == key })
	if used || c.round.get(c.request.id.publicKeyKey(key)) != nil {
		return RefusedChange
	}
	c.keys = append(c.keys, newKey{key: key, member: member})
	return nil
}

func (c *changer) take(change *memberChange) error {
	if change.kind == changeJoin || change.kind == changeAgent {
		return c.join(change)
	}
	member, err := c.known(change.member)
	if err != nil {
		return err
	}
	if member == nil {
		return RefusedChange
	}
	switch change.kind {
	case changeRoles:
		if member.agent != nil {
			return RefusedChange
		}
		member.roles = change.roles
	case changeKeyOf:
		if len(member.keys) >= memberKeysMax || !change.consented(c.request.cluster, c.request.id) {
			return RefusedChange
		}
		if err := c.fresh(change.key, change.member); err != nil {
			return err
		}
		member.endKey(c.next)
		member.keys = append(member.keys, memberKey{key: change.key, from: c.next})
	case changeRevoke:
		member.endKey(c.next)
	case changeDispute:
		from := change.from
		if member.disputed != nil {
			from = min(from, *member.disputed)
		}
		member.disputed = &from
	}
	c.changed[change.member] = member
	return nil
}

func (c *changer) join(change *memberChange) error {
	id := memberID(change.grant.name)
	known, err := c.known(id)
	if err != nil {
		return err
	}
	if known != nil {
		return RefusedChange
	}
	if err := c.fresh(change.grant.key, id); err != nil {
		return err
	}
	member := &memberRecord{
		name: change.grant.name, roles: change.grant.roles, keys: []memberKey{{key: change.grant.key, from: c.next}},
	}
	if change.kind == changeAgent {
		member.agent = &agentPart{principal: c.request.member, prefix: change.prefix, until: change.until}
	}
	c.changed[id] = member
	return nil
}

// found judges the founding of a ledger, and applies it.
func (r *Round) found(p *parsedRequest) (*Appended, error) {
	existing, err := r.ledger(p.id)
	if err != nil {
		return nil, err
	}
	if existing != nil || r.get(nameKey(p.founding.name)) != nil {
		return nil, RefusedName
	}
	at := slices.IndexFunc(p.founding.grants, func(g grant) bool { return memberID(g.name) == p.member })
	if at < 0 {
		return nil, RefusedMember
	}
	author := p.founding.grants[at]
	switch {
	case !verifySignature(author.key, p.bytes, p.signature[:]):
		return nil, RefusedSignature
	case author.roles&RoleOwner == 0:
		return nil, RefusedRole
	case p.number != 1:
		return nil, RefusedLane
	}
	if err := r.checkConditions(p, 0); err != nil {
		return nil, err
	}
	ledger := newRoundLedger(&ledgerHead{})
	r.ledgers[p.id] = ledger
	var keys []newKey
	for _, g := range p.founding.grants {
		id := memberID(g.name)
		ledger.members[id] = &memberRecord{name: g.name, roles: g.roles, keys: []memberKey{{key: g.key}}}
		ledger.changed[id] = true
		keys = append(keys, newKey{key: g.key, member: id})
	}
	return r.applied(p, ledger, author.key, keys)
}

// applied makes the records of a request that is not refused any more.
func (r *Round) applied(p *parsedRequest, ledger *roundLedger, key PublicKey, keys []newKey) (*Appended, error) {
	result := &Appended{Ledger: p.id, FirstJSN: ledger.head.size}
	put := func(key, value []byte) {
		result.Records = append(result.Records, PutRecord{Key: key, Value: value})
		r.puts[string(key)] = value
	}
	clues := make(map[Digest]*clueRecord)
	var leaves []Digest
	for i, item := range p.items {
		leaf, err := r.leaf(p, i, ledger.head.size, key, clues)
		if err != nil {
			return nil, err
		}
		encoded := leaf.encode()
		hash := leafHash(encoded)
		leaves = append(leaves, hash)
		put(p.id.leafKey(leaf.JSN), encoded)
		put(p.id.envelopeKey(leaf.JSN), item.encoded)
		for _, clue := range leaf.Clues {
			at := cell{jsn: leaf.JSN, leaf: hash}
			put(p.id.cellKey(clue.Clue, clue.Ordinal), at.encode())
			record := clues[clue.Clue]
			record.chain, record.lastJSN = chained(record.chain, leaf.JSN, hash), leaf.JSN
		}
		ledger.tiles = append(ledger.tiles, ledger.head.push(p.id, hash)...)
	}
	for _, clue := range slices.SortedFunc(maps.Keys(clues), func(a, b Digest) int { return bytes.Compare(a[:], b[:]) }) {
		put(p.id.clueKey(clue), clues[clue].encode())
	}
	if p.founding != nil {
		put(nameKey(p.founding.name), p.id[:])
		put(p.id.foundingKey(), p.items[0].envelope.Payload)
	}
	slices.SortFunc(keys, func(a, b newKey) int { return bytes.Compare(a.key[:], b.key[:]) })
	for _, k := range keys {
		put(p.id.publicKeyKey(k.key), k.member[:])
	}
	result.LeavesRoot = MerkleRoot(leaves)
	return result, r.counted(p, ledger, result.FirstJSN)
}

// leaf makes the leaf of an item, and counts its clues.
func (r *Round) leaf(p *parsedRequest, i int, jsn uint64, key PublicKey, clues map[Digest]*clueRecord) (*Leaf, error) {
	item := p.items[i]
	leaf := &Leaf{
		Kind: item.kind, Ledger: p.id, JSN: jsn, Stamp: r.stamp, Member: p.member, Agent: p.agent, Key: key,
		Lane: p.lane, Number: p.number, Index: uint32(i), Of: uint32(len(p.items)), Request: p.hash,
		Signature: p.signature, Commitment: item.commitment, EnvelopeBytes: uint32(len(item.encoded)),
	}
	for _, clue := range item.clues {
		if clues[clue] == nil {
			record, err := r.clue(p.id, clue)
			if err != nil {
				return nil, err
			}
			clues[clue] = &record
		}
		clues[clue].count++
		leaf.Clues = append(leaf.Clues, LeafClue{Clue: clue, Ordinal: clues[clue].count})
	}
	return leaf, nil
}

// counted notes the request in the records of its author and its signer.
func (r *Round) counted(p *parsedRequest, ledger *roundLedger, first uint64) error {
	author, err := r.member(p.id, ledger, p.member)
	if err != nil {
		return err
	}
	author.count(first, uint64(len(p.items)))
	ledger.changed[p.member] = true
	signer, id := author, p.member
	if p.agent != nil {
		id = *p.agent
		if signer, err = r.member(p.id, ledger, id); err != nil {
			return err
		}
	}
	signer.record(p.lane, p.number, first)
	ledger.changed[id], ledger.touched = true, true
	return nil
}

// Close ends the version: each ledger with an applied request has a head, in ascending order.
func (r *Round) Close() []ClosedHead {
	var heads []ClosedHead
	for _, id := range slices.SortedFunc(maps.Keys(r.ledgers), func(a, b LedgerID) int { return bytes.Compare(a[:], b[:]) }) {
		ledger := r.ledgers[id]
		if !ledger.touched {
			continue
		}
		head := ClosedHead{
			Ledger: id, SizeBefore: ledger.before, Size: ledger.head.size, Root: ledger.head.root(), Records: ledger.tiles,
		}
		members := slices.SortedFunc(maps.Keys(ledger.changed), func(a, b MemberID) int { return bytes.Compare(a[:], b[:]) })
		for _, member := range members {
			head.Records = append(head.Records, PutRecord{Key: id.memberKey(member), Value: ledger.members[member].encode()})
		}
		head.Records = append(head.Records, PutRecord{Key: id.headKey(), Value: ledger.head.encode()})
		heads = append(heads, head)
	}
	return heads
}
