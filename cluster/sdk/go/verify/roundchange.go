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
) (map[MemberID]*Member, []newKey, error) {
	c := &changer{round: r, request: p, ledger: ledger, next: next, changed: make(map[MemberID]*Member)}
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
	changed map[MemberID]*Member
	keys    []newKey
}

// known gives a copy of a member's record that may be changed, or nil.
func (c *changer) known(id MemberID) (*Member, error) {
	if member := c.changed[id]; member != nil {
		return member, nil
	}
	member, err := c.round.member(c.request.id, c.ledger, id)
	if member == nil || err != nil {
		return nil, err
	}
	return member.clone(), nil
}

func (m *Member) clone() *Member {
	clone := *m
	clone.Keys, clone.Lanes = slices.Clone(m.Keys), slices.Clone(m.Lanes)
	if m.Journals != nil {
		journals := *m.Journals
		clone.Journals = &journals
	}
	return &clone
}

// fresh refuses a key that the ledger has had before, for any member.
func (c *changer) fresh(key PublicKey, member MemberID) error {
	used := slices.ContainsFunc(c.keys, func(k newKey) bool { return k.key == key })
	if used || c.round.get(c.request.id.publicKeyKey(key)) != nil {
		return RefusedChange
	}
	c.keys = append(c.keys, newKey{key: key, member: member})
	return nil
}

func (c *changer) take(change *MemberChange) error {
	if change.Kind == ChangeJoin || change.Kind == ChangeAgent {
		return c.join(change)
	}
	member, err := c.known(change.Member)
	if err != nil {
		return err
	}
	if member == nil {
		return RefusedChange
	}
	switch change.Kind {
	case ChangeRoles:
		if member.Agency != nil {
			return RefusedChange
		}
		member.Roles = change.Roles
	case ChangeKey:
		if len(member.Keys) >= memberKeysMax || !change.consented(c.request.Cluster, c.request.id) {
			return RefusedChange
		}
		if err := c.fresh(change.Key, change.Member); err != nil {
			return err
		}
		member.endKey(c.next)
		member.Keys = append(member.Keys, MemberKey{Key: change.Key, From: c.next})
	case ChangeRevoke:
		member.endKey(c.next)
	case ChangeDispute:
		from := change.From
		if member.DisputedFrom != nil {
			from = min(from, *member.DisputedFrom)
		}
		member.DisputedFrom = &from
	}
	c.changed[change.Member] = member
	return nil
}

func (c *changer) join(change *MemberChange) error {
	if change.Kind == ChangeJoin {
		founding, err := c.round.founding(c.request.id)
		if err != nil {
			return err
		}
		if founding.Policy.Occult == 2 {
			return RefusedChange
		}
	}
	id := MemberIDOf(change.Grant.Name)
	known, err := c.known(id)
	if err != nil {
		return err
	}
	if known != nil {
		return RefusedChange
	}
	if err := c.fresh(change.Grant.Key, id); err != nil {
		return err
	}
	member := &Member{
		Name: change.Grant.Name, Roles: change.Grant.Roles, Keys: []MemberKey{{Key: change.Grant.Key, From: c.next}},
	}
	if change.Kind == ChangeAgent {
		member.Agency = &Agency{Principal: c.request.Member, Prefix: change.Prefix, Until: change.Until}
	}
	c.changed[id] = member
	return nil
}
