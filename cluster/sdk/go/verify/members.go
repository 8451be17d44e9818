package verify

import (
	"bytes"
	"errors"
)

// Member is the record of a member of a ledger, or of an agent of one (section 18).
type Member struct {
	Name  string
	Roles Roles
	// Agency is nil for a member. An agent appends for its principal.
	Agency *Agency
	// Keys are all keys that the member has had. At most one is in force.
	Keys []MemberKey
	// Lanes have the newest requests, in ascending order.
	Lanes []LaneEnd
	// Journals is nil until the member has one.
	Journals *JournalSpan
	// DisputedFrom is the number from which on the member's journals are disputed, or nil.
	DisputedFrom *uint64
}

// Agency names the member for which an agent appends, and bounds what it may append.
type Agency struct {
	Principal MemberID
	// Prefix is what all clues of the agent's journals begin with. An empty one allows all journals.
	Prefix []byte
	// Until is the number below which the agent's journals lie, or nil.
	Until *uint64
}

// MemberKey is a key of a member, in force for the journals From <= number < Until.
type MemberKey struct {
	Key  PublicKey
	From uint64
	// Until is nil for a key that is in force at the end of the ledger.
	Until *uint64
}

// LaneEnd is the newest request of a lane, with the number of its first journal.
type LaneEnd struct {
	Lane     uint8
	Number   uint64
	FirstJSN uint64
}

// JournalSpan says which journals of a member are its first and its last, and how many there are.
type JournalSpan struct {
	First, Last, Count uint64
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

// DecodeMember reads the record of a member.
func DecodeMember(encoded []byte) (*Member, error) {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("the record of a member has another format")
	}
	m := &Member{Name: string(r.str16(1, nameLettersMax, "a name")), Roles: Roles(r.u8())}
	if r.flag() {
		prefix := func() []byte { return r.str16(0, clueBytesMax, "a clue prefix") }
		m.Agency = &Agency{Principal: MemberID(r.id()), Prefix: prefix(), Until: optU64(r)}
	}
	for range r.count16(41) {
		m.Keys = append(m.Keys, MemberKey{Key: PublicKey(r.digest()), From: r.u64(), Until: optU64(r)})
	}
	for range r.count16(17) {
		m.Lanes = append(m.Lanes, LaneEnd{Lane: r.u8(), Number: r.u64(), FirstJSN: r.u64()})
	}
	if r.flag() {
		m.Journals = &JournalSpan{First: r.u64(), Last: r.u64(), Count: r.u64()}
	}
	m.DisputedFrom = optU64(r)
	return m, r.end()
}

func (m *Member) encode() []byte {
	w := writer{}
	w.u8(1)
	w.str16([]byte(m.Name))
	w.u8(uint8(m.Roles))
	w.flag(m.Agency != nil)
	if m.Agency != nil {
		w.bytes(m.Agency.Principal[:])
		w.str16(m.Agency.Prefix)
		w.optU64(m.Agency.Until)
	}
	w.u16(uint16(len(m.Keys)))
	for _, key := range m.Keys {
		w.bytes(key.Key[:])
		w.u64(key.From)
		w.optU64(key.Until)
	}
	w.u16(uint16(len(m.Lanes)))
	for _, lane := range m.Lanes {
		w.u8(lane.Lane)
		w.u64(lane.Number)
		w.u64(lane.FirstJSN)
	}
	w.flag(m.Journals != nil)
	if m.Journals != nil {
		w.u64(m.Journals.First)
		w.u64(m.Journals.Last)
		w.u64(m.Journals.Count)
	}
	w.optU64(m.DisputedFrom)
	return w
}

// KeyAt gives the key in force for the journal with a number, if there is one.
func (m *Member) KeyAt(jsn uint64) (PublicKey, bool) {
	for _, key := range m.Keys {
		if key.From <= jsn && (key.Until == nil || jsn < *key.Until) {
			return key.Key, true
		}
	}
	return PublicKey{}, false
}

func (m *Member) endKey(next uint64) {
	for i := range m.Keys {
		if m.Keys[i].Until == nil {
			m.Keys[i].Until = &next
		}
	}
}

// Newest is the number of the newest request in a lane, or 0.
func (m *Member) Newest(lane uint8) uint64 {
	for _, end := range m.Lanes {
		if end.Lane == lane {
			return end.Number
		}
	}
	return 0
}

func (m *Member) record(lane uint8, number, firstJSN uint64) {
	at := 0
	for at < len(m.Lanes) && m.Lanes[at].Lane < lane {
		at++
	}
	end := LaneEnd{Lane: lane, Number: number, FirstJSN: firstJSN}
	if at < len(m.Lanes) && m.Lanes[at].Lane == lane {
		m.Lanes[at] = end
		return
	}
	m.Lanes = append(m.Lanes[:at], append([]LaneEnd{end}, m.Lanes[at:]...)...)
}

func (m *Member) count(first, journals uint64) {
	if m.Journals == nil {
		m.Journals = &JournalSpan{First: first}
	}
	m.Journals.Last = first + journals - 1
	m.Journals.Count += journals
}

// Grant makes a member of a ledger.
type Grant struct {
	Name  string
	Roles Roles
	Key   PublicKey
	// Certificate is one of the key in DER, or empty.
	Certificate []byte
}

func decodeGrant(r *reader) Grant {
	g := Grant{Name: string(r.str16(0, nameLettersMax, "a name")), Roles: Roles(r.u8()), Key: PublicKey(r.digest())}
	g.Certificate = r.str16(0, certificateMax, "a certificate")
	if r.err == nil && (!validLedgerName(g.Name) || !validRoles(g.Roles)) {
		r.fail("a name or roles that no member has")
	}
	return g
}

func (w *writer) grant(g *Grant) {
	w.str16([]byte(g.Name))
	w.u8(uint8(g.Roles))
	w.bytes(g.Key[:])
	w.str16(g.Certificate)
}

func validRoles(roles Roles) bool {
	return roles&^rolesAll == 0 && roles&(RoleOwner|RoleRegulator) != RoleOwner|RoleRegulator
}

// Founding is the payload of journal 0: what a ledger is, and who its first members are.
type Founding struct {
	Name string
	// Spread lays the ledger over all shards that hold ledgers. Without it the ledger lies in one
	// shard.
	Spread  bool
	Policy  LedgerPolicy
	Members []Grant
	// Authorities certify members, and TimeAuthorities stamp the time: certificates in DER.
	Authorities     [][]byte
	TimeAuthorities [][]byte
}

// LedgerPolicy has the rules of a ledger that never change.
type LedgerPolicy struct {
	// NoticeSeconds lie between an order to purge and its first effect.
	NoticeSeconds uint32
	// AbsentDays without a key let the regulator sign a purge in a member's place.
	AbsentDays uint32
	// RetainedMax is how many journals a member may retain from a purge.
	RetainedMax uint32
	// Occult is the right to occult: 0 nobody, 1 owner and regulator, 2 the owner of a ledger with one
	// member.
	Occult uint8
	// AnchorSeconds is the longest time between two time stamps that is promised; 0 promises none.
	AnchorSeconds uint32
}

// DecodeFounding reads the payload of journal 0.
func DecodeFounding(payload []byte) (*Founding, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("a founding of another format")
	}
	f := &Founding{Name: string(r.str16(0, nameLettersMax, "a name")), Spread: r.flag()}
	f.Policy = LedgerPolicy{
		NoticeSeconds: r.u32(), AbsentDays: r.u32(), RetainedMax: r.u32(), Occult: r.u8(), AnchorSeconds: r.u32(),
	}
	owner := false
	names, keys := map[string]bool{}, map[PublicKey]bool{}
	grants := r.count16(37)
	for range grants {
		g := decodeGrant(r)
		if r.err != nil {
			break
		}
		if names[g.Name] || keys[g.Key] {
			return nil, errors.New("a founding has a name or a key twice")
		}
		names[g.Name], keys[g.Key] = true, true
		owner = owner || g.Roles&RoleOwner != 0
		f.Members = append(f.Members, g)
	}
	f.Authorities, f.TimeAuthorities = decodeAuthorities(r), decodeAuthorities(r)
	if err := r.end(); err != nil {
		return nil, err
	}
	occult := f.Policy.Occult
	if !validLedgerName(f.Name) || grants > grantsMax || !owner || occult > 2 || occult == 2 && grants != 1 {
		return nil, errors.New("a founding with a name, grants or a policy that no ledger has")
	}
	return f, nil
}

func decodeAuthorities(r *reader) (certificates [][]byte) {
	count := r.count16(2)
	if count > authoritiesMax {
		r.fail("a founding has more than 8 authorities")
		return nil
	}
	for range count {
		certificates = append(certificates, r.str16(0, certificateMax, "a certificate"))
	}
	return certificates
}

// Encode gives the canonical bytes. It refuses what no ledger is founded with.
func (f *Founding) Encode() ([]byte, error) {
	if err := checkLengths(f.Members, f.Authorities, f.TimeAuthorities); err != nil {
		return nil, err
	}
	w := writer{}
	w.u8(1)
	w.str16([]byte(f.Name))
	w.flag(f.Spread)
	w.u32(f.Policy.NoticeSeconds)
	w.u32(f.Policy.AbsentDays)
	w.u32(f.Policy.RetainedMax)
	w.u8(f.Policy.Occult)
	w.u32(f.Policy.AnchorSeconds)
	w.u16(uint16(len(f.Members)))
	for i := range f.Members {
		w.grant(&f.Members[i])
	}
	for _, certificates := range [][][]byte{f.Authorities, f.TimeAuthorities} {
		w.u16(uint16(len(certificates)))
		for _, certificate := range certificates {
			w.str16(certificate)
		}
	}
	if !validLedgerName(f.Name) {
		return nil, errors.New("a name that no ledger has")
	}
	// The decoder has the other rules.
	_, err := DecodeFounding(w)
	return w, err
}

// checkLengths refuses counts and sizes that the lengths of an encoding can't express.
func checkLengths(members []Grant, lists ...[][]byte) error {
	if len(members) > grantsMax {
		return errors.New("there are more than 256 grants")
	}
	for _, g := range members {
		if !validLedgerName(g.Name) || len(g.Certificate) > certificateMax {
			return errors.New("a name or a certificate that no member has")
		}
	}
	for _, list := range lists {
		if len(list) > authoritiesMax {
			return errors.New("there are more than 8 authorities")
		}
		for _, certificate := range list {
			if len(certificate) > certificateMax {
				return errors.New("a certificate has more than 8,192 bytes")
			}
		}
	}
	return nil
}

// ChangeKind is the kind of a change of members.
type ChangeKind uint8

// Kinds of changes of members.
const (
	ChangeJoin    ChangeKind = 0
	ChangeRoles   ChangeKind = 1
	ChangeKey     ChangeKind = 2
	ChangeRevoke  ChangeKind = 3
	ChangeDispute ChangeKind = 4
	ChangeAgent   ChangeKind = 5
)

// MemberChange is one change of members. Its kind says which fields it has.
type MemberChange struct {
	Kind ChangeKind
	// Grant is of ChangeJoin; and of ChangeAgent, with name and key alone.
	Grant Grant
	// Member is the one that changes, for the kinds without a grant.
	Member MemberID
	// Roles are of ChangeRoles.
	Roles Roles
	// Key, Certificate and Consent are of ChangeKey. The new key signs the consent.
	Key         PublicKey
	Certificate []byte
	Consent     [64]byte
	// From is of ChangeDispute: the journals of the member from there on are disputed.
	From uint64
	// Prefix and Until are of ChangeAgent, as in Agency.
	Prefix []byte
	Until  *uint64
}

// DecodeMemberChanges reads the payload of a journal of the kind members.
func DecodeMemberChanges(payload []byte) ([]MemberChange, error) {
	r := &reader{rest: payload}
	if r.u8() != 1 {
		r.fail("changes of members of another format")
	}
	count := r.count16(17)
	if r.err == nil && (count == 0 || count > grantsMax) {
		r.fail("there are 1 to 256 changes of members")
	}
	var changes []MemberChange
	for range count {
		changes = append(changes, decodeMemberChange(r))
		if r.err != nil {
			return nil, r.err
		}
	}
	return changes, r.end()
}

func decodeMemberChange(r *reader) MemberChange {
	c := MemberChange{Kind: ChangeKind(r.u8())}
	switch c.Kind {
	case ChangeJoin:
		c.Grant = decodeGrant(r)
	case ChangeRoles:
		c.Member, c.Roles = MemberID(r.id()), Roles(r.u8())
		if !validRoles(c.Roles) {
			r.fail("roles that no member has")
		}
	case ChangeKey:
		c.Member, c.Key = MemberID(r.id()), PublicKey(r.digest())
		c.Certificate = r.str16(0, certificateMax, "a certificate")
		copy(c.Consent[:], r.take(64))
	case ChangeRevoke:
		c.Member = MemberID(r.id())
	case ChangeDispute:
		c.Member, c.From = MemberID(r.id()), r.u64()
	case ChangeAgent:
		name := string(r.str16(0, nameLettersMax, "a name"))
		c.Grant = Grant{Name: name, Roles: RoleWriter, Key: PublicKey(r.digest())}
		c.Prefix, c.Until = r.str16(0, clueBytesMax, "a clue prefix"), optU64(r)
		if r.err == nil && !validLedgerName(c.Grant.Name) {
			r.fail("a name that no agent has")
		}
	default:
		r.fail("a change of members of an unknown kind")
	}
	return c
}

// EncodeMemberChanges gives the payload of a journal with these changes. It refuses what no request
// may have.
func EncodeMemberChanges(changes []MemberChange) ([]byte, error) {
	if len(changes) > grantsMax {
		return nil, errors.New("there are 1 to 256 changes of members")
	}
	w := writer{}
	w.u8(1)
	w.u16(uint16(len(changes)))
	for i := range changes {
		if err := w.memberChange(&changes[i]); err != nil {
			return nil, err
		}
	}
	// The decoder has the other rules.
	_, err := DecodeMemberChanges(w)
	return w, err
}

func (w *writer) memberChange(c *MemberChange) error {
	w.u8(uint8(c.Kind))
	switch c.Kind {
	case ChangeJoin:
		if err := checkLengths([]Grant{c.Grant}); err != nil {
			return err
		}
		w.grant(&c.Grant)
		return nil
	case ChangeAgent:
		if !validLedgerName(c.Grant.Name) || len(c.Prefix) > clueBytesMax {
			return errors.New("a name or a clue prefix that no agent has")
		}
		w.str16([]byte(c.Grant.Name))
		w.bytes(c.Grant.Key[:])
		w.str16(c.Prefix)
		w.optU64(c.Until)
		return nil
	}
	w.bytes(c.Member[:])
	switch c.Kind {
	case ChangeRoles:
		w.u8(uint8(c.Roles))
	case ChangeKey:
		if len(c.Certificate) > certificateMax {
			return errors.New("a certificate has more than 8,192 bytes")
		}
		w.bytes(c.Key[:])
		w.str16(c.Certificate)
		w.bytes(c.Consent[:])
	case ChangeDispute:
		w.u64(c.From)
	}
	return nil
}

// ConsentMessage is what a new key of a member signs, to show that its holder knows of it.
func ConsentMessage(cluster ClusterID, ledger LedgerID, member MemberID, key PublicKey) []byte {
	w := writer{}
	w.u8(tagSigned)
	w.bytes([]byte("coppice-member-key"))
	w.bytes(cluster[:])
	w.bytes(ledger[:])
	w.bytes(member[:])
	w.bytes(key[:])
	return w
}

// consented tells whether a new key has signed that it is a member's.
func (c *MemberChange) consented(cluster ClusterID, ledger LedgerID) bool {
	return verifySignature(c.Key, ConsentMessage(cluster, ledger, c.Member, c.Key), c.Consent[:])
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
