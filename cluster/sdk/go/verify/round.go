package verify

import "errors"

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
	RefusedClosed    Refusal = "closed"
	RefusedName      Refusal = "name"
	RefusedMember    Refusal = "member"
	RefusedSignature Refusal = "signature"
	RefusedRole      Refusal = "role"
	RefusedLane      Refusal = "lane"
	RefusedSize      Refusal = "size"
	RefusedCount     Refusal = "count"
	RefusedChange    Refusal = "change"
	RefusedApproval  Refusal = "approval"
	RefusedOrder     Refusal = "order"
)

// PutRecord is a record of a ledger, as an append or a head puts it. Without a value it is deleted.
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
	// leaves are those of the request's journals.
	leaves []*Leaf
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
	// seen tells whether the root log had a root at a size. If it is nil, every root is believed.
	seen func(size uint64, root Digest) bool
	// now is the time of the version, and times gives those of the versions before, by their numbers.
	// Times are timestamps of headers, in milliseconds.
	now     uint64
	times   func(version uint64) (uint64, bool)
	puts    map[string][]byte
	ledgers map[LedgerID]*roundLedger
}

// NewRound begins a version. The functions give the records of the version before (nil for none),
// and whether the root log had a root at a size; without the second function, roots are not
// checked.
func NewRound(cluster ClusterID, stamp Stamp, ground func(key []byte) []byte, seen func(uint64, Digest) bool) *Round {
	return &Round{
		cluster: cluster, stamp: stamp, ground: ground, seen: seen,
		times: func(uint64) (uint64, bool) { return 0, false },
		puts:  make(map[string][]byte), ledgers: make(map[LedgerID]*roundLedger),
	}
}

// At sets the time of the version, and the times of the versions before, which orders to purge
// depend on. They are the timestamps of headers, in milliseconds, by the versions' numbers.
func (r *Round) At(now uint64, times func(version uint64) (uint64, bool)) *Round {
	r.now, r.times = now, times
	return r
}

// roundLedger is a ledger within a round.
type roundLedger struct {
	head    *ledgerHead
	before  uint64
	touched bool
	tiles   []PutRecord
	members map[MemberID]*Member
	changed map[MemberID]bool
	// occulted are the journals that were occulted in this version.
	occulted map[uint64]bool
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
	encoded := r.get(id.HeadKey())
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
		members: make(map[MemberID]*Member), changed: make(map[MemberID]bool), occulted: make(map[uint64]bool),
	}
}

// member gives the record of a member or an agent, or nil.
func (r *Round) member(id LedgerID, ledger *roundLedger, member MemberID) (*Member, error) {
	if known := ledger.members[member]; known != nil {
		return known, nil
	}
	encoded := r.get(id.MemberKey(member))
	if encoded == nil {
		return nil, nil
	}
	record, err := DecodeMember(encoded)
	if err == nil {
		ledger.members[member] = record
	}
	return record, err
}

// parsedRequest is a request whose form is right.
type parsedRequest struct {
	*SignedRequest
	bytes     []byte
	hash      Digest
	signature [64]byte
	id        LedgerID
	items     []parsedItem
	founding  *Founding
	changes   []MemberChange
	order     *Order
	// effect is what a judged order does.
	effect *orderEffect
}

type parsedItem struct {
	kind uint8
	// encoded and envelope are empty for an item that is known by its leaf.
	encoded    []byte
	envelope   *Envelope
	length     uint32
	commitment Digest
	clues      []Digest
}

var errForm = errors.New("the form of the request")

func (r *Round) parse(request Request) (*parsedRequest, error) {
	signed, err := DecodeSigned(request.Signed)
	if err != nil {
		return nil, err
	}
	if signed.Cluster != r.cluster || uint64(signed.Items) != uint64(len(request.Items)) {
		return nil, errForm
	}
	p := &parsedRequest{
		SignedRequest: signed, bytes: request.Signed, hash: sha(request.Signed), signature: request.Signature,
		id: signed.Ledger,
	}
	kind := request.Items[0].Kind
	if kind > JournalOrder || kind != JournalData && (len(request.Items) > 1 || signed.Agent != nil) ||
		(kind == JournalFounding) != (signed.Ledger == LedgerID{}) {
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
		if p.founding, err = DecodeFounding(envelopes[0].Payload); err == nil && len(envelopes[0].Clues) > 0 {
			err = errForm
		}
		if err == nil {
			p.id = FoundedID(r.cluster, request.Signed, p.founding.Spread)
		}
	case JournalMembers:
		p.changes, err = DecodeMemberChanges(envelopes[0].Payload)
	case JournalOrder:
		if p.order, err = DecodeOrder(envelopes[0].Payload); err == nil && p.order.ApprovedBy(p.Member) {
			err = errForm
		}
	}
	if err != nil {
		return nil, err
	}
	return p, p.checkItems(request.Items, envelopes)
}

// checkItems compares the items with what was signed. Clues are those of the request's own ledger;
// a founding has none.
func (p *parsedRequest) checkItems(items []Item, envelopes []*Envelope) error {
	for i, item := range items {
		parsed := parsedItem{
			kind: item.Kind, encoded: item.Envelope, envelope: envelopes[i], length: uint32(len(item.Envelope)),
			commitment: sha(item.Envelope),
		}
		for _, clue := range envelopes[i].Clues {
			parsed.clues = append(parsed.clues, ClueHash(p.id, clue))
		}
		p.items = append(p.items, parsed)
	}
	return p.checkRoot()
}

func (p *parsedRequest) checkRoot() error {
	hashes := make([]Digest, len(p.items))
	for i, item := range p.items {
		hashes[i] = itemHash(item.kind, item.commitment, item.length, item.clues)
	}
	if MerkleRoot(hashes) != p.ItemsRoot {
		return errForm
	}
	return nil
}

// parseLeaves is parse for a request with data whose items are known by the leaves that it became.
// Whether the clues in an envelope are those of the leaf is not seen without the envelope.
func (r *Round) parseLeaves(signed []byte, signature [64]byte, leaves []*Leaf) (*parsedRequest, error) {
	request, err := DecodeSigned(signed)
	if err != nil {
		return nil, err
	}
	if request.Cluster != r.cluster || request.Ledger == (LedgerID{}) ||
		uint64(request.Items) != uint64(len(leaves)) {
		return nil, errForm
	}
	p := &parsedRequest{
		SignedRequest: request, bytes: signed, hash: sha(signed), signature: signature, id: request.Ledger,
	}
	for _, leaf := range leaves {
		if leaf.Kind != JournalData {
			return nil, errForm
		}
		p.items = append(p.items, parsedItem{
			kind: leaf.Kind, encoded: []byte{}, length: leaf.EnvelopeBytes, commitment: leaf.Commitment,
			clues: leaf.clueHashes(),
		})
	}
	return p, p.checkRoot()
}

// Append judges a request, and applies it if it keeps the rules. An error that is no Refusal means
// that a record of the version before does not decode.
func (r *Round) Append(request Request) (*Appended, error) {
	p, err := r.parse(request)
	if err != nil {
		return nil, RefusedForm
	}
	return r.append(p)
}

// appendLeaves is Append for a request with data whose items are known by their leaves. Of an
// agent's clue prefix it can't judge. The records of envelopes have no values.
func (r *Round) appendLeaves(signed []byte, signature [64]byte, leaves []*Leaf) (*Appended, error) {
	p, err := r.parseLeaves(signed, signature, leaves)
	if err != nil {
		return nil, RefusedForm
	}
	return r.append(p)
}

func (r *Round) append(p *parsedRequest) (*Appended, error) {
	if p.Epoch != r.stamp.Epoch || r.seen != nil && !r.seen(p.SeenSize, p.SeenRoot) {
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
	if ledger.head.closed && p.order == nil {
		return nil, RefusedClosed
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
	if p.order != nil {
		if p.effect, err = r.judgeOrder(p, ledger); err != nil {
			return nil, err
		}
	}
	for id, member := range changed {
		ledger.members[id], ledger.changed[id] = member, true
	}
	return r.applied(p, ledger, key, newKeys)
}

// judge takes the rules 2 to 6 of section 18, and gives the key that signed.
func (r *Round) judge(p *parsedRequest, ledger *roundLedger) (PublicKey, error) {
	author, err := r.member(p.id, ledger, p.Member)
	if err != nil {
		return PublicKey{}, err
	}
	if author == nil || author.Agency != nil {
		return PublicKey{}, RefusedMember
	}
	signer := author
	size := ledger.head.size
	if p.Agent != nil {
		if signer, err = r.member(p.id, ledger, *p.Agent); err != nil {
			return PublicKey{}, err
		}
		if signer == nil || signer.Agency == nil || signer.Agency.Principal != p.Member {
			return PublicKey{}, RefusedMember
		}
		if err := p.checkAgent(signer.Agency, size); err != nil {
			return PublicKey{}, err
		}
	}
	key, has := signer.KeyAt(size)
	if !has || !verifySignature(key, p.bytes, p.signature[:]) {
		return PublicKey{}, RefusedSignature
	}
	if err := r.checkRoles(p, ledger, author); err != nil {
		return PublicKey{}, err
	}
	if newest := signer.Newest(p.Lane); p.Number != newest+1 {
		return PublicKey{}, RefusedLane
	}
	return key, r.checkConditions(p, size)
}

func (p *parsedRequest) checkAgent(agent *Agency, size uint64) error {
	last := size + uint64(len(p.items)) - 1
	if agent.Until != nil && *agent.Until <= last {
		return RefusedRole
	}
	if len(agent.Prefix) == 0 {
		return nil
	}
	for _, item := range p.items {
		if item.envelope != nil && !item.envelope.begins(agent.Prefix) {
			return RefusedRole
		}
	}
	return nil
}

// checkRoles takes rule 4, by the state before the request.
func (r *Round) checkRoles(p *parsedRequest, ledger *roundLedger, author *Member) error {
	if p.order != nil {
		o := p.order
		owners := o.Purge != nil || o.Sweep != nil
		if owners && author.Roles&RoleOwner == 0 || o.Targets != nil && author.Roles&(RoleOwner|RoleRegulator) == 0 {
			return RefusedRole
		}
		return nil
	}
	if p.changes == nil {
		if author.Roles&RoleWriter == 0 {
			return RefusedRole
		}
		return nil
	}
	for _, c := range p.changes {
		allowed := false
		switch c.Kind {
		case ChangeAgent:
			allowed = author.Roles&RoleWriter != 0
		case ChangeJoin, ChangeRoles:
			allowed = author.Roles&RoleOwner != 0
		default:
			target, err := r.member(p.id, ledger, c.Member)
			if err != nil {
				return err
			}
			ofAuthor := target != nil && target.Agency != nil && target.Agency.Principal == p.Member
			allowed = author.Roles&RoleOwner != 0 || c.Member == p.Member || ofAuthor
		}
		if !allowed {
			return RefusedRole
		}
	}
	return nil
}

func (r *Round) checkConditions(p *parsedRequest, size uint64) error {
	for _, c := range p.Conditions {
		if !c.OfClue {
			if c.Number != size {
				return RefusedSize
			}
			continue
		}
		clue, err := r.clue(p.id, c.Clue)
		if err != nil {
			return err
		}
		if clue.count != c.Number {
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
