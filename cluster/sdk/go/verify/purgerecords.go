package verify

// The states of a purge.
const (
	purgePending uint8 = iota
	purgeSweeping
	purgeSwept
	purgeRecalled
)

// purgeRecord is the record of a ledger's newest purge.
type purgeRecord struct {
	order  uint64
	stamp  Stamp
	before uint64
	closes bool
	state  uint8
	// swept is the version of its newest sweep, or 0.
	swept uint64
}

// open tells whether the purge is under way.
func (p *purgeRecord) open() bool { return p.state == purgePending || p.state == purgeSweeping }

// recordReader begins to read a small record.
func recordReader(encoded []byte) *reader {
	r := &reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a record of a ledger has another format")
	}
	return r
}

func decodePurge(encoded []byte) (*purgeRecord, error) {
	r := recordReader(encoded)
	p := &purgeRecord{
		order: r.u64(), stamp: r.stamp(), before: r.u64(), closes: r.flag(), state: r.u8(), swept: r.u64(),
	}
	if p.state > purgeRecalled {
		r.fail("the state of a purge")
	}
	return p, r.end()
}

func (p *purgeRecord) encode() []byte {
	w := writer{}
	w.u8(1)
	w.u64(p.order)
	w.stamp(p.stamp)
	w.u64(p.before)
	w.flag(p.closes)
	w.u8(p.state)
	w.u64(p.swept)
	return w
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

// decodeAuthor gives a member that has journals, and the number of its first one.
func decodeAuthor(encoded []byte) (member MemberID, first uint64, err error) {
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

func (l LedgerID) retainedKey(jsn uint64) []byte { return l.key(nil, []byte{10}, be64(jsn)) }

func (l LedgerID) retainsKey(member MemberID) []byte { return l.key(nil, []byte{11}, member[:]) }

func (l LedgerID) authorKey(number uint64) []byte { return l.key(nil, []byte{12}, be64(number)) }
