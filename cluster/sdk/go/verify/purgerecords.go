package verify

// PurgeState says how far a purge has come.
type PurgeState uint8

// The states of a purge.
const (
	// PurgePending is a purge that was ordered. Nothing is deleted yet.
	PurgePending PurgeState = iota
	// PurgeSweeping is a purge whose first journals are deleted.
	PurgeSweeping
	// PurgeSwept is a purge whose journals are all deleted, but for those that are kept.
	PurgeSwept
	// PurgeRecalled is a purge that was taken back.
	PurgeRecalled
)

func (s PurgeState) String() string {
	switch s {
	case PurgePending:
		return "pending"
	case PurgeSweeping:
		return "sweeping"
	case PurgeSwept:
		return "swept"
	case PurgeRecalled:
		return "recalled"
	}
	return "unknown"
}

// Purge is the record of a ledger's newest purge.
type Purge struct {
	// Order is the number of the journal that ordered it, and Stamp the version of that journal.
	Order uint64
	Stamp Stamp
	// Before is the number below which journals go, but for those that are kept.
	Before uint64
	// Closes tells whether the purge closes the ledger.
	Closes bool
	State  PurgeState
	// Swept is the version of the ledger's newest sweep, or 0.
	Swept uint64
}

// Open tells whether the purge is under way.
func (p *Purge) Open() bool { return p.State == PurgePending || p.State == PurgeSweeping }

// recordReader begins to read a small record.
func recordReader(encoded []byte) *reader {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a record of a ledger has another format")
	}
	return r
}

// DecodePurge reads the record of a ledger's newest purge.
func DecodePurge(encoded []byte) (*Purge, error) {
	r := recordReader(encoded)
	p := &Purge{
		Order: r.u64(), Stamp: r.stamp(), Before: r.u64(), Closes: r.flag(), State: PurgeState(r.u8()), Swept: r.u64(),
	}
	if p.State > PurgeRecalled {
		r.fail("the state of a purge")
	}
	return p, r.end()
}

func (p *Purge) encode() []byte {
	w := writer{}
	w.u8(1)
	w.u64(p.Order)
	w.stamp(p.Stamp)
	w.u64(p.Before)
	w.flag(p.Closes)
	w.u8(uint8(p.State))
	w.u64(p.Swept)
	return w
}

// DecodeRetained gives the journal whose order keeps a journal, and the member that keeps it.
func DecodeRetained(encoded []byte) (order uint64, member MemberID, err error) {
	r := recordReader(encoded)
	order, member = r.u64(), MemberID(r.id())
	return order, member, r.end()
}

func encodeRetained(order uint64, member MemberID) []byte {
	w := writer{}
	w.u8(1)
	w.u64(order)
	w.bytes(member[:])
	return w
}

// decodeRetains gives the purge from which a member retains journals, and their number.
func decodeRetains(encoded []byte) (purge uint64, count uint32, err error) {
	r := recordReader(encoded)
	purge, count = r.u64(), r.u32()
	return purge, count, r.end()
}

func encodeRetains(purge uint64, count uint32) []byte {
	w := writer{}
	w.u8(1)
	w.u64(purge)
	w.u32(count)
	return w
}

// DecodeAuthor gives a member that has journals, and the number of its first one.
func DecodeAuthor(encoded []byte) (member MemberID, first uint64, err error) {
	r := recordReader(encoded)
	member, first = MemberID(r.id()), r.u64()
	return member, first, r.end()
}

func encodeAuthor(member MemberID, first uint64) []byte {
	w := writer{}
	w.u8(1)
	w.bytes(member[:])
	w.u64(first)
	return w
}

// PurgeKey is the reserved key of the record of a ledger's newest purge.
func (l LedgerID) PurgeKey() []byte { return l.key(nil, []byte{7}) }

// RetainedKey is the reserved key of the record that a journal is kept from a purge.
func (l LedgerID) RetainedKey(jsn uint64) []byte { return l.key(nil, []byte{10}, be64(jsn)) }

func (l LedgerID) retainsKey(member MemberID) []byte { return l.key(nil, []byte{11}, member[:]) }

// AuthorKey is the reserved key of the record that names an author. Authors are numbered from 1 on,
// in the order of their first journals.
func (l LedgerID) AuthorKey(number uint64) []byte { return l.key(nil, []byte{12}, be64(number)) }
