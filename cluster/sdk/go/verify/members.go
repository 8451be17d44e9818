package verify

import (
	"bytes"
	"errors"
)

// memberRecord is the record of a member, or of an agent of one (section 18).
type memberRecord struct {
	name     []byte
	roles    uint8
	agent    *agentPart
	keys     []memberKey
	lanes    []lane
	journals *journalSpan
	disputed *uint64
}

type agentPart struct {
	principal MemberID
	prefix    []byte
	until     *uint64
}

type memberKey struct {
	key   PublicKey
	from  uint64
	until *uint64
}

type lane struct {
	lane     uint8
	number   uint64
	firstJSN uint64
}

type journalSpan struct {
	first, last, count uint64
}

func optU64(r *reader) *uint64 {
	if !r.flag() {
		return nil
	}
	v := r.u64()
	return &v
}

func (w *writer) optU64(v *uint64) {
	w.flag(v != nil)
	if v != nil {
		w.u64(*v)
	}
}

func decodeMember(encoded []byte) (*memberRecord, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("the record of a member has another format")
	}
	m := &memberRecord{name: r.str16(1, nameLettersMax, "a name"), roles: r.u8()}
	if r.flag() {
		m.agent = &agentPart{principal: MemberID(r.id()), prefix: r.str16(0, clueBytesMax, "a clue prefix"), until: optU64(r)}
	}
	for range r.count16(41) {
		m.keys = append(m.keys, memberKey{key: PublicKey(r.digest()), from: r.u64(), until: optU64(r)})
	}
	for range r.count16(17) {
		m.lanes = append(m.lanes, lane{lane: r.u8(), number: r.u64(), firstJSN: r.u64()})
	}
	if r.flag() {
		m.journals = &journalSpan{first: r.u64(), last: r.u64(), count: r.u64()}
	}
	m.disputed = optU64(r)
	return m, r.end()
}

func (m *memberRecord) encode() []byte {
	w := writer{}
	w.u8(1)
	w.str16(m.name)
	w.u8(m.roles)
	w.flag(m.agent != nil)
	if m.agent != nil {
		w.bytes(m.agent.principal[:])
		w.str16(m.agent.prefix)
		w.optU64(m.agent.until)
	}
	w.u16(uint16(len(m.keys)))
	for _, key := range m.keys {
		w.bytes(key.key[:])
		w.u64(key.from)
		w.optU64(key.until)
	}
	w.u16(uint16(len(m.lanes)))
	for _, lane := range m.lanes {
		w.u8(lane.lane)
		w.u64(lane.number)
		w.u64(lane.firstJSN)
	}
	w.flag(m.journals != nil)
	if m.journals != nil {
		w.u64(m.journals.first)
		w.u64(m.journals.last)
		w.u64(m.journals.count)
	}
	w.optU64(m.disputed)
	return w
}

// keyAt gives the key in force for the journal with a number.
func (m *memberRecord) keyAt(size uint64) (PublicKey, bool) {
	for _, key := range m.keys {
		if key.from <= size && (key.until == nil || size < *key.until) {
			return key.key, true
		}
	}
	return PublicKey{}, false
}

func (m *memberRecord) endKey(next uint64) {
	for i := range m.keys {
		if m.keys[i].until == nil {
			m.keys[i].until = &next
		}
	}
}

// newest is the number of the newest request in a lane, or 0.
func (m *memberRecord) newest(in uint8) uint64 {
	for _, lane := range m.lanes {
		if lane.lane == in {
			return lane.number
		}
	}
	return 0
}

func (m *memberRecord) record(in uint8, number, firstJSN uint64) {
	at := 0
	for at < len(m.lanes) && m.lanes[at].lane < in {
		at++
	}
	entry := lane{lane: in, number: number, firstJSN: firstJSN}
	if at < len(m.lanes) && m.lanes[at].lane == in {
		m.lanes[at] = entry
		return
	}
	m.lanes = append(m.lanes[:at], append([]lane{entry}, m.lanes[at:]...)...)
}

func (m *memberRecord) count(first, journals uint64) {
	if m.journals == nil {
		m.journals = &journalSpan{first: first}
	}
	m.journals.last = first + journals - 1
	m.journals.count += journals
}

// grant makes a member of a ledger.
type grant struct {
	name  []byte
	roles uint8
	key   PublicKey
}

func decodeGrant(r *reader) grant {
	g := grant{name: r.str16(0, nameLettersMax, "a name"), roles: r.u8(), key: PublicKey(r.digest())}
	r.str16(0, certificateMax, "a certificate")
	if r.err == nil && (!validLedgerName(g.name) || !validRoles(g.roles)) {
		r.fail("a name or roles that no member has")
	}
	return g
}

func validRoles(roles uint8) bool {
	return roles&^rolesAll == 0 && roles&(RoleOwner|RoleRegulator) != RoleOwner|RoleRegulator
}

// founding is the payload of journal 0.
type founding struct {
	name   []byte
	spread bool
	occult uint8
	grants []grant
}

func decodeFounding(payload []byte) (*founding, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("a founding of another format")
	}
	f := &founding{name: r.str16(0, nameLettersMax, "a name"), spread: r.flag()}
	r.take(3 * 4)
	f.occult = r.u8()
	r.take(4)
	owner := false
	names, keys := map[string]bool{}, map[PublicKey]bool{}
	grants := r.count16(37)
	for range grants {
		g := decodeGrant(r)
		if r.err != nil {
			break
		}
		if names[string(g.name)] || keys[g.key] {
			return nil, errors.New("a founding has a name or a key twice")
		}
		names[string(g.name)], keys[g.key] = true, true
		owner = owner || g.roles&RoleOwner != 0
		f.grants = append(f.grants, g)
	}
	for range 2 {
		authorities := r.count16(2)
		if authorities > authoritiesMax {
			r.fail("a founding has more than 8 authorities")
			authorities = 0
		}
		for range authorities {
			r.str16(0, certificateMax, "a certificate")
		}
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if !validLedgerName(f.name) || grants > grantsMax || !owner || f.occult > 2 || f.occult == 2 && grants != 1 {
		return nil, errors.New("a founding with a name, grants or a policy that no ledger has")
	}
	return f, nil
}

// Kinds of changes of members.
const (
	changeJoin    = 0
	changeRoles   = 1
	changeKeyOf   = 2
	changeRevoke  = 3
	changeDispute = 4
	changeAgent   = 5
)

// memberChange is one change of members. Which fields it has follows from its kind.
type memberChange struct {
	kind    uint8
	grant   grant
	member  MemberID
	roles   uint8
	key     PublicKey
	consent []byte
	from    uint64
	prefix  []byte
	until   *uint64
}

func decodeChangesOfMembers(payload []byte) ([]memberChange, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("changes of members of another format")
	}
	count := r.count16(17)
	if r.err == nil && (count == 0 || count > grantsMax) {
		r.fail("there are 1 to 256 changes of members")
	}
	var changes []memberChange
	for range count {
		changes = append(changes, decodeMemberChange(r))
		if r.err != nil {
			return nil, r.err
		}
	}
	return changes, r.end()
}

func decodeMemberChange(r *reader) memberChange {
	c := memberChange{kind: r.u8()}
	switch c.kind {
	case changeJoin:
		c.grant = decodeGrant(r)
	case changeRoles:
		c.member, c.roles = MemberID(r.id()), r.u8()
		if !validRoles(c.roles) {
			r.fail("roles that no member has")
		}
	case changeKeyOf:
		c.member, c.key = MemberID(r.id()), PublicKey(r.digest())
		r.str16(0, certificateMax, "a certificate")
		c.consent = r.take(64)
	case changeRevoke:
		c.member = MemberID(r.id())
	case changeDispute:
		c.member, c.from = MemberID(r.id()), r.u64()
	case changeAgent:
		c.grant = grant{name: r.str16(0, nameLettersMax, "a name"), roles: RoleWriter, key: PublicKey(r.digest())}
		c.prefix, c.until = r.str16(0, clueBytesMax, "a clue prefix"), optU64(r)
		if r.err == nil && !validLedgerName(c.grant.name) {
			r.fail("a name that no agent has")
		}
	default:
		r.fail("a change of members of an unknown kind")
	}
	return c
}

// consented tells whether a new key has signed that it is a member's.
func (c *memberChange) consented(cluster ClusterID, ledger LedgerID) bool {
	w := writer{}
	w.u8(tagSigned)
	w.bytes([]byte("coppice-member-key"))
	w.bytes(cluster[:])
	w.bytes(ledger[:])
	w.bytes(c.member[:])
	w.bytes(c.key[:])
	return verifySignature(c.key, w, c.consent)
}

// begins tells whether all clues of an envelope begin with a prefix, and there is one at least.
func (e *Envelope) begins(prefix []byte) bool {
	for _, clue := range e.Clues {
		if !bytes.HasPrefix(clue, prefix) {
			return false
		}
	}
	return len(e.Clues) > 0
}
