package verify

import "slices"

// newKey is a key that a request brings into a ledger.
type newKey struct {
	key    PublicKey
	member MemberID
}

// change takes rule 7, and gives the changed members and the new keys. Nothing is changed yet.
func (r *Round) change(
	p *parsedRequest,
	ledger *roundLedger,
	next uint64,
) (map[MemberID]*memberRecord, []newKey, error) {
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
	if change.kind == changeJoin {
		occult, err := c.round.occult(c.request.id)
		if err != nil {
			return err
		}
		if occult == 2 {
			return RefusedChange
		}
	}
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
