package verify

import "slices"

// dayMilliseconds is the length of a day in milliseconds.
const dayMilliseconds = 86_400_000

// orderEffect is what an order does. Nothing is changed before the order is applied.
type orderEffect struct {
	closed bool
	purged uint64
	// records come last among those of the order; those without a value are deleted.
	records  []PutRecord
	clues    map[Digest]*clueRecord
	occulted []uint64
}

func (e *orderEffect) put(key, value []byte) {
	e.records = append(e.records, PutRecord{Key: key, Value: value})
}

// orderJudge judges one order by rule 8.
type orderJudge struct {
	*Round
	p       *parsedRequest
	ledger  *roundLedger
	author  *Member
	roles   Roles
	signers []MemberID
	policy  LedgerPolicy
	name    string
	effect  *orderEffect
}

// founding gives journal 0 of a ledger.
func (r *Round) founding(ledger LedgerID) (*Founding, error) {
	return DecodeFounding(r.get(ledger.FoundingKey()))
}

func (r *Round) judgeOrder(p *parsedRequest, ledger *roundLedger) (*orderEffect, error) {
	author, err := r.member(p.id, ledger, p.Member)
	if err != nil {
		return nil, err
	}
	founding, err := r.founding(p.id)
	if err != nil {
		return nil, err
	}
	j := &orderJudge{
		Round: r, p: p, ledger: ledger, author: author, roles: author.Roles, signers: []MemberID{p.Member},
		policy: founding.Policy, name: founding.Name,
		effect: &orderEffect{
			closed: ledger.head.closed, purged: ledger.head.purged, clues: make(map[Digest]*clueRecord),
		},
	}
	if err := j.approvals(); err != nil {
		return nil, err
	}
	late := ledger.head.size > p.order.Until
	switch o := p.order; {
	case o.Targets == nil && late:
		return nil, RefusedOrder
	case o.Purge != nil:
		err = j.purge(o.Purge)
	case o.Retain != nil:
		err = j.retain(o.Retain)
	case o.Recall != nil:
		err = j.recall(o.Recall)
	case o.Sweep != nil:
		err = j.sweep(o.Sweep)
	default:
		err = j.occult(late)
	}
	return j.effect, err
}

func (j *orderJudge) approvals() error {
	message := j.p.order.Message(j.p.Cluster, j.p.id)
	for _, approval := range j.p.order.Approvals {
		member, err := j.member(j.p.id, j.ledger, approval.Member)
		if err != nil {
			return err
		}
		if member == nil || member.Agency != nil {
			return RefusedApproval
		}
		key, has := member.KeyAt(j.ledger.head.size)
		if !has || !verifySignature(key, message, approval.Signature[:]) {
			return RefusedApproval
		}
		j.roles |= member.Roles
		j.signers = append(j.signers, approval.Member)
	}
	return nil
}

func (j *orderJudge) occult(late bool) error {
	switch {
	case j.policy.Occult == 0:
		return RefusedOrder
	case j.roles&RoleOwner == 0 || j.policy.Occult == 1 && j.roles&RoleRegulator == 0:
		return RefusedApproval
	case late:
		return RefusedOrder
	}
	for _, target := range j.p.order.Targets {
		swept := target.JSN < j.effect.purged && j.get(j.p.id.RetainedKey(target.JSN)) == nil
		if swept || j.get(j.p.id.MarkKey(target.JSN)) != nil {
			return RefusedOrder
		}
		leaf, err := j.leafBefore(target.JSN)
		if err != nil {
			return err
		}
		if leaf == nil || leaf.Hash() != target.Leaf || leaf.Kind != JournalData {
			return RefusedOrder
		}
		j.effect.put(j.p.id.MarkKey(target.JSN), encodeMark(j.ledger.head.size))
		j.effect.occulted = append(j.effect.occulted, target.JSN)
	}
	return nil
}

// leafBefore gives a leaf that was there before this version, or nil.
func (j *orderJudge) leafBefore(jsn uint64) (*Leaf, error) {
	encoded := j.get(j.p.id.LeafKey(jsn))
	if jsn >= j.ledger.before || encoded == nil {
		return nil, nil
	}
	return DecodeLeaf(encoded)
}

func (j *orderJudge) newest() (*Purge, error) {
	encoded := j.get(j.p.id.PurgeKey())
	if encoded == nil {
		return nil, nil
	}
	return DecodePurge(encoded)
}

func (j *orderJudge) purge(o *PurgeOrder) error {
	newest, err := j.newest()
	if err != nil {
		return err
	}
	head := j.ledger.head
	if newest != nil && newest.Open() || o.Before <= head.purged || o.Size > head.size {
		return RefusedOrder
	}
	past := head.before(o.Size, func(level uint8, index uint64) []byte {
		key := j.p.id.tileKey(level, index, index<<(4*(level+1)))
		for _, tile := range j.ledger.tiles {
			if string(tile.Key) == string(key) {
				return tile.Value
			}
		}
		return j.get(key)
	})
	whole := o.Before == head.size
	if past == nil || past.root() != o.Root || o.Closes && (!whole || head.closed) {
		return RefusedOrder
	}
	leaf, err := j.leafBefore(o.Before)
	if err != nil {
		return err
	}
	if !whole && (leaf == nil || leaf.Index != 0) {
		return RefusedOrder
	}
	if err := j.affected(o); err != nil {
		return err
	}
	record := &Purge{Order: head.size, Stamp: j.stamp, Before: o.Before, Closes: o.Closes}
	if newest != nil {
		record.Swept = newest.Swept
	}
	j.effect.closed = j.effect.closed || o.Closes
	j.effect.put(j.p.id.PurgeKey(), record.encode())
	return nil
}

// affected holds that all have signed whose journals go, or are absent.
func (j *orderJudge) affected(o *PurgeOrder) error {
	absent := func(id MemberID) bool {
		return slices.ContainsFunc(o.Absent, func(a Absent) bool { return a.Member == id })
	}
	for number := uint64(1); number <= uint64(o.Authors)+1; number++ {
		encoded := j.get(j.p.id.AuthorKey(number))
		if encoded == nil {
			if number <= uint64(o.Authors) {
				return RefusedApproval
			}
			break
		}
		author, first, err := DecodeAuthor(encoded)
		if err != nil {
			return err
		}
		if number > uint64(o.Authors) && first < o.Before {
			return RefusedApproval
		}
		if number <= uint64(o.Authors) && !absent(author) && !slices.Contains(j.signers, author) {
			return RefusedApproval
		}
	}
	for _, a := range o.Absent {
		if err := j.absent(a); err != nil {
			return err
		}
	}
	if len(o.Absent) > 0 && j.roles&RoleRegulator == 0 {
		return RefusedApproval
	}
	return nil
}

func (j *orderJudge) absent(a Absent) error {
	member, err := j.member(j.p.id, j.ledger, a.Member)
	if err != nil {
		return err
	}
	leaf, err := j.leafBefore(a.Revocation)
	if err != nil {
		return err
	}
	if member == nil || len(member.Keys) == 0 || leaf == nil || j.policy.AbsentDays == 0 {
		return RefusedApproval
	}
	until := member.Keys[len(member.Keys)-1].Until
	since, known := j.times(leaf.Stamp.Version)
	if until == nil || *until != a.Revocation+1 || !known ||
		since+uint64(j.policy.AbsentDays)*dayMilliseconds > j.now {
		return RefusedApproval
	}
	return nil
}

// named gives the newest purge if it is this one, in one of these states.
func (j *orderJudge) named(order uint64, states ...PurgeState) (*Purge, error) {
	purge, err := j.newest()
	if err != nil {
		return nil, err
	}
	if purge == nil || purge.Order != order || !slices.Contains(states, purge.State) {
		return nil, RefusedOrder
	}
	return purge, nil
}

func (j *orderJudge) retain(o *RetainOrder) error {
	purge, err := j.named(o.Purge, PurgePending)
	if err != nil {
		return err
	}
	among := func(jsn uint64) bool { return slices.Contains(o.Journals, jsn) }
	for _, jsn := range o.Journals {
		if jsn < j.effect.purged || jsn >= purge.Before || j.get(j.p.id.RetainedKey(jsn)) != nil {
			return RefusedOrder
		}
		leaf, err := j.leafBefore(jsn)
		if err != nil {
			return err
		}
		if leaf == nil || leaf.Kind != JournalData || leaf.Index > 0 && !among(jsn-1) ||
			leaf.Index+1 < leaf.Of && !among(jsn+1) {
			return RefusedOrder
		}
		j.effect.put(j.p.id.RetainedKey(jsn), encodeRetained(j.ledger.head.size, j.p.Member))
	}
	count := uint64(len(o.Journals))
	if encoded := j.get(j.p.id.retainsKey(j.p.Member)); encoded != nil {
		of, before, err := decodeRetains(encoded)
		if err != nil {
			return err
		}
		if of == o.Purge {
			count += uint64(before)
		}
	}
	if count > uint64(j.policy.RetainedMax) {
		return RefusedOrder
	}
	j.effect.put(j.p.id.retainsKey(j.p.Member), encodeRetains(o.Purge, uint32(count)))
	return nil
}

func (j *orderJudge) recall(o *RecallOrder) error {
	purge, err := j.named(o.Purge, PurgePending)
	if err != nil {
		return err
	}
	affected := j.author.Journals != nil && j.author.Journals.First < purge.Before
	if j.author.Roles&(RoleOwner|RoleRegulator) == 0 && !affected {
		return RefusedRole
	}
	j.effect.closed = j.effect.closed && !purge.Closes
	purge.State = PurgeRecalled
	j.effect.put(j.p.id.PurgeKey(), purge.encode())
	return nil
}

func (j *orderJudge) sweep(o *SweepOrder) error {
	purge, err := j.named(o.Purge, PurgePending, PurgeSweeping)
	if err != nil {
		return err
	}
	if o.From != j.effect.purged || o.To > purge.Before {
		return RefusedOrder
	}
	if purge.State == PurgePending {
		since, known := j.times(purge.Stamp.Version)
		if !known || purge.Stamp.Version >= j.stamp.Version ||
			since+uint64(j.policy.NoticeSeconds)*1000 > j.now {
			return RefusedOrder
		}
	}
	for jsn := range j.ledger.occulted {
		if jsn >= o.From && jsn < o.To {
			return RefusedOrder
		}
	}
	for jsn := o.From; jsn < o.To; jsn++ {
		if err := j.sweepJournal(jsn); err != nil {
			return err
		}
	}
	j.effect.purged, purge.Swept, purge.State = o.To, j.stamp.Version, PurgeSweeping
	if o.To == purge.Before {
		purge.State = PurgeSwept
	}
	j.effect.put(j.p.id.PurgeKey(), purge.encode())
	if purge.State == PurgeSwept && purge.Closes {
		j.effect.put(LedgerNameKey(j.name), nil)
	}
	return nil
}

func (j *orderJudge) sweepJournal(jsn uint64) error {
	id := j.p.id
	leaf, err := DecodeLeaf(j.get(id.LeafKey(jsn)))
	if err != nil {
		return err
	}
	for _, own := range leaf.Clues {
		record := j.effect.clues[own.Clue]
		if record == nil {
			known, err := j.clue(id, own.Clue)
			if err != nil {
				return err
			}
			record = &known
			j.effect.clues[own.Clue] = record
		}
		record.gone, record.chainGone = own.Ordinal, chained(record.chainGone, jsn, leaf.Hash())
	}
	if leaf.Kind != JournalData || j.get(id.RetainedKey(jsn)) != nil {
		return nil
	}
	j.effect.put(id.LeafKey(jsn), nil)
	j.effect.put(id.envelopeKey(jsn), nil)
	for _, own := range leaf.Clues {
		j.effect.put(id.cellKey(own.Clue, own.Ordinal), nil)
	}
	return nil
}
